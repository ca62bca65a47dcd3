//! Held-out rows, evaluated with the weights as they stand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use osmosis_core::JsonText;
use osmosis_engine::{Measuring, Stop};
use osmosis_store::{NewRollout, NewRow};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::rollout_phase::RolloutPhase;
use crate::{EvaluationReport, TrainError, TrainEvent, TrainParts};

/// An evaluation that is due.
#[derive(Debug)]
pub(crate) struct DueEvaluation<'a> {
    /// With the weights after this step.
    pub(crate) step: u64,
    pub(crate) held_out: &'a HeldOutSet,
    pub(crate) rollouts: Vec<NewRollout>,
    /// An earlier process completed it.
    pub(crate) settled: bool,
}

/// The rows that are never trained on.
#[derive(Debug, Clone)]
pub(crate) struct HeldOutSet {
    pub(crate) rows: Vec<NewRow>,
    /// Their indices.
    pub(crate) indices: Arc<BTreeSet<u64>>,
    /// Those of them whose phrasing is never trained on either.
    pub(crate) unseen: BTreeSet<u64>,
}

impl HeldOutSet {
    pub(crate) fn new(rows: Vec<NewRow>) -> Self {
        let unseen = rows.iter().filter(|row| is_unseen_phrasing(&row.body));
        Self {
            unseen: unseen.map(|row| row.row_index).collect(),
            indices: Arc::new(rows.iter().map(|row| row.row_index).collect()),
            rows,
        }
    }
}

impl DueEvaluation<'_> {
    /// `None` when asked to stop before it was done.
    pub(crate) async fn run(
        self,
        parts: &TrainParts,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<Option<EvaluationReport>, TrainError> {
        let began = Instant::now();
        let step = self.step;
        let _ = events.send(TrainEvent::Evaluating { step }).await;
        let phase = RolloutPhase {
            name: format!("the evaluation after step {step}"),
            rows: self.held_out.rows.clone(),
            rollouts: self.rollouts,
            measuring: Measuring::Rows(Arc::clone(&self.held_out.indices)),
            settled: self.settled,
        };
        let Some(results) = phase.run(parts, stop, events).await? else {
            return Ok(None);
        };
        let seconds = began.elapsed().as_secs_f64();
        let range = parts.engine.reward_range;
        let report = EvaluationReport::of(&results.rollouts, &self.held_out.unseen, seconds, range);
        let told = TrainEvent::Evaluated {
            step,
            report: Box::new(report.clone()),
        };
        let _ = events.send(told).await;
        Ok(Some(report))
    }
}

/// Whether a dataset row says that its phrasing is never trained on: `"unseen_phrasing": true` in its
/// `metadata`, an object or a text that holds one.
pub fn is_unseen_phrasing(row: &JsonText) -> bool {
    let Ok(row) = row.read::<Map<String, Value>>() else {
        return false;
    };
    let says =
        |metadata: &Map<String, Value>| metadata.get("unseen_phrasing") == Some(&Value::Bool(true));
    match row.get("metadata") {
        Some(Value::Object(metadata)) => says(metadata),
        Some(Value::String(text)) => {
            serde_json::from_str::<Map<String, Value>>(text).is_ok_and(|metadata| says(&metadata))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_an_unseen_phrasing_says_so_in_its_metadata() {
        let check = |row: &str, expected: bool| {
            assert_eq!(
                is_unseen_phrasing(&JsonText::parse(row).unwrap()),
                expected,
                "{row}"
            );
        };
        check(r#"{"metadata": {"unseen_phrasing": true}}"#, true);
        check(r#"{"metadata": "{\"unseen_phrasing\": true}"}"#, true);
        check(r#"{"metadata": {"unseen_phrasing": false}}"#, false);
        check(r#"{"metadata": {"unseen_phrasing": "true"}}"#, false);
        check(r#"{"metadata": "unseen_phrasing"}"#, false);
        check(r#"{"unseen_phrasing": true}"#, false);
        check(r#"{"user_prompt": "x"}"#, false);
    }
}
