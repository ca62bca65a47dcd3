use std::time::Duration;

use osmosis_core::execution::{Isolation, TaskResult};
use osmosis_worker::WorkerEvent;
use tokio_util::sync::CancellationToken;

use crate::harness::{LONG, Setup, job, loss, messages};

const SOON: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_task_past_its_deadline_is_cancelled_and_its_worker_lives_on() {
    let fixture = Setup::new().start().await.unwrap();
    let pid = messages(&fixture.run(r#"["pid"]"#).await);
    let report = fixture
        .run_as(1, r#"["wait"]"#, Isolation::Shared, SOON)
        .await;
    assert!(matches!(report.result, TaskResult::TimedOut), "{report:?}");
    assert!(report.took >= SOON);
    assert_eq!(messages(&fixture.run(r#"["pid"]"#).await), pid);
}

#[tokio::test]
async fn an_answer_after_the_deadline_comes_too_late() {
    let fixture = Setup::new().start().await.unwrap();
    let report = fixture
        .run_as(1, r#"["answer_late"]"#, Isolation::Shared, SOON)
        .await;
    assert!(matches!(report.result, TaskResult::TimedOut), "{report:?}");
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn a_worker_that_ignores_cancelling_is_killed_and_replaced() {
    let mut fixture = Setup::new()
        .options(|options| options.cancel_grace = SOON)
        .start()
        .await
        .unwrap();
    let pid = messages(&fixture.run(r#"["pid"]"#).await);
    let cancel = CancellationToken::new();
    let (deaf, bystander) = tokio::join!(
        fixture.run_as(1, r#"["ignore_cancel"]"#, Isolation::Shared, SOON),
        fixture
            .pool
            .run(job(2, r#"["wait"]"#), Isolation::Shared, LONG, &cancel),
    );
    assert!(matches!(deaf.result, TaskResult::TimedOut), "{deaf:?}");
    let (detail, alone) = loss(&bystander);
    assert!(!alone);
    assert!(
        detail.contains("`r1-0` passed its deadline of 0.3 s"),
        "{detail}"
    );
    let reason = fixture
        .event(|event| match event {
            WorkerEvent::Killed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
        .await;
    assert!(detail.contains(&reason));
    assert_ne!(messages(&fixture.run(r#"["pid"]"#).await), pid);
}

#[tokio::test]
async fn a_worker_that_never_starts_its_task_is_killed() {
    let mut fixture = Setup::new()
        .options(|options| options.cancel_grace = SOON)
        .start()
        .await
        .unwrap();
    messages(&fixture.run(r#"["echo"]"#).await);
    // The runtime skips to the next timer whenever it is idle: here, our patience.
    tokio::time::pause();
    let report = fixture.run(r#"["never_start"]"#).await;
    tokio::time::resume();
    let (detail, _) = loss(&report);
    assert!(detail.contains("did not start rollout `r0-0`"), "{detail}");
    fixture
        .event(|event| matches!(event, WorkerEvent::Killed { .. }).then_some(()))
        .await;
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn the_deadline_starts_when_user_code_does() {
    let fixture = Setup::new()
        .options(|options| options.in_flight_per_worker = 1)
        .start()
        .await
        .unwrap();
    let (first, second) = tokio::join!(
        fixture.run_as(1, r#"["wait"]"#, Isolation::Shared, 4 * SOON),
        // Waits longer for its slot than its own deadline.
        fixture.run_as(2, r#"["echo"]"#, Isolation::Shared, SOON),
    );
    assert!(matches!(first.result, TaskResult::TimedOut), "{first:?}");
    assert_eq!(messages(&second), "[[]]");
}

#[tokio::test]
async fn a_running_task_can_be_cancelled() {
    let mut fixture = Setup::new().start().await.unwrap();
    let cancel = CancellationToken::new();
    let report = {
        let running = fixture
            .pool
            .run(job(0, r#"["wait"]"#), Isolation::Shared, LONG, &cancel);
        let log = &mut fixture.log;
        let when_it_waits = async {
            while !matches!(log.recv().await, Some(WorkerEvent::Output { line, .. }) if line == "waiting")
            {
            }
            cancel.cancel();
        };
        tokio::join!(running, when_it_waits).0
    };
    assert!(matches!(report.result, TaskResult::Cancelled), "{report:?}");
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn a_waiting_task_is_cancelled_at_once() {
    let fixture = Setup::new()
        .options(|options| options.in_flight_per_worker = 1)
        .start()
        .await
        .unwrap();
    let (first, second) = (CancellationToken::new(), CancellationToken::new());
    let running = fixture
        .pool
        .run(job(0, r#"["wait"]"#), Isolation::Shared, LONG, &first);
    let waiting = async {
        let waiting = fixture
            .pool
            .run(job(1, r#"["echo"]"#), Isolation::Shared, LONG, &second);
        second.cancel();
        let report = waiting.await;
        first.cancel();
        report
    };
    let (_, report) = tokio::join!(running, waiting);
    assert!(matches!(report.result, TaskResult::Cancelled), "{report:?}");
}

#[tokio::test]
async fn losing_interest_in_a_task_cancels_it_and_frees_its_slot() {
    let mut fixture = Setup::new()
        .options(|options| options.in_flight_per_worker = 1)
        .start()
        .await
        .unwrap();
    {
        let cancel = CancellationToken::new();
        let log = &mut fixture.log;
        let when_it_waits = async {
            while !matches!(log.recv().await, Some(WorkerEvent::Output { line, .. }) if line == "waiting")
            {
            }
        };
        tokio::select! {
            _ = fixture.pool.run(job(0, r#"["wait"]"#), Isolation::Shared, LONG, &cancel) => {
                panic!("it waits")
            }
            () = when_it_waits => {}
        }
    }
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn nobody_is_blamed_in_a_shared_worker_that_says_nothing_at_all() {
    let fixture = Setup::new()
        .with("GUEST_SILENT", "1")
        .options(|options| options.cancel_grace = SOON)
        .start()
        .await
        .unwrap();
    let (one, other) = tokio::join!(
        fixture.run_as(1, r#"["ignore_cancel"]"#, Isolation::Shared, SOON),
        fixture.run_as(2, r#"["ignore_cancel"]"#, Isolation::Shared, SOON),
    );
    for report in [&one, &other] {
        assert!(!loss(report).1, "{report:?}");
    }
    let alone = fixture
        .run_as(1, r#"["ignore_cancel"]"#, Isolation::Alone, SOON)
        .await;
    assert!(matches!(alone.result, TaskResult::TimedOut), "{alone:?}");
}
