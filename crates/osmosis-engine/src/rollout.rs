//! The way of one rollout: open its session, run the agent, grade, record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use osmosis_core::clock::now_ms;
use osmosis_core::execution::{GradeJob, RunJob, TaskReport, TaskResult, Terms, too_deep};
use osmosis_core::frame::JudgeAccess;
use osmosis_core::{Durations, JsonText, Outcome, Phase, Sample, TaskClock};
use osmosis_store::{CallSummary, Claim, Completion, CompletionReceipt, JudgeSummary};
use tokio_util::sync::CancellationToken;

use crate::attempts::Tried;
use crate::decision::{self, AfterAgent, AfterGrade, Again, Grades, Rules, without_grade};
use crate::driver::Parts;
use crate::own_grade::own_grade;
use crate::reading::Assigned;
use crate::sessions::{AgentSession, JudgeSession, Session, SessionCalls};
use crate::turns::{Turns, credited};
use crate::{EngineError, RunEvent};

/// Runs one claimed rollout to a durable result, or puts it back.
pub(crate) async fn execute(
    parts: &Parts,
    claim: Claim,
    cancel: &CancellationToken,
) -> Result<(), EngineError> {
    let claimed_at = Instant::now();
    let started_at_ms = now_ms();
    let row = parts.reading.read(&claim)?;
    let rules = parts.rules_for(&row);
    let artifacts_dir = clean_artifacts_dir(parts, &claim).await?;
    let mut attempt = AttemptRecord::begun_at(started_at_ms);

    let queued = claimed_at.elapsed();
    parts.enter(&claim, Phase::Agent, 0).await;
    let tried = tried(&claim);
    let terms = Terms {
        attempt: claim.attempt,
        isolation: tried.isolation(),
        agent_limit: rules.agent_limit,
        grade_limit: rules.grade_limit,
    };
    let alias = parts.executor.alias(&claim.id, claim.attempt);
    let clock = Arc::new(match alias {
        None => TaskClock::new(rules.agent_limit),
        Some(_) => TaskClock::kept_elsewhere(rules.agent_limit),
    });
    let measuring = &parts.options.measuring;
    let self_graded = parts.executor.self_graded();
    let session = parts.sessions.open(AgentSession {
        rollout: claim.id.clone(),
        attempt: claim.attempt,
        alias,
        greedy: measuring.is_greedy(claim.row_index, &claim.id),
        keeps_details: self_graded,
        clock: Arc::clone(&clock),
    });
    let whole = if self_graded {
        Some(row.for_own_grader().map_err(|error| EngineError::Row {
            row_index: claim.row_index,
            message: error.to_string(),
        })?)
    } else {
        None
    };
    let other = self_graded.then(|| parts.sessions.open_other(claim.id.clone(), claim.attempt));
    let job = RunJob {
        rollout_id: claim.id.clone(),
        prompt: row.prompt.clone(),
        label: row.label.clone(),
        metadata: row.metadata.clone(),
        chat_completions_url: session.url().to_owned(),
        api_key: session.key().to_owned(),
        artifacts_dir: artifacts_dir.clone(),
        row: whole,
        is_eval: measuring.is_eval(claim.row_index),
        clock: Some(clock),
        other_api_key: other.as_ref().map(|other| other.key().to_owned()),
    };
    let report = parts.executor.run(job, terms, cancel).await;
    let report = naming_endpoint(report, &*session);
    let through = session.end().await;
    if let Some(other) = other {
        other.end().await;
    }

    attempt.durations.queue = ms(queued + report.waited);
    attempt.durations.agent = ms(report.took);
    attempt.durations.model = ms(through.model_time);
    attempt.calls = through.summary;

    let timed_out = matches!(report.result, TaskResult::TimedOut);
    let fault = through.fault_behind(timed_out);
    let samples = match decision::after_agent(report.result, fault, tried, &rules) {
        AfterAgent::Grade {
            samples,
            metrics,
            interactions,
        } => {
            if let Some(failure) = too_deep(&samples, metrics.as_ref()) {
                let outcome = Outcome::AgentFailed { failure };
                return finish(parts, &claim, attempt, outcome, vec![]).await;
            }
            attempt.metrics = metrics;
            if self_graded {
                let (outcome, samples) =
                    own_grade(samples, interactions, &through, rules.pass_threshold);
                let outcome = decision::within_range(outcome, &samples, rules.reward_range);
                return finish(parts, &claim, attempt, outcome, samples).await;
            }
            bare(&claim, samples)
        }
        AfterAgent::Finish(outcome) => {
            return finish(parts, &claim, attempt, outcome, vec![]).await;
        }
        AfterAgent::Again(again) => {
            return try_again(parts, &claim, again, attempt, cancel).await;
        }
        AfterAgent::GiveBack => return give_back(parts, &claim, attempt, vec![]).await,
    };

    let grading = Grading {
        row: &row,
        artifacts_dir,
        terms,
        rules,
        turns: Some(Turns::of(&through.answers)),
    };
    match grade(parts, &claim, &grading, samples, &mut attempt, cancel).await {
        Graded::Finished { outcome, samples } => {
            finish(parts, &claim, attempt, outcome, samples).await
        }
        Graded::Again(again) => try_again(parts, &claim, again, attempt, cancel).await,
        Graded::Stopped { samples } => give_back(parts, &claim, attempt, samples).await,
    }
}

/// Errors of HTTP clients quote the address that was asked. Ours means nothing to whoever reads it.
fn naming_endpoint(report: TaskReport, session: &dyn Session) -> TaskReport {
    match session.endpoint() {
        Some(endpoint) => report.replacing(session.url(), endpoint),
        None => report,
    }
}

/// The samples as their grader gets them.
fn bare(claim: &Claim, samples: Vec<Sample>) -> Vec<Sample> {
    if samples
        .iter()
        .any(|sample| sample.reward.is_some() || sample.remove_sample)
    {
        tracing::debug!(rollout = %claim.id, "a sample came with a grade; only a grader's counts");
    }
    samples.into_iter().map(without_grade).collect()
}

/// What is known of an attempt before its outcome.
pub(crate) struct AttemptRecord {
    started_at_ms: i64,
    durations: Durations,
    calls: CallSummary,
    pub(crate) metrics: Option<JsonText>,
}

impl AttemptRecord {
    pub(crate) fn begun_now() -> Self {
        Self::begun_at(now_ms())
    }

    /// It waited for its turn until now.
    pub(crate) fn begins_now(&mut self) {
        self.started_at_ms = now_ms();
    }

    fn begun_at(started_at_ms: i64) -> Self {
        Self {
            started_at_ms,
            durations: Durations::default(),
            calls: CallSummary::default(),
            metrics: None,
        }
    }
}

pub(crate) struct Grading<'a> {
    pub(crate) row: &'a Assigned,
    pub(crate) artifacts_dir: Option<Utf8PathBuf>,
    pub(crate) terms: Terms,
    pub(crate) rules: Rules,
    /// `None` when they are not known.
    pub(crate) turns: Option<Turns>,
}

/// What grading came to.
pub(crate) enum Graded {
    Finished {
        outcome: Outcome,
        samples: Vec<Sample>,
    },
    /// Where the rollout ran it is lost: all of it runs again.
    Again(Again),
    /// The run is stopping.
    Stopped { samples: Vec<Sample> },
}

/// Grades until there is an outcome.
pub(crate) async fn grade(
    parts: &Parts,
    claim: &Claim,
    grading: &Grading<'_>,
    samples: Vec<Sample>,
    attempt: &mut AttemptRecord,
    cancel: &CancellationToken,
) -> Graded {
    let turns = grading.turns.as_ref();
    let mut so_far = Grades {
        failures: claim.failures,
        ..Grades::default()
    };
    loop {
        // What an agent did to its worker says nothing about its grader.
        let terms = Terms {
            isolation: so_far.tried().isolation(),
            ..grading.terms
        };
        let calls = attempt.calls.model_calls;
        parts.enter(claim, Phase::Grade, calls).await;
        let clock = Arc::new(TaskClock::new(terms.grade_limit));
        let judge = parts
            .sessions
            .open_judge(claim.id.clone(), claim.attempt, Arc::clone(&clock));
        let job = GradeJob {
            rollout_id: claim.id.clone(),
            label: grading.row.label.clone(),
            samples: samples.clone(),
            metadata: grading.row.metadata.clone(),
            artifacts_dir: grading.artifacts_dir.clone(),
            judge: judge.as_ref().map(access),
            clock: Some(clock),
            turns: turns
                .map(|turns| turns.counts(&samples))
                .unwrap_or_default(),
        };
        let mut report = parts.executor.grade(job, terms, cancel).await;
        if let Some(judge) = &judge {
            report.task = naming_endpoint(report.task, &*judge.session);
        }
        let asked = asked_through(judge).await;
        attempt.calls.judge.add(JudgeSummary {
            calls: asked.summary.model_calls,
            prompt_tokens: asked.summary.prompt_tokens,
            completion_tokens: asked.summary.completion_tokens,
        });
        attempt.durations.queue += ms(report.task.waited);
        attempt.durations.grade += ms(report.task.took);
        let timed_out = matches!(report.task.result, TaskResult::TimedOut);
        let after = decision::after_grade(
            credited(report.task.result, turns),
            report.samples,
            asked.fault_behind(timed_out),
            so_far,
            &grading.rules,
        );
        match after {
            AfterGrade::Finish {
                outcome,
                samples: graded,
            } => {
                return match too_deep(&graded, None) {
                    None => Graded::Finished {
                        outcome,
                        samples: graded,
                    },
                    Some(failure) => Graded::Finished {
                        outcome: Outcome::Ungraded { failure },
                        samples,
                    },
                };
            }
            AfterGrade::Again(again) => return Graded::Again(again),
            AfterGrade::Alone { reason } => {
                let wait = so_far.tried().wait_after_loss();
                so_far.losses += 1;
                parts.tell_of_grading_again(claim, reason).await;
                if !waited(wait, cancel).await {
                    return Graded::Stopped { samples };
                }
            }
            AfterGrade::Later { reason } => {
                let wait = decision::retry_wait(parts.options.retry_wait, so_far.faults);
                so_far.faults += 1;
                parts.tell_of_grading_again(claim, reason).await;
                if !waited(wait, cancel).await {
                    return Graded::Stopped { samples };
                }
            }
            AfterGrade::GiveBack => return Graded::Stopped { samples },
        }
    }
}

/// `false` when the run is stopped first.
async fn waited(wait: Duration, cancel: &CancellationToken) -> bool {
    tokio::select! {
        () = tokio::time::sleep(wait) => true,
        () = cancel.cancelled() => false,
    }
}

/// What was tried before this attempt, of what counts.
pub(crate) fn tried(claim: &Claim) -> Tried {
    Tried {
        losses: claim.losses,
        failures: claim.failures,
    }
}

/// How a grader reaches its judge.
fn access(judge: &JudgeSession) -> JudgeAccess {
    JudgeAccess {
        base_url: judge.session.url().to_owned(),
        api_key: judge.session.key().to_owned(),
        model: judge.model.clone(),
    }
}

/// Ends a grader's session, when it had one, and says what was asked through it.
async fn asked_through(judge: Option<JudgeSession>) -> SessionCalls {
    match judge {
        Some(judge) => judge.session.end().await,
        None => SessionCalls::default(),
    }
}

impl Parts {
    /// The limits of the run, unless the row has its own.
    pub(crate) fn rules_for(&self, row: &Assigned) -> Rules {
        Rules {
            agent_limit: row.agent_limit.unwrap_or(self.rules.agent_limit),
            grade_limit: row.grade_limit.unwrap_or(self.rules.grade_limit),
            ..self.rules
        }
    }

    async fn tell_of_grading_again(&self, claim: &Claim, reason: String) {
        let id = claim.id.clone();
        self.tell(RunEvent::GradingAgain { id, reason }).await;
    }

    async fn enter(&self, claim: &Claim, phase: Phase, calls: u64) {
        self.live.enters(&claim.id, phase);
        self.tell(RunEvent::PhaseBegan {
            id: claim.id.clone(),
            phase,
            calls,
        })
        .await;
    }
}

pub(crate) async fn finish(
    parts: &Parts,
    claim: &Claim,
    attempt: AttemptRecord,
    outcome: Outcome,
    samples: Vec<Sample>,
) -> Result<(), EngineError> {
    let outcome = outcome.map_failure(|failure| parts.options.redactor.clean_failure(failure));
    let completing = parts.store.complete(Completion {
        id: claim.id.clone(),
        attempt: claim.attempt,
        outcome: outcome.clone(),
        samples,
        metrics: attempt.metrics,
        durations: attempt.durations,
        calls: attempt.calls,
        started_at_ms: attempt.started_at_ms,
        finished_at_ms: now_ms(),
    });
    let receipt = parts.answered(completing).await?;
    parts.live.finished(&claim.id);
    match receipt {
        CompletionReceipt::Accepted => {
            parts
                .tell(RunEvent::Finished {
                    id: claim.id.clone(),
                    outcome,
                    durations: attempt.durations,
                    calls: attempt.calls,
                })
                .await;
        }
        CompletionReceipt::Fenced => {
            tracing::warn!(rollout = %claim.id, attempt = %claim.attempt, "a stale result was dropped");
        }
    }
    Ok(())
}

pub(crate) async fn try_again(
    parts: &Parts,
    claim: &Claim,
    again: Again,
    attempt: AttemptRecord,
    cancel: &CancellationToken,
) -> Result<(), EngineError> {
    // A lost worker is replaced soon; an upstream needs time to recover.
    let wait = if again.failed {
        decision::retry_wait(parts.options.retry_wait, claim.failures)
    } else {
        tried(claim).wait_after_loss()
    };
    parts
        .tell(RunEvent::Retrying {
            id: claim.id.clone(),
            attempt: claim.attempt,
            reason: again.reason,
            wait,
        })
        .await;
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = cancel.cancelled() => {}
    }
    if parts.live.is_cancelled(&claim.id) {
        return finish(parts, claim, attempt, Outcome::Cancelled, vec![]).await;
    }
    let releasing = parts
        .store
        .release(&claim.id, claim.attempt, again.lost, again.failed);
    parts.answered(releasing).await
}

/// What was cancelled by name has its result; what the run's end cuts short goes back to the queue.
pub(crate) async fn give_back(
    parts: &Parts,
    claim: &Claim,
    attempt: AttemptRecord,
    samples: Vec<Sample>,
) -> Result<(), EngineError> {
    if parts.live.is_cancelled(&claim.id) {
        return finish(parts, claim, attempt, Outcome::Cancelled, samples).await;
    }
    let releasing = parts.store.release(&claim.id, claim.attempt, false, false);
    parts.answered(releasing).await
}

/// The rollout's own folder, which the SDK makes when user code first asks for it. What an earlier
/// attempt left there goes: its result does not count, so its files must not either.
pub(crate) async fn clean_artifacts_dir(
    parts: &Parts,
    claim: &Claim,
) -> Result<Option<Utf8PathBuf>, EngineError> {
    let Some(root) = &parts.options.artifacts_root else {
        return Ok(None);
    };
    let path = root.join(claim.id.as_str());
    if claim.attempt.0 > 1 {
        match tokio::fs::remove_dir_all(&path).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(EngineError::Artifacts {
                    id: claim.id.clone(),
                    path,
                    message: error.to_string(),
                });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(Some(path))
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
