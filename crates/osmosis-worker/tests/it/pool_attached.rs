//! A pool of one process that dials in from outside.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use camino::Utf8Path;
use osmosis_core::RolloutId;
use osmosis_core::execution::{GradeJob, Isolation, LossCause, TaskReport, TaskResult};
use osmosis_core::frame::{ADDRESS_VARIABLE, TOKEN_VARIABLE};
use osmosis_testkit::left_processes::is_alive;
use osmosis_worker::{Attachment, WorkerError, WorkerEvent, WorkerPool};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::harness::{LONG, Setup, job, messages};

const TOKEN: &str = "the-token-of-this-test";
const SOON: Duration = Duration::from_millis(300);

/// The process from outside, and the pool that has it.
struct Attached {
    process: Child,
    pool: WorkerPool,
    _log: mpsc::Receiver<WorkerEvent>,
}

impl Attached {
    async fn start(cancel_grace: Duration) -> Self {
        let (events, log) = mpsc::channel(1024);
        let mut options = Setup::new().options;
        options.cancel_grace = cancel_grace;
        let attachment = Attachment::open(TOKEN.to_owned(), options, events);
        let attachment = attachment.await.unwrap();
        let process = guest(attachment.address(), TOKEN);
        Self {
            process,
            pool: attachment.admit().await.unwrap(),
            _log: log,
        }
    }

    fn pid(&self) -> u32 {
        self.process.id().unwrap()
    }

    async fn run(&self, prompt: &str, isolation: Isolation, limit: Duration) -> TaskReport {
        let cancel = CancellationToken::new();
        self.pool
            .run(job(0, prompt), isolation, limit, &cancel)
            .await
    }
}

fn guest(address: &str, token: &str) -> Child {
    let script = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/guest.py");
    Command::new("python3")
        .arg(script)
        .env(ADDRESS_VARIABLE, address)
        .env(TOKEN_VARIABLE, token)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn the_one_process_runs_and_grades_and_leaves_when_it_is_asked_to() {
    let mut attached = Attached::start(LONG).await;
    let pid = format!("[{}]", attached.pid());
    for isolation in [Isolation::Shared, Isolation::Alone] {
        let report = attached.run(r#"["pid"]"#, isolation, LONG).await;
        assert_eq!(messages(&report), pid);
        let TaskResult::Done { samples, .. } = report.result else {
            panic!("not done")
        };
        let graded = GradeJob {
            rollout_id: RolloutId::of(0, 0),
            label: None,
            samples,
            metadata: None,
            artifacts_dir: None,
            judge: None,
            clock: None,
            turns: BTreeMap::new(),
        };
        let cancel = CancellationToken::new();
        let graded = attached.pool.grade(graded, isolation, LONG, &cancel).await;
        assert_eq!(messages(&graded), pid);
    }
    attached.pool.shut_down(LONG).await;
    let status = tokio::time::timeout(LONG, attached.process.wait()).await;
    assert!(status.unwrap().unwrap().success());
}

#[tokio::test]
async fn a_process_that_is_not_ours_is_never_killed() {
    let attached = Attached::start(SOON).await;
    let deaf = attached
        .run(r#"["ignore_cancel"]"#, Isolation::Shared, SOON)
        .await;
    assert!(matches!(deaf.result, TaskResult::TimedOut), "{deaf:?}");
    assert!(is_alive(attached.pid()));
    let report = attached.run(r#"["echo"]"#, Isolation::Shared, LONG).await;
    assert_eq!(messages(&report), "[[]]");
    assert!(is_alive(attached.pid()));
}

#[tokio::test]
async fn when_the_process_goes_the_pool_ends() {
    let attached = Attached::start(LONG).await;
    let report = attached
        .run(r#"["exit", 3]"#, Isolation::Shared, LONG)
        .await;
    let TaskResult::WorkerLost {
        cause: LossCause::Unknown,
        ..
    } = report.result
    else {
        panic!("{report:?}")
    };
    let closed = tokio::time::timeout(LONG, attached.pool.closed()).await;
    assert!(closed.unwrap().contains("closed its connection"));
    let report = attached.run(r#"["echo"]"#, Isolation::Shared, LONG).await;
    assert!(
        matches!(report.result, TaskResult::NoWorker { .. }),
        "{report:?}"
    );
}

#[tokio::test]
async fn nobody_without_the_token_is_let_in() {
    let (events, _log) = mpsc::channel(1024);
    let mut options = Setup::new().options;
    options.start_limit = LONG;
    let attachment = Attachment::open(TOKEN.to_owned(), options.clone(), events.clone());
    let attachment = attachment.await.unwrap();
    let mut stranger = guest(attachment.address(), "another-token");
    let status = tokio::time::timeout(LONG, stranger.wait()).await;
    assert_eq!(status.unwrap().unwrap().code(), Some(8));
    drop(attachment);

    options.start_limit = SOON;
    let attachment = Attachment::open(TOKEN.to_owned(), options, events).await;
    let error = attachment.unwrap().admit().await.unwrap_err();
    assert!(matches!(error, WorkerError::NotReady { .. }), "{error:?}");
}
