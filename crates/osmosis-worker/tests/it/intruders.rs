//! Processes that dial in as a worker that they are not.

use std::process::Stdio;

use camino::Utf8Path;
use osmosis_core::execution::TaskResult;
use osmosis_core::frame::{ADDRESS_VARIABLE, TOKEN_VARIABLE};
use osmosis_testkit::waiting::until;
use osmosis_worker::{Intrusion, WorkerError, WorkerEvent};
use tempfile::TempDir;

use crate::harness::{LONG, Setup, messages, refusal};

/// A worker whose token another process got hold of, before it could use it.
#[tokio::test]
async fn another_process_with_the_token_of_a_worker_is_not_let_in_and_ends_the_pool() {
    let shared = TempDir::new().unwrap();
    let stolen = shared.path().join("stolen");
    let setup = Setup::starting("is_robbed").with("GUEST_FOLDER", shared.path().to_str().unwrap());
    let robbing = async {
        until("the token is stolen", LONG, || stolen.exists()).await;
        let [address, token]: [String; 2] =
            serde_json::from_slice(&std::fs::read(&stolen).unwrap()).unwrap();
        dial(&address, &token).await
    };
    let both = async { tokio::join!(setup.start(), robbing) };
    let (started, (pid, said)) = tokio::time::timeout(LONG, both).await.unwrap();
    let Err(WorkerError::Intrusion(intrusion)) = started else {
        panic!("a false worker was let in: {:?}", started.map(|it| it.pool));
    };
    assert!(
        matches!(intrusion, Intrusion::AnotherProcess { .. }),
        "{intrusion}"
    );
    let message = intrusion.to_string();
    assert!(
        message.starts_with(&format!("process {pid} (`")) && message.contains("guest.py`)"),
        "{message}"
    );
    assert!(said.contains("refused: "), "{said}");
}

#[tokio::test]
async fn a_second_dial_with_a_token_ends_the_pool_and_what_its_worker_answers_does_not_count() {
    let fixture = Setup::new().start().await.unwrap();
    let alarm = tokio_util::sync::CancellationToken::new();
    fixture.pool.alarm(alarm.clone());
    let report = fixture.run(r#"["reuse_token"]"#).await;
    assert!(
        matches!(
            report.result,
            TaskResult::WorkerLost { .. } | TaskResult::NoWorker { .. }
        ),
        "{report:?}"
    );
    tokio::time::timeout(LONG, alarm.cancelled()).await.unwrap();
    let detail = tokio::time::timeout(LONG, fixture.pool.closed()).await;
    let detail = detail.unwrap();
    let intrusion = fixture.pool.intrusion().unwrap();
    assert!(
        matches!(intrusion, Intrusion::UsedToken { .. }),
        "{intrusion}"
    );
    assert_eq!(detail, intrusion.to_string());
    assert!(detail.contains("guest.py`)"), "{detail}");
    let next = fixture.run(r#"["echo"]"#).await;
    assert_eq!(refusal(&next), detail);
}

/// Such a token may come from a core dump.
#[tokio::test]
async fn the_token_of_a_worker_that_has_ended_ends_the_pool_too() {
    let mut fixture = Setup::new().start().await.unwrap();
    let report = fixture.run(r#"["tell_token_and_exit"]"#).await;
    let [[address, token]]: [[String; 2]; 1] = serde_json::from_str(&messages(&report)).unwrap();
    let ended = |event: &WorkerEvent| matches!(event, WorkerEvent::Died { .. }).then_some(());
    fixture.event(ended).await;
    let (pid, said) = dial(&address, &token).await;
    assert!(said.contains("which had used it already"), "{said}");
    let detail = tokio::time::timeout(LONG, fixture.pool.closed()).await;
    let detail = detail.unwrap();
    assert!(detail.starts_with(&format!("process {pid} (")), "{detail}");
}

/// A process that says it is the worker with this token: its id, and what it printed once it was turned away.
async fn dial(address: &str, token: &str) -> (u32, String) {
    let script = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/guest.py");
    let dialler = tokio::process::Command::new("python3")
        .arg(script)
        .env(ADDRESS_VARIABLE, address)
        .env(TOKEN_VARIABLE, token)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = dialler.id().unwrap();
    let output = tokio::time::timeout(LONG, dialler.wait_with_output()).await;
    let output = output.unwrap().unwrap().stdout;
    (pid, String::from_utf8(output).unwrap())
}
