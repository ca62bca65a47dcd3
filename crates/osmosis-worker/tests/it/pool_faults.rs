use osmosis_core::RolloutId;
use osmosis_core::execution::{Isolation, LossCause, TaskResult};
use osmosis_worker::WorkerEvent;

use crate::harness::{LONG, Setup, gone, loss, messages};

/// Runs a task that ends its worker; the detail it is told, after the pool has recovered.
async fn crash(prompt: &str) -> String {
    let mut fixture = Setup::new().start().await.unwrap();
    let report = fixture.run_as(3, prompt, Isolation::Shared, LONG).await;
    let (detail, alone) = loss(&report);
    assert!(!alone);
    let (told, held) = fixture
        .event(|event| match event {
            WorkerEvent::Died { detail, held, .. } => Some((detail.clone(), held.clone())),
            _ => None,
        })
        .await;
    assert_eq!(told, detail);
    assert!(held.is_empty() || held == [RolloutId::of(3, 0)], "{held:?}");
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
    detail.to_owned()
}

#[tokio::test]
async fn an_exit_is_told_by_its_code() {
    assert_eq!(crash(r#"["exit", 3]"#).await, "exited with code 3");
}

#[tokio::test]
async fn a_signal_is_told_by_its_name() {
    assert_eq!(
        crash(r#"["signal", 11]"#).await,
        "was killed by signal 11 (SIGSEGV)"
    );
}

#[tokio::test]
async fn a_worker_that_hangs_up_is_lost() {
    assert_eq!(crash(r#"["close"]"#).await, "closed its connection");
}

#[tokio::test]
async fn every_breach_of_the_protocol_costs_the_worker_and_is_named() {
    for (prompt, expected) in [
        (r#"["garbage"]"#, "not a frame"),
        (r#"["oversized"]"#, "over the limit of 67108864 bytes"),
        (r#"["answer_unknown"]"#, "answered task 1000000"),
        (r#"["hello_twice"]"#, "said `hello` twice"),
        (r#"["start_twice"]"#, "twice"),
        (r#"["wrong_answer"]"#, "wrong kind of answer"),
    ] {
        let detail = crash(prompt).await;
        assert!(
            detail.starts_with("broke the protocol: ") && detail.contains(expected),
            "{prompt}: {detail}"
        );
    }
}

#[tokio::test]
async fn the_second_answer_costs_the_worker_but_not_the_first_answer() {
    let mut fixture = Setup::new().start().await.unwrap();
    assert_eq!(messages(&fixture.run(r#"["answer_twice"]"#).await), "[1]");
    let detail = fixture
        .event(|event| match event {
            WorkerEvent::Died { detail, .. } => Some(detail.clone()),
            _ => None,
        })
        .await;
    assert!(detail.contains("has answered before"), "{detail}");
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn what_a_worker_said_before_it_left_counts() {
    let fixture = Setup::new().start().await.unwrap();
    let report = fixture.run(r#"["answer_and_exit"]"#).await;
    assert_eq!(messages(&report), r#"["last words"]"#);
}

#[tokio::test]
async fn everything_a_dead_worker_held_is_lost_with_it() {
    let fixture = Setup::new().start().await.unwrap();
    let (waiting, crashing) = tokio::join!(
        fixture.run_as(1, r#"["wait"]"#, Isolation::Shared, LONG),
        fixture.run_as(2, r#"["exit", 4]"#, Isolation::Shared, LONG),
    );
    assert_eq!(loss(&waiting), ("exited with code 4", false));
    assert_eq!(loss(&crashing), ("exited with code 4", false));
}

#[tokio::test]
async fn a_crash_alone_can_only_be_the_tasks_own() {
    let fixture = Setup::new().start().await.unwrap();
    let (crashing, bystander) = tokio::join!(
        fixture.run_as(1, r#"["exit", 3]"#, Isolation::Alone, LONG),
        fixture.run_as(2, r#"["echo"]"#, Isolation::Shared, LONG),
    );
    assert_eq!(loss(&crashing), ("exited with code 3", true));
    assert_eq!(messages(&bystander), "[[]]");
}

#[tokio::test]
async fn crashes_of_tasks_never_break_the_pool() {
    let fixture = Setup::new().start().await.unwrap();
    for _ in 0..8 {
        loss(&fixture.run(r#"["exit", 1]"#).await);
    }
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn subprocesses_of_a_worker_end_with_it() {
    for forking in [false, true] {
        let mut setup = Setup::new();
        if forking {
            setup = setup.with("GUEST_FORK", "1");
        }
        let mut fixture = setup.start().await.unwrap();
        let report = fixture
            .run_as(0, r#"["subprocess"]"#, Isolation::Shared, LONG)
            .await;
        assert_eq!(loss(&report).0, "exited with code 1");
        let pid = fixture.line_of(0, "child ").await;
        gone(pid.parse().unwrap()).await;
    }
}

#[tokio::test]
async fn a_task_that_kills_what_it_was_forked_from_is_told_so_and_the_pool_goes_on() {
    let fixture = Setup::new()
        .with("GUEST_FORK", "1")
        .options(|options| options.agent_workers = 3)
        .start()
        .await
        .unwrap();
    // More often than processes may die at start.
    for round in 0..9 {
        let (isolation, expected) = match round % 3 {
            0 => (Isolation::Shared, LossCause::Unknown),
            1 => (Isolation::Alone, LossCause::Signalled),
            _ => (Isolation::Solo, LossCause::Signalled),
        };
        let report = fixture
            .run_as(1, r#"["kill_parent"]"#, isolation, LONG)
            .await;
        let TaskResult::WorkerLost { detail, cause } = &report.result else {
            panic!("{report:?}")
        };
        assert!(
            detail.ends_with("forked from, which was killed by signal 9 (SIGKILL)"),
            "{detail}"
        );
        assert_eq!(*cause, expected);
    }
    assert_eq!(messages(&fixture.run(r#"["echo"]"#).await), "[[]]");
}

#[tokio::test]
async fn a_signal_that_anybody_may_have_sent_is_told_from_a_fault() {
    let fixture = Setup::new().start().await.unwrap();
    for (signal, expected) in [
        (11, LossCause::Own),
        (6, LossCause::Own),
        (9, LossCause::Signalled),
        (15, LossCause::Signalled),
    ] {
        let prompt = format!(r#"["signal", {signal}]"#);
        let report = fixture.run_as(1, &prompt, Isolation::Alone, LONG).await;
        assert!(
            matches!(&report.result, TaskResult::WorkerLost { cause, .. } if *cause == expected),
            "{report:?}"
        );
    }
}
