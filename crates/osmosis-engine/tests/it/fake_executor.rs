//! An executor without processes: each phase of a rollout does what the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use osmosis_core::execution::{
    GradeJob, GradeReport, Isolation, LossCause, RunJob, TaskReport, TaskResult, Terms,
};
use osmosis_core::frame::TurnRewards;
use osmosis_core::{
    Attempt, ErrorCategory, Failure, JsonText, Phase, Reward, RolloutId, Sample, SampleId,
};
use osmosis_engine::Executor;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::fake_sessions::ADVERTISED;

/// What user code does in one phase of one attempt.
#[derive(Debug, Clone)]
pub(crate) enum Play {
    /// It does its work at once.
    Works,
    /// It does its work after so long, unless it is cancelled before.
    WorksAfter(Duration),
    /// It waits until it is cancelled.
    UntilCancelled,
    Raises,
    /// It raises what an HTTP client says of the address that it was given.
    RaisesTheAddress,
    LosesItsWorker(LossCause),
}

/// One call of the executor.
#[derive(Debug, Clone)]
pub(crate) struct Executed {
    pub(crate) rollout: RolloutId,
    pub(crate) attempt: Attempt,
    pub(crate) phase: Phase,
    pub(crate) isolation: Isolation,
    /// Address and key that user code was given, of the policy or of the judge.
    pub(crate) access: Option<(String, String)>,
    pub(crate) label: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct FakeExecutor {
    /// What is to be done, in order.
    plays: Mutex<Vec<(RolloutId, Phase, Play)>>,
    executed: watch::Sender<Vec<Executed>>,
    /// Calls that have not come to an end.
    under_way: Arc<AtomicUsize>,
    most_under_way: AtomicUsize,
    cancelled: AtomicUsize,
}

struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FakeExecutor {
    /// What the attempts at a phase do, in order; those that follow work at once.
    pub(crate) fn plays(&self, row: u64, phase: Phase, plays: impl IntoIterator<Item = Play>) {
        let plays = plays
            .into_iter()
            .map(|play| (RolloutId::of(row, 0), phase, play));
        self.plays.lock().extend(plays);
    }

    pub(crate) fn executed(&self) -> Vec<Executed> {
        self.executed.borrow().clone()
    }

    /// Returns when so many phases have begun.
    pub(crate) async fn begun(&self, count: usize) {
        let mut executed = self.executed.subscribe();
        executed
            .wait_for(|executed| executed.len() >= count)
            .await
            .unwrap();
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    /// How many there were at once, at most.
    pub(crate) fn most_under_way(&self) -> usize {
        self.most_under_way.load(Ordering::SeqCst)
    }

    /// Calls that were asked to cancel, and did.
    pub(crate) fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }

    fn next_play(&self, rollout: &RolloutId, phase: Phase) -> Play {
        let mut plays = self.plays.lock();
        let next = plays
            .iter()
            .position(|(of, when, _)| of == rollout && *when == phase);
        next.map_or(Play::Works, |at| plays.remove(at).2)
    }

    async fn play(
        &self,
        executed: Executed,
        limit: Duration,
        cancel: &CancellationToken,
        done: impl FnOnce() -> TaskResult,
    ) -> TaskReport {
        let play = self.next_play(&executed.rollout, executed.phase);
        let _under_way = UnderWay::new(&self.under_way);
        self.most_under_way
            .fetch_max(self.under_way(), Ordering::SeqCst);
        self.executed.send_modify(|all| all.push(executed));
        let result = match play {
            Play::Works => done(),
            Play::WorksAfter(time) => tokio::select! {
                () = tokio::time::sleep(time) => done(),
                () = cancel.cancelled() => self.cancel(),
                () = tokio::time::sleep(limit) => TaskResult::TimedOut,
            },
            Play::UntilCancelled => tokio::select! {
                () = cancel.cancelled() => self.cancel(),
                () = tokio::time::sleep(limit) => TaskResult::TimedOut,
            },
            Play::Raises => TaskResult::Failed {
                failure: Failure::new(ErrorCategory::AgentError, "RuntimeError", "boom"),
            },
            Play::RaisesTheAddress => TaskResult::Failed {
                failure: Failure {
                    traceback: Some(format!("File \"main.py\"\n  GET {ADVERTISED}/models")),
                    ..Failure::new(
                        ErrorCategory::HttpError,
                        "HTTPStatusError",
                        format!("Client error '400' for url '{ADVERTISED}/chat/completions'"),
                    )
                },
            },
            Play::LosesItsWorker(cause) => TaskResult::WorkerLost {
                detail: "exited with code 3".to_owned(),
                cause,
            },
        };
        TaskReport::undispatched(result)
    }

    fn cancel(&self) -> TaskResult {
        self.cancelled.fetch_add(1, Ordering::SeqCst);
        TaskResult::Cancelled
    }
}

fn done(samples: Vec<Sample>) -> TaskResult {
    TaskResult::Done {
        samples,
        metrics: None,
        interactions: vec![],
        turn_rewards: TurnRewards::new(),
    }
}

#[async_trait]
impl Executor for FakeExecutor {
    fn alias(&self, _rollout: &RolloutId, _attempt: Attempt) -> Option<RolloutId> {
        None
    }

    async fn run(&self, job: RunJob, terms: Terms, cancel: &CancellationToken) -> TaskReport {
        let executed = Executed {
            rollout: job.rollout_id,
            attempt: terms.attempt,
            phase: Phase::Agent,
            isolation: terms.isolation,
            access: Some((job.chat_completions_url, job.api_key)),
            label: job.label,
        };
        let answer = || {
            done(vec![Sample {
                id: SampleId::main(),
                messages: JsonText::parse("[]").unwrap(),
                reward: None,
                remove_sample: false,
                metrics: None,
                extra_fields: None,
            }])
        };
        self.play(executed, terms.agent_limit, cancel, answer).await
    }

    async fn grade(&self, job: GradeJob, terms: Terms, cancel: &CancellationToken) -> GradeReport {
        let executed = Executed {
            rollout: job.rollout_id,
            attempt: terms.attempt,
            phase: Phase::Grade,
            isolation: terms.isolation,
            access: job.judge.map(|judge| (judge.base_url, judge.api_key)),
            label: job.label,
        };
        let samples = job.samples;
        let graded = samples.iter().map(|sample| Sample {
            reward: Some(Reward::new(1.0).unwrap()),
            ..sample.clone()
        });
        let graded = || done(graded.collect());
        let task = self.play(executed, terms.grade_limit, cancel, graded).await;
        GradeReport { task, samples }
    }
}
