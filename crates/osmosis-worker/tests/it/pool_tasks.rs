use std::collections::BTreeMap;
use std::time::Duration;

use osmosis_core::execution::{GradeJob, Isolation, TaskResult};
use osmosis_core::{JsonText, RolloutId, Sample, SampleId};
use osmosis_testkit::left_processes::is_alive;
use osmosis_worker::WorkerEvent;
use tokio_util::sync::CancellationToken;

use crate::harness::{LONG, Setup, gone, job, loss, messages, refusal};

#[tokio::test]
async fn a_task_comes_back_with_its_samples() {
    let fixture = Setup::new().start().await.unwrap();
    let report = fixture.run(r#"["echo", "a", 1.50]"#).await;
    assert_eq!(messages(&report), r#"[["a", 1.5]]"#);
}

#[tokio::test]
async fn rejections_and_failures_come_back_as_such() {
    let fixture = Setup::new().start().await.unwrap();
    let rejected = fixture.run(r#"["reject"]"#).await.result;
    assert!(matches!(&rejected, TaskResult::Rejected { reason } if reason == "not today"));
    let failed = fixture.run(r#"["fail"]"#).await.result;
    assert!(matches!(&failed, TaskResult::Failed { failure } if failure.kind == "KeyError"));
    let cancelled = fixture.run(r#"["cancel_itself"]"#).await.result;
    assert!(
        matches!(&cancelled, TaskResult::Failed { failure } if failure.kind == "CancelledError")
    );
}

#[tokio::test]
async fn samples_are_graded_by_a_worker_that_runs_no_agents() {
    let mut fixture = Setup::new().start().await.unwrap();
    let grade = GradeJob {
        rollout_id: RolloutId::of(0, 0),
        label: Some("4".to_owned()),
        samples: vec![Sample {
            id: SampleId::main(),
            messages: JsonText::parse("[]").unwrap(),
            reward: None,
            remove_sample: false,
            metrics: None,
            extra_fields: None,
        }],
        metadata: None,
        artifacts_dir: None,
        judge: None,
        clock: None,
        turns: BTreeMap::new(),
    };
    let cancel = CancellationToken::new();
    let report = fixture
        .pool
        .grade(grade, Isolation::Shared, LONG, &cancel)
        .await;
    let TaskResult::Done { samples, .. } = report.result else {
        panic!("{report:?}")
    };
    assert!((samples[0].reward.unwrap().get() - 1.0).abs() < f64::EPSILON);
    for _ in 0..2 {
        fixture
            .event(|event| matches!(event, WorkerEvent::Started { .. }).then_some(()))
            .await;
    }
}

#[tokio::test]
async fn tasks_spread_over_the_workers_and_wait_for_a_free_slot() {
    let mut fixture = Setup::new()
        .options(|options| {
            options.agent_workers = 2;
            options.in_flight_per_worker = 1;
        })
        .start()
        .await
        .unwrap();
    // Both workers must be there before the tasks are, or one takes them all.
    for _ in 0..3 {
        fixture
            .event(|event| matches!(event, WorkerEvent::Started { .. }).then_some(()))
            .await;
    }
    let cancel = CancellationToken::new();
    let run = |row, prompt: &'static str| {
        let job = job(row, prompt);
        fixture.pool.run(job, Isolation::Shared, LONG, &cancel)
    };
    let gate = fixture.folder.join("open");
    let drive = async {
        tokio::join!(
            run(0, r#"["gate", "open"]"#),
            run(1, r#"["gate", "open"]"#),
            run(2, r#"["pid"]"#),
        )
    };
    let mut log = fixture.log;
    let watch = async {
        let mut at_the_gate = 0;
        while at_the_gate < 2 {
            if let WorkerEvent::Output { line, .. } = log.recv().await.unwrap()
                && line.starts_with("at the gate")
            {
                at_the_gate += 1;
            }
        }
        std::fs::write(&gate, "").unwrap();
    };
    let ((first, second, third), ()) = tokio::join!(drive, watch);
    assert_ne!(messages(&first), messages(&second));
    assert!([messages(&first), messages(&second)].contains(&messages(&third)));
}

#[tokio::test]
async fn a_task_that_runs_alone_has_a_worker_of_its_own() {
    let fixture = Setup::new().start().await.unwrap();
    let shared = messages(&fixture.run(r#"["pid"]"#).await);
    let alone = fixture
        .run_as(1, r#"["pid"]"#, Isolation::Alone, LONG)
        .await;
    assert_ne!(messages(&alone), shared);
    let pids: Vec<u32> = serde_json::from_str(&messages(&alone)).unwrap();
    gone(pids[0]).await;
    assert_eq!(messages(&fixture.run(r#"["pid"]"#).await), shared);
}

#[tokio::test]
async fn what_a_task_prints_is_tagged_with_its_rollout() {
    let mut fixture = Setup::new().start().await.unwrap();
    fixture
        .run_as(7, r#"["print", 1, "hello"]"#, Isolation::Shared, LONG)
        .await;
    assert_eq!(fixture.line_of(7, "").await, "hello");
}

#[tokio::test]
async fn nobody_reading_the_log_does_not_stop_the_tasks() {
    let fixture = Setup::new().start().await.unwrap();
    // More lines than the log holds: the guest's printing thread waits, its other tasks do not.
    let cancel = CancellationToken::new();
    let printing = fixture.pool.run(
        job(0, r#"["print", 200000, "some words to fill the buffers"]"#),
        Isolation::Shared,
        LONG,
        &cancel,
    );
    let others = async {
        for _ in 0..20 {
            messages(&fixture.run(r#"["echo"]"#).await);
        }
        cancel.cancel();
    };
    tokio::select! {
        report = printing => panic!("nothing held it back: {:?}", report.result),
        () = others => {}
    }
}

#[tokio::test]
async fn a_blocked_worker_gets_no_tasks_until_it_is_unblocked() {
    let mut fixture = Setup::new().start().await.unwrap();
    let cancel = CancellationToken::new();
    let gate = fixture.folder.join("open");
    let blocking = fixture.pool.run(
        job(0, r#"["block_until", "open"]"#),
        Isolation::Shared,
        LONG,
        &cancel,
    );
    let mut blocking = std::pin::pin!(blocking);
    let log = &mut fixture.log;
    let blocked =
        async { while !matches!(log.recv().await, Some(WorkerEvent::LoopBlocked { .. })) {} };
    tokio::select! {
        _ = &mut blocking => panic!("it is blocked"),
        () = blocked => {}
    }
    let mut waiting = std::pin::pin!(fixture.pool.run(
        job(1, r#"["echo"]"#),
        Isolation::Shared,
        LONG,
        &cancel
    ));
    // The worker would answer at once if it were given the task.
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(early.is_err(), "{early:?}");
    std::fs::write(gate, "").unwrap();
    let (_, report) = tokio::join!(blocking, waiting);
    assert_eq!(messages(&report), "[[]]");
}

#[tokio::test]
async fn shutting_down_leaves_no_process_and_no_socket_behind() {
    for stays in [None, Some(("GUEST_STAYS", "1"))] {
        let mut setup = Setup::new();
        if let Some((name, value)) = stays {
            setup = setup.with(name, value);
        }
        let fixture = setup.start().await.unwrap();
        let pids: Vec<u32> =
            serde_json::from_str(&messages(&fixture.run(r#"["pid"]"#).await)).unwrap();
        assert!(is_alive(pids[0]));
        let grace = Duration::from_secs(if stays.is_some() { 1 } else { 60 });
        fixture.pool.shut_down(grace).await;
        gone(pids[0]).await;
        let report = fixture.run(r#"["echo"]"#).await;
        assert_eq!(refusal(&report), "the worker pool was shut down");
    }
}

#[tokio::test]
async fn a_task_alone_is_not_to_blame_when_the_pool_ends_its_worker() {
    let mut fixture = Setup::new().start().await.unwrap();
    let cancel = CancellationToken::new();
    let alone = fixture
        .pool
        .run(job(0, r#"["wait"]"#), Isolation::Alone, LONG, &cancel);
    let log = &mut fixture.log;
    let pool = &fixture.pool;
    let ending = async {
        while !matches!(log.recv().await, Some(WorkerEvent::Output { line, .. }) if line == "waiting")
        {
        }
        pool.shut_down(LONG).await;
    };
    let (report, ()) = tokio::join!(alone, ending);
    assert_eq!(loss(&report), ("was asked to leave", false));
}

#[tokio::test]
async fn dropping_the_pool_kills_its_processes() {
    let fixture = Setup::new().start().await.unwrap();
    let pids: Vec<u32> = serde_json::from_str(&messages(&fixture.run(r#"["pid"]"#).await)).unwrap();
    drop(fixture);
    gone(pids[0]).await;
}

#[tokio::test]
async fn nothing_runs_beside_a_task_that_runs_solo() {
    let fixture = Setup::new().start().await.unwrap();
    // There is a worker with a free seat.
    messages(&fixture.run(r#"["pid"]"#).await);
    let gate = fixture.folder.join("gate");
    let order = std::sync::Mutex::new(Vec::new());
    let run = async |row, prompt: String, isolation| {
        messages(&fixture.run_as(row, &prompt, isolation, LONG).await);
        order.lock().unwrap().push(row);
    };
    tokio::join!(
        biased;
        run(1, format!(r#"["gate", "{gate}"]"#), Isolation::Shared),
        run(2, r#"["pid"]"#.to_owned(), Isolation::Solo),
        // There is a seat for it, but the solo one waits for its turn.
        run(3, r#"["pid"]"#.to_owned(), Isolation::Shared),
        async {
            let job = GradeJob {
                rollout_id: RolloutId::of(4, 0),
                label: None,
                samples: Vec::new(),
                metadata: None,
                artifacts_dir: None,
                judge: None,
                clock: None,
                turns: BTreeMap::new(),
            };
            let cancel = CancellationToken::new();
            fixture.pool.grade(job, Isolation::Shared, LONG, &cancel).await;
            order.lock().unwrap().push(4);
        },
        async { std::fs::write(&gate, "").unwrap() },
    );
    let order = order.into_inner().unwrap();
    assert_eq!(order[..2], [1, 2], "{order:?}");
}
