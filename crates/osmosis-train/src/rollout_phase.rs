//! Rollouts of one step or one evaluation, from the queue to their results.

use std::time::{Duration, Instant};

use osmosis_core::{OutcomeKind, RolloutId};
use osmosis_engine::{Engine, EngineOptions, Measuring, Stop};
use osmosis_store::{NewRollout, NewRow, RolloutRecord};
use tokio::sync::mpsc;

use crate::phase_clock::PhaseClock;
use crate::{TrainError, TrainEvent, TrainParts};

/// Events that may wait between the engine and whoever listens.
const EVENTS_WAITING: usize = 256;

/// What to run.
#[derive(Debug)]
pub(crate) struct RolloutPhase {
    /// For messages: `step 3`.
    pub(crate) name: String,
    pub(crate) rows: Vec<NewRow>,
    pub(crate) rollouts: Vec<NewRollout>,
    /// Of which nothing is learned.
    pub(crate) measuring: Measuring,
    /// The phase was completed by an earlier process, and what came after it depends on its results as
    /// they are.
    pub(crate) settled: bool,
}

/// The results, in the order of the rollouts.
#[derive(Debug)]
pub(crate) struct PhaseResults {
    pub(crate) rollouts: Vec<RolloutRecord>,
    pub(crate) rollout_time: Duration,
    pub(crate) grade_time: Duration,
    /// `None` when all results were there already.
    pub(crate) tokens_per_second: Option<f64>,
}

impl PhaseResults {
    /// Adds what ran after it.
    pub(crate) fn extend(&mut self, more: Self) {
        let seconds = |one: &Self| (one.rollout_time + one.grade_time).as_secs_f64();
        let tokens = |one: &Self| one.tokens_per_second.map(|rate| rate * seconds(one));
        self.tokens_per_second = match (tokens(self), tokens(&more)) {
            (None, None) => None,
            (before, after) => {
                let tokens = before.unwrap_or(0.0) + after.unwrap_or(0.0);
                Some(tokens / (seconds(self) + seconds(&more)))
            }
        };
        self.rollouts.extend(more.rollouts);
        self.rollout_time += more.rollout_time;
        self.grade_time += more.grade_time;
    }
}

impl RolloutPhase {
    /// Runs what has no result yet; `None` when asked to stop before all of them had one.
    ///
    /// The engine drains the whole queue, so it must only be started when nothing but this phase is in
    /// it. That holds: a phase is queued after all earlier ones are complete, and one whose results are
    /// all there is not run.
    pub(crate) async fn run(
        self,
        parts: &TrainParts,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<Option<PhaseResults>, TrainError> {
        let ids: Vec<RolloutId> = self.rollouts.iter().map(|r| r.id.clone()).collect();
        let store = &parts.store;
        let known = store.rollouts_by_id(&ids).await?;
        if !self.settled {
            retry_failed(parts, &known).await?;
        }
        let mut rollouts = store.rollouts_by_id(&ids).await?;
        let mut clock = PhaseClock::default();
        let mut tokens_per_second = None;
        if !all_finished(&rollouts, &ids) {
            if stop_requested(stop) {
                return Ok(None);
            }
            let _open = parts.open_to_nodes();
            store.enqueue(self.rows, self.rollouts).await?;
            let before = parts.sampler.sampled_tokens();
            clock = drive(parts, self.measuring, stop, events).await?;
            let sampled = parts.sampler.sampled_tokens() - before;
            let seconds = (clock.rollout + clock.grade).as_secs_f64();
            tokens_per_second = (seconds > 0.0).then(|| sampled as f64 / seconds);
            rollouts = store.rollouts_by_id(&ids).await?;
        }
        if !all_finished(&rollouts, &ids) {
            if stop_requested(stop) {
                return Ok(None);
            }
            return Err(TrainError::Internal(format!(
                "the engine left rollouts of {} without a result",
                self.name
            )));
        }
        refuse_nothing(&self.name, &rollouts)?;
        Ok(Some(PhaseResults {
            rollouts,
            rollout_time: clock.rollout,
            grade_time: clock.grade,
            tokens_per_second,
        }))
    }
}

pub(crate) fn stop_requested(stop: &Stop) -> bool {
    stop.drain.is_cancelled() || stop.now.is_cancelled()
}

fn all_finished(rollouts: &[RolloutRecord], ids: &[RolloutId]) -> bool {
    rollouts.len() == ids.len() && rollouts.iter().all(|rollout| rollout.outcome.is_some())
}

fn failed(rollout: &RolloutRecord) -> bool {
    let kind = rollout.outcome.as_ref().map(osmosis_core::Outcome::kind);
    kind == Some(OutcomeKind::InfrastructureFailed)
}

/// Gives rollouts that an earlier process could not run another chance. Those of steps that are done
/// stay as they are: the weights after them depend on it.
async fn retry_failed(parts: &TrainParts, known: &[RolloutRecord]) -> Result<(), TrainError> {
    let ours = known.iter().filter(|rollout| failed(rollout)).count() as u64;
    if ours == 0 {
        return Ok(());
    }
    let tally = parts.store.tally().await?;
    let all: u64 = tally
        .iter()
        .filter(|tally| tally.kind == OutcomeKind::InfrastructureFailed)
        .map(|tally| tally.rollouts)
        .sum();
    if all == ours {
        parts
            .store
            .requeue(&[OutcomeKind::InfrastructureFailed])
            .await?;
    } else {
        tracing::warn!(
            rollouts = ours,
            "rollouts that failed are not tried again, because earlier steps have such too"
        );
    }
    Ok(())
}

async fn drive(
    parts: &TrainParts,
    measuring: Measuring,
    stop: &Stop,
    events: &mpsc::Sender<TrainEvent>,
) -> Result<PhaseClock, TrainError> {
    let (sender, mut told) = mpsc::channel(EVENTS_WAITING);
    let options = EngineOptions {
        measuring,
        ..parts.engine.clone()
    };
    let engine = Engine::new(
        parts.store.clone(),
        parts.sessions.clone(),
        parts.executor.clone(),
        options,
        sender,
    );
    let began = Instant::now();
    let mut clock = PhaseClock::default();
    let running = async move { engine.run(stop).await };
    let listening = async {
        while let Some(event) = told.recv().await {
            clock.note(&event, began.elapsed());
            // Nobody listens any more: the display is gone, the run is not.
            let _ = events.send(TrainEvent::Rollout(event)).await;
        }
    };
    let (ended, ()) = tokio::join!(running, listening);
    ended?;
    clock.advance(began.elapsed());
    Ok(clock)
}

/// A phase in which nothing ran says nothing, and the next one would not be better.
pub(crate) fn refuse_nothing(name: &str, rollouts: &[RolloutRecord]) -> Result<(), TrainError> {
    let mut outcomes = rollouts
        .iter()
        .filter_map(|rollout| rollout.outcome.as_ref());
    if rollouts.is_empty() || outcomes.clone().any(|outcome| outcome.kind().ran()) {
        return Ok(());
    }
    Err(TrainError::NothingRan {
        phase: name.to_owned(),
        rollouts: rollouts.len(),
        message: outcomes
            .find_map(osmosis_core::Outcome::explanation)
            .unwrap_or_else(|| "they were cancelled".to_owned()),
    })
}
