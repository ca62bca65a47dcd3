//! Held-out rows, evaluated with the weights as they stand.

use std::time::Instant;

use osmosis_engine::Stop;
use osmosis_store::{NewRollout, NewRow};
use tokio::sync::mpsc;

use crate::rollout_phase::RolloutPhase;
use crate::{EvaluationReport, TrainError, TrainEvent, TrainParts};

/// Evaluates after `step`; `None` when asked to stop before it was done.
pub(crate) async fn evaluate(
    parts: &TrainParts,
    step: u64,
    rows: Vec<NewRow>,
    rollouts: Vec<NewRollout>,
    settled: bool,
    stop: &Stop,
    events: &mpsc::Sender<TrainEvent>,
) -> Result<Option<EvaluationReport>, TrainError> {
    let began = Instant::now();
    let _ = events.send(TrainEvent::Evaluating { step }).await;
    let phase = RolloutPhase {
        name: format!("the evaluation after step {step}"),
        rows,
        rollouts,
        is_eval: true,
        settled,
    };
    let Some(results) = phase.run(parts, stop, events).await? else {
        return Ok(None);
    };
    let seconds = began.elapsed().as_secs_f64();
    let report = EvaluationReport::of(&results.rollouts, seconds, parts.engine.reward_range);
    let told = TrainEvent::Evaluated {
        step,
        report: Box::new(report.clone()),
    };
    let _ = events.send(told).await;
    Ok(Some(report))
}
