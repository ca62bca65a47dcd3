use std::time::Duration;

use osmosis_core::execution::TaskResult;
use osmosis_worker::{Listen, WorkerError, WorkerErrorKind, WorkerEvent};

use crate::harness::{self, Setup, gone, loss, messages};

/// An interpreter on a busy machine prints its first line within this.
const SLOW_START: Duration = Duration::from_secs(6);

async fn start_error(setup: Setup) -> WorkerError {
    match setup.start().await {
        Ok(_) => panic!("the pool must not start"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_pool_reports_what_the_entrypoint_holds() {
    let fixture = Setup::new().start().await.unwrap();
    assert_eq!(fixture.pool.manifest().workflow.name, "W");
    fixture.pool.shut_down(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn workers_can_dial_in_over_tcp() {
    let mut setup = Setup::new();
    setup.listen = Listen::loopback();
    let fixture = setup.start().await.unwrap();
    assert_eq!(messages(&fixture.run(r#"["echo", 1]"#).await), "[[1]]");
}

#[tokio::test]
async fn an_entrypoint_that_can_not_be_used_is_reported_with_its_problems() {
    let error = start_error(Setup::starting("load_fails")).await;
    let WorkerError::LoadFailed { problems, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(problems[0].code, "import_failed");
    assert_eq!(error.kind(), WorkerErrorKind::Entrypoint);
}

#[tokio::test]
async fn a_process_that_ends_at_start_is_reported_with_its_last_lines() {
    let error = start_error(Setup::starting("exits")).await;
    let WorkerError::DiedAtStart {
        detail,
        output,
        killed: false,
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(detail, "exited with code 7");
    assert_eq!(output, ["cannot import name 'x'"]);
}

#[tokio::test]
async fn a_process_that_is_killed_at_start_is_started_once_more() {
    for start in ["killed_at_start", "killed_while_loading"] {
        let fixture = Setup::starting(&format!("{start}_once")).start().await;
        let fixture = fixture.unwrap_or_else(|error| panic!("{start}: {error}"));
        assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
        let error = start_error(Setup::starting(start)).await;
        let WorkerError::DiedAtStart {
            detail,
            killed: true,
            ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(detail, "was killed by signal 9 (SIGKILL)");
        assert!(error.hint().unwrap().contains("started again"), "{error}");
    }
}

#[tokio::test]
async fn a_process_that_never_says_hello_is_given_up() {
    let setup = Setup::starting("never_dials").options(|options| {
        options.start_limit = SLOW_START;
    });
    let error = start_error(setup).await;
    let WorkerError::NotReady { output, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(output, ["thinking"]);
}

#[tokio::test]
async fn a_process_that_hangs_while_loading_is_given_up() {
    let setup = Setup::starting("hangs_in_load").options(|options| {
        options.start_limit = SLOW_START;
    });
    let error = start_error(setup).await;
    let WorkerError::NotReady { output, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(output, ["still importing"]);
}

#[tokio::test]
async fn another_protocol_is_refused_with_both_numbers() {
    let error = start_error(Setup::starting("wrong_protocol")).await;
    assert!(
        matches!(
            error,
            WorkerError::Protocol {
                found: 99,
                expected: 1
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let mut setup = Setup::new();
    setup.environment.clear();
    let error = {
        let folder = tempfile::tempdir().unwrap();
        let path = camino::Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        let (events, _log) = tokio::sync::mpsc::channel(1);
        let launch = osmosis_worker::Launch {
            program: "no-such-python".into(),
            arguments: Vec::new(),
            working_directory: path.clone(),
            environment: Vec::new(),
            guard: harness::guard(),
            seal: None,
            needed: Vec::new(),
            user: None,
        };
        let load = osmosis_core::frame::Load {
            project_path: path.to_string(),
            entrypoint: "main.py".to_owned(),
            workflow: osmosis_core::JsonText::parse("{}").unwrap(),
            grader: osmosis_core::JsonText::parse("{}").unwrap(),
        };
        osmosis_worker::WorkerPool::start(launch, load, setup.options, events)
            .await
            .unwrap_err()
    };
    assert!(matches!(error, WorkerError::Spawn { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("no-such-python"));
}

#[tokio::test]
async fn strangers_at_the_door_harm_nobody() {
    let fixture = Setup::starting("noise_first").start().await.unwrap();
    assert_eq!(messages(&fixture.run(r#"["echo", 1]"#).await), "[[1]]");
}

#[tokio::test]
async fn workers_are_forked_from_a_template_that_can() {
    let mut fixture = Setup::new()
        .with("GUEST_FORK", "1")
        .options(|options| options.agent_workers = 2)
        .start()
        .await
        .unwrap();
    let mut pids = Vec::new();
    for _ in 0..3 {
        pids.push(
            fixture
                .event(|event| match event {
                    WorkerEvent::Started { pid, .. } => Some(*pid),
                    _ => None,
                })
                .await,
        );
    }
    let report = fixture.run(r#"["grouped"]"#).await;
    let said: Vec<[u32; 2]> = serde_json::from_str(&messages(&report)).unwrap();
    assert!(pids.contains(&said[0][0]));
    assert_eq!(said[0][0], said[0][1], "each leads a group of its own");
    fixture.pool.shut_down(Duration::from_secs(5)).await;
    for pid in pids {
        gone(pid).await;
    }
}

#[tokio::test]
async fn how_a_forked_worker_ended_is_told_by_its_template() {
    let fixture = Setup::new().with("GUEST_FORK", "1").start().await.unwrap();
    let report = fixture.run(r#"["signal", 11]"#).await;
    assert_eq!(loss(&report), ("was killed by signal 11 (SIGSEGV)", false));
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn a_template_that_dies_is_replaced() {
    let fixture = Setup::starting("template_dies_once")
        .with("GUEST_FORK", "1")
        .start()
        .await
        .unwrap();
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn workers_are_spawned_when_forking_keeps_failing() {
    let fixture = Setup::starting("fork_fails")
        .with("GUEST_FORK", "1")
        .start()
        .await
        .unwrap();
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn workers_that_keep_dying_at_start_break_the_pool_instead_of_being_started_forever() {
    let fixture = Setup::starting("dies_after_load").start().await.unwrap();
    // A task may be given to a worker just before it dies; the pool itself is broken soon.
    let detail = loop {
        let report = fixture.run(r#"["echo"]"#).await;
        match &report.result {
            TaskResult::NoWorker { detail } => break detail.clone(),
            TaskResult::WorkerLost { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(
        detail.contains("5 in a row") && detail.contains("exited with code 9"),
        "{detail}"
    );
}
