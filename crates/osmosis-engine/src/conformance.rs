//! What every [`Executor`] must do. An implementation runs each behaviour as a test of its own through
//! [`for_each_executor_behaviour!`](crate::for_each_executor_behaviour).
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a behaviour that does not hold fails its test"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use osmosis_core::execution::{
    GradeJob, GradeReport, Isolation, LossCause, RunJob, TaskReport, TaskResult, Terms,
};
use osmosis_core::{Attempt, JsonText, Reward, RolloutId, Sample, SampleId};
use tokio_util::sync::CancellationToken;

use crate::Executor;

/// Longer than any behaviour takes; only a test that fails waits this long.
const LONG: Duration = Duration::from_mins(1);

/// What the user's workflow does in one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserCode {
    /// It returns one sample, `main`.
    Answers,
    /// It raises an error.
    Raises,
    /// It waits until it is cancelled.
    Waits,
    /// It ends its own process with code 3.
    EndsItsProcess,
}

/// Makes the job with which the workflow of this row does so. Each row is asked for once.
pub type MakeJob = Box<dyn Fn(u64, UserCode) -> RunJob + Send + Sync>;

/// What an executor leaves to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutorKind {
    /// It runs single tasks. The samples come with `run`, whatever samples a job has are graded, and a lost worker is
    /// the caller's to judge.
    Tasks,
    /// It runs whole rollouts. The samples stay there until they are graded, and what a lost worker held is run again
    /// there, until it counts as a failure of the user's code.
    Rollouts,
}

/// An implementation under test. Its grader gives every sample the reward 1. It runs at least 4 tasks at once.
pub struct ExecutorUnderTest {
    pub executor: Arc<dyn Executor>,
    pub kind: ExecutorKind,
    pub job: MakeJob,
}

impl fmt::Debug for ExecutorUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutorUnderTest")
            .field("executor", &self.executor)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl ExecutorUnderTest {
    async fn run(&self, row: u64, code: UserCode, isolation: Isolation) -> TaskReport {
        let cancel = CancellationToken::new();
        let job = (self.job)(row, code);
        self.executor
            .run(job, terms(isolation, LONG), &cancel)
            .await
    }

    /// Grades what the workflow of this row has done.
    async fn grade(&self, row: u64, samples: Vec<Sample>) -> GradeReport {
        let cancel = CancellationToken::new();
        let job = GradeJob {
            rollout_id: RolloutId::of(row, 0),
            samples,
            label: Some("42".to_owned()),
            metadata: None,
            artifacts_dir: None,
            judge: None,
            clock: None,
            turns: BTreeMap::new(),
        };
        self.executor
            .grade(job, terms(Isolation::Shared, LONG), &cancel)
            .await
    }

    /// The workflow of a row has ended its own process, with code 3.
    fn is_lost(&self, report: &TaskReport) {
        let detail = match (&report.result, self.kind) {
            (TaskResult::WorkerLost { detail, .. }, ExecutorKind::Tasks) => detail,
            (TaskResult::Failed { failure }, ExecutorKind::Rollouts) => &failure.message,
            (other, kind) => panic!("not lost, for an executor of {kind:?}: {other:?}"),
        };
        assert!(detail.contains("code 3"), "{detail}");
    }
}

fn terms(isolation: Isolation, limit: Duration) -> Terms {
    Terms {
        attempt: Attempt(1),
        isolation,
        agent_limit: limit,
        grade_limit: limit,
    }
}

/// Hands the names of all behaviours to a macro: `for_each_executor_behaviour!(each)`.
#[macro_export]
macro_rules! for_each_executor_behaviour {
    ($each:ident) => {
        $each! {
            an_answer_has_no_rewards_before_its_grade
            an_error_of_user_code_is_a_failure
            a_cancelled_task_is_cancelled
            a_task_past_its_limit_has_timed_out
            a_lost_worker_is_reported_with_its_cause
            after_a_lost_worker_the_next_task_runs
            a_waiting_task_delays_no_other
            a_grade_gives_rewards_to_the_samples_of_its_job
        }
    };
}

pub async fn an_answer_has_no_rewards_before_its_grade(test: ExecutorUnderTest) {
    let isolations = [Isolation::Shared, Isolation::Alone, Isolation::Solo];
    for (row, isolation) in (0..).zip(isolations) {
        let report = test.run(row, UserCode::Answers, isolation).await;
        let returned = samples(&report);
        match test.kind {
            ExecutorKind::Tasks => assert_eq!(rewards(returned), [("main", None)]),
            ExecutorKind::Rollouts => assert_eq!(rewards(returned), []),
        }
        let graded = test.grade(row, returned.to_vec()).await;
        assert_eq!(rewards(&graded.samples), [("main", None)], "{isolation:?}");
        let with_grade = rewards(samples(&graded.task));
        assert_eq!(with_grade, [("main", Some(1.0))], "{isolation:?}");
    }
}

pub async fn an_error_of_user_code_is_a_failure(test: ExecutorUnderTest) {
    let report = test.run(0, UserCode::Raises, Isolation::Shared).await;
    match report.result {
        TaskResult::Failed { failure } => assert!(!failure.message.is_empty()),
        other => panic!("not failed: {other:?}"),
    }
}

pub async fn a_cancelled_task_is_cancelled(test: ExecutorUnderTest) {
    let cancel = CancellationToken::new();
    let job = (test.job)(0, UserCode::Waits);
    let running = test
        .executor
        .run(job, terms(Isolation::Shared, LONG), &cancel);
    let cancelled = async {
        // The other task has begun and ended meanwhile, so this one is on its way.
        samples(&test.run(1, UserCode::Answers, Isolation::Shared).await);
        cancel.cancel();
    };
    let (report, ()) = tokio::join!(running, cancelled);
    assert!(matches!(report.result, TaskResult::Cancelled), "{report:?}");
}

pub async fn a_task_past_its_limit_has_timed_out(test: ExecutorUnderTest) {
    let cancel = CancellationToken::new();
    let job = (test.job)(0, UserCode::Waits);
    let short = terms(Isolation::Shared, Duration::from_millis(100));
    let report = test.executor.run(job, short, &cancel).await;
    assert!(matches!(report.result, TaskResult::TimedOut), "{report:?}");
}

pub async fn a_lost_worker_is_reported_with_its_cause(test: ExecutorUnderTest) {
    let report = test
        .run(0, UserCode::EndsItsProcess, Isolation::Alone)
        .await;
    test.is_lost(&report);
    if let TaskResult::WorkerLost { cause, .. } = report.result {
        assert_eq!(cause, LossCause::Own);
    }
}

pub async fn after_a_lost_worker_the_next_task_runs(test: ExecutorUnderTest) {
    let lost = test
        .run(0, UserCode::EndsItsProcess, Isolation::Shared)
        .await;
    test.is_lost(&lost);
    samples(&test.run(1, UserCode::Answers, Isolation::Shared).await);
}

pub async fn a_waiting_task_delays_no_other(test: ExecutorUnderTest) {
    let cancel = CancellationToken::new();
    let job = (test.job)(0, UserCode::Waits);
    let waiting = test
        .executor
        .run(job, terms(Isolation::Shared, LONG), &cancel);
    let others = async {
        for row in 1..=3 {
            samples(&test.run(row, UserCode::Answers, Isolation::Shared).await);
        }
        cancel.cancel();
    };
    let (report, ()) = tokio::join!(waiting, others);
    assert!(matches!(report.result, TaskResult::Cancelled), "{report:?}");
}

pub async fn a_grade_gives_rewards_to_the_samples_of_its_job(test: ExecutorUnderTest) {
    let report = test.run(0, UserCode::Answers, Isolation::Shared).await;
    let (given, ids) = match test.kind {
        ExecutorKind::Tasks => (
            ["first", "second"].map(sample).into(),
            vec!["first", "second"],
        ),
        // It has the samples of the job itself.
        ExecutorKind::Rollouts => (samples(&report).to_vec(), vec!["main"]),
    };
    let graded = test.grade(0, given).await;
    let without: Vec<_> = ids.iter().map(|id| (*id, None)).collect();
    assert_eq!(rewards(&graded.samples), without, "what was graded");
    let with: Vec<_> = ids.iter().map(|id| (*id, Some(1.0))).collect();
    assert_eq!(rewards(samples(&graded.task)), with);
}

fn rewards(samples: &[Sample]) -> Vec<(&str, Option<f64>)> {
    let each = samples.iter();
    each.map(|sample| (sample.id.as_str(), sample.reward.map(Reward::get)))
        .collect()
}

#[track_caller]
fn samples(report: &TaskReport) -> &[Sample] {
    match &report.result {
        TaskResult::Done { samples, .. } => samples,
        other => panic!("not done: {other:?}"),
    }
}

fn sample(id: &str) -> Sample {
    Sample {
        id: SampleId::new(id).unwrap(),
        messages: JsonText::parse("[]").unwrap(),
        reward: None,
        remove_sample: false,
        metrics: None,
        extra_fields: None,
    }
}
