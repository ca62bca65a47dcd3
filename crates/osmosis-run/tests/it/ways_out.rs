//! Whatever way a run ends, it leaves the same order behind.

use osmosis_engine::Stop;
use osmosis_run::RunErrorKind;
use osmosis_store::RunStatus;

use crate::scripted_run::{Fails, ScriptedRun};

/// Workers before the gateway that they call, that before what samples; then the observer's end.
const PARTS: [&str; 4] = ["workers", "gateway", "sampler", "observed"];

#[tokio::test]
async fn a_complete_run_is_finished_and_everything_is_told_so() {
    let run = ScriptedRun::new(Fails::Nowhere);
    run.live(&Stop::default()).await.unwrap();
    assert_eq!(run.end(), [&PARTS[..], &["status"]].concat());
    assert_eq!(run.status_left().await, RunStatus::Finished);
    assert_eq!(run.tracker_was_told(), Some(true));
    assert!(run.has_index());
    assert_eq!(run.metrics().unwrap()["pass_rate"], 0.5);
}

#[tokio::test]
async fn a_run_that_was_stopped_is_interrupted() {
    let mut run = ScriptedRun::new(Fails::Nowhere);
    run.is_stopped = true;
    run.live(&Stop::default()).await.unwrap();
    assert_eq!(run.status_left().await, RunStatus::Interrupted);
    assert_eq!(run.tracker_was_told(), Some(false));
    assert!(run.metrics().is_some() && run.has_index());
    assert_eq!(run.end()[..4], PARTS);
}

#[tokio::test]
async fn an_error_while_it_is_driven_leaves_an_interrupted_run_with_its_numbers() {
    let run = ScriptedRun::new(Fails::Driving);
    let error = run.live(&Stop::default()).await.unwrap_err();
    assert_eq!(error.kind(), RunErrorKind::Engine);
    assert_eq!(error.hint_text(), Some("resume with `again t`"));
    assert_eq!(run.end(), PARTS);
    assert_eq!(run.status_left().await, RunStatus::Interrupted);
    assert_eq!(run.tracker_was_told(), Some(false));
    assert!(run.has_index());
    assert_eq!(run.metrics().unwrap()["pass_rate"], 0.5);
}

#[tokio::test]
async fn an_error_in_what_is_run_leaves_an_interrupted_run_and_no_hint_to_resume_it() {
    let run = ScriptedRun::new(Fails::Filling);
    let error = run.live(&Stop::default()).await.unwrap_err();
    assert_eq!(error.hint_text(), None);
    assert_eq!(run.end(), ["workers"]);
    assert_eq!(run.status_left().await, RunStatus::Interrupted);
    assert_eq!(run.tracker_was_told(), None, "it never began to track");
    assert!(run.has_index());
}

#[tokio::test]
async fn an_error_in_the_report_still_closes_everything() {
    let run = ScriptedRun::new(Fails::Reporting);
    run.live(&Stop::default()).await.unwrap_err();
    assert_eq!(run.status_left().await, RunStatus::Finished);
    assert_eq!(run.tracker_was_told(), Some(false));
}

#[tokio::test]
async fn a_file_that_cannot_be_written_still_closes_everything() {
    let run = ScriptedRun::new(Fails::Nowhere);
    std::fs::create_dir_all(run.path().join("metrics.json")).unwrap();
    let error = run.live(&Stop::default()).await.unwrap_err();
    assert_eq!(error.kind(), RunErrorKind::Io);
    assert_eq!(run.status_left().await, RunStatus::Finished);
    assert_eq!(run.tracker_was_told(), Some(false));
}

#[tokio::test]
async fn an_error_while_it_is_prepared_leaves_no_run_and_no_workers() {
    let run = ScriptedRun::new(Fails::Preparing);
    run.live(&Stop::default()).await.unwrap_err();
    assert_eq!(run.end(), ["workers"]);
    assert!(!run.path().exists());
}

#[tokio::test]
async fn a_request_to_stop_ends_the_preparation_at_once() {
    let mut run = ScriptedRun::new(Fails::Nowhere);
    run.prepares_for_ever = true;
    let stop = Stop::default();
    stop.drain.cancel();
    let error = run.live(&stop).await.unwrap_err();
    assert_eq!(error.kind(), RunErrorKind::Interrupted);
    assert!(!run.path().exists());

    let stop = Stop::default();
    let later = async {
        while run.journal.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        stop.drain.cancel();
    };
    let (ended, ()) = tokio::join!(run.live(&stop), later);
    assert_eq!(ended.unwrap_err().kind(), RunErrorKind::Interrupted);
    assert_eq!(run.end(), ["workers"]);
    assert!(!run.path().exists());
}

#[tokio::test]
async fn a_run_that_failed_goes_on_under_its_name() {
    let mut run = ScriptedRun::new(Fails::Driving);
    run.live(&Stop::default()).await.unwrap_err();
    run.fails = Fails::Nowhere;
    run.live(&Stop::default()).await.unwrap();
    assert_eq!(run.status_left().await, RunStatus::Finished);
    assert_eq!(run.tracker_was_told(), Some(true));
}

#[tokio::test]
async fn a_preflight_that_fails_leaves_no_run_and_no_hint_to_resume_one() {
    let run = ScriptedRun::new(Fails::Preflight);
    let error = run.live(&Stop::default()).await.unwrap_err();
    assert_eq!(error.hint_text(), None);
    assert_eq!(run.end(), ["workers"]);
    assert!(!run.path().exists());
}

#[tokio::test]
async fn a_fresh_run_whose_preflight_fails_leaves_the_earlier_one_in_place() {
    let mut run = ScriptedRun::new(Fails::Nowhere);
    run.live(&Stop::default()).await.unwrap();
    (run.fresh, run.fails) = (true, Fails::Preflight);
    run.live(&Stop::default()).await.unwrap_err();
    assert_eq!(run.status_left().await, RunStatus::Finished);
    assert_eq!(run.archived(), 0);
    run.fails = Fails::Nowhere;
    run.live(&Stop::default()).await.unwrap();
    assert_eq!(run.archived(), 1);
}

#[tokio::test]
async fn a_complete_run_is_looked_at_and_nothing_is_started_or_written() {
    let run = ScriptedRun::new(Fails::Nowhere);
    let first = run.live(&Stop::default()).await.unwrap();
    assert!(!first.already_complete);
    let metrics = std::fs::metadata(run.path().join("metrics.json")).unwrap();
    run.journal.lock().clear();
    let again = run.live(&Stop::default()).await.unwrap();
    assert!(again.already_complete);
    assert_eq!(*run.journal.lock(), ["prepares", "workers"]);
    assert_eq!(run.status_left().await, RunStatus::Finished);
    let after = std::fs::metadata(run.path().join("metrics.json")).unwrap();
    assert_eq!(metrics.modified().unwrap(), after.modified().unwrap());
}
