//! A server whose one worker is a process from outside.

use std::process::Stdio;
use std::sync::Arc;

use osmosis_core::frame::{ADDRESS_VARIABLE, TOKEN_VARIABLE};
use osmosis_testkit::model_server::Gate;
use osmosis_worker::{Attachment, WorkerPool};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::serving::{LONG, Serving, Setting, drop_all, pool_options};

async fn start(setting: Setting) -> (Serving, Arc<WorkerPool>, Child) {
    let (events, log) = mpsc::channel(1024);
    let mut tasks = JoinSet::new();
    drop_all(&mut tasks, log);
    let token = "the-token-of-this-test".to_owned();
    let attachment = Attachment::open(token.clone(), pool_options(LONG), events);
    let attachment = attachment.await.unwrap();
    let guest = Command::new(std::env::current_exe().unwrap())
        .args([
            "guest::worker_process",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(ADDRESS_VARIABLE, attachment.address())
        .env(TOKEN_VARIABLE, token)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pool = Arc::new(attachment.admit().await.unwrap());
    let keep = TempDir::new().unwrap();
    let serving = setting.start_with(Arc::clone(&pool), keep, tasks).await;
    (serving, pool, guest)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_from_outside_runs_and_grades_everything_and_leaves_at_the_end() {
    let (serving, _, mut guest) = start(Setting::default()).await;
    for id in ["a", "b", "c"] {
        serving.accept(id, "answer").await;
    }
    for id in ["a", "b", "c"] {
        assert_eq!(serving.told(id).await.1["sample"]["reward"], 1.0);
    }
    serving.drain().await;
    let status = tokio::time::timeout(LONG, guest.wait()).await;
    assert!(status.unwrap().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_process_goes_what_it_held_is_told_as_failed() {
    let gate = Gate::default();
    let (serving, pool, mut guest) = start(Setting::held(&gate)).await;
    serving.accept("held", "answer").await;
    serving.model.wait_for_requests(1).await;
    guest.kill().await.unwrap();
    tokio::time::timeout(LONG, pool.closed()).await.unwrap();
    let (completion, grader) = serving.told("held").await;
    assert_eq!(completion["status"], "failure");
    let message = completion["err_message"].as_str().unwrap();
    assert!(message.contains("the attached process"), "{message}");
    assert_eq!(grader["status"], "failure");
    serving.drain().await;
}
