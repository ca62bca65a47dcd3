//! Workers that somebody else starts, somewhere else.

use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::JsonText;
use osmosis_core::execution::Isolation;
use osmosis_core::frame::{ADDRESS_VARIABLE, Load, TOKEN_VARIABLE};
use osmosis_worker::{
    Endpoint, Invitation, LaunchedProcess, Launcher, Listen, WorkerError, WorkerPool,
};
use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::harness::{LONG, Setup, job, messages};

/// Another machine, as far as the pool can tell: it reaches the engine by a name, sees its folders below
/// `/worker`, and nobody here holds its processes.
#[derive(Debug, Default)]
struct AnotherMachine {
    processes: Mutex<Vec<Child>>,
    dialled: Mutex<Vec<Endpoint>>,
}

#[async_trait]
impl Launcher for AnotherMachine {
    async fn launch(&self, invitation: Invitation) -> Result<LaunchedProcess, WorkerError> {
        let script = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/guest.py");
        let process = Command::new("python3")
            .arg(script)
            .env(ADDRESS_VARIABLE, invitation.endpoint.to_string())
            .env(TOKEN_VARIABLE, invitation.token)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.processes.lock().push(process);
        self.dialled.lock().push(invitation.endpoint);
        Ok(LaunchedProcess::elsewhere())
    }

    fn worker_path(&self, path: &Utf8Path) -> Utf8PathBuf {
        let below = path.strip_prefix("/engine").unwrap();
        Utf8Path::new("/worker").join(below)
    }
}

#[tokio::test]
async fn a_worker_elsewhere_dials_the_advertised_address_and_gets_paths_of_its_own() {
    let machine = Arc::new(AnotherMachine::default());
    let listen = Listen::Tcp {
        bind: ([127, 0, 0, 1], 0).into(),
        advertised_host: Some("localhost".to_owned()),
    };
    let load = Load {
        project_path: "/engine/rollouts/multiply".to_owned(),
        entrypoint: "main.py".to_owned(),
        workflow: JsonText::parse("{}").unwrap(),
        grader: JsonText::parse("{}").unwrap(),
    };
    let (events, _log) = mpsc::channel(1024);
    let launcher = Arc::<AnotherMachine>::clone(&machine);
    let starting = WorkerPool::start_with(launcher, listen, load, Setup::new().options, events);
    let pool = starting.await.unwrap();

    let mut job = job(0, r#"["paths"]"#);
    job.artifacts_dir = Some("/engine/runs/one/artifacts/r0-0".into());
    let cancel = CancellationToken::new();
    let report = pool.run(job, Isolation::Shared, LONG, &cancel).await;
    assert_eq!(
        messages(&report),
        r#"[["/worker/rollouts/multiply", "/worker/runs/one/artifacts/r0-0"]]"#
    );
    let dialled = machine.dialled.lock().clone();
    assert!(
        dialled
            .iter()
            .all(|endpoint| matches!(endpoint, Endpoint::Tcp { host, .. } if host == "localhost")),
        "{dialled:?}"
    );
    pool.shut_down(LONG).await;
    // Nobody here can end them: they leave because they are told to, or are not let in any more.
    let mut processes = std::mem::take(&mut *machine.processes.lock());
    for process in &mut processes {
        tokio::time::timeout(LONG, process.wait())
            .await
            .unwrap()
            .unwrap();
    }
}
