//! What trackers are told: points with a step and numbers by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use osmosis_core::OutcomeKind;
use osmosis_core::clock::now_ms;
use osmosis_store::{RunKind, Store, StoreError};
use serde_json::{Map, Value};

/// Numbers at one place of the axis: rollouts that are done, or steps of training.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) step: u64,
    /// Milliseconds since 1970.
    pub(super) at_ms: i64,
    pub(super) numbers: BTreeMap<String, f64>,
}

/// Where the numbers come from.
#[derive(Debug)]
pub(super) struct Source {
    kind: RunKind,
    store: Arc<dyn Store>,
    /// The last step that was told.
    told: Option<u64>,
}

impl Source {
    pub(super) fn new(kind: RunKind, store: Arc<dyn Store>) -> Self {
        Self {
            kind,
            store,
            told: None,
        }
    }

    /// What has come since the last time.
    pub(super) async fn new_points(&mut self) -> Result<Vec<Point>, StoreError> {
        let mut points = match self.kind {
            RunKind::Training => self.steps().await?,
            RunKind::Evaluation | RunKind::Serving => vec![self.so_far().await?],
        };
        points.retain(|point| self.told.is_none_or(|told| point.step > told));
        if let Some(last) = points.last() {
            self.told = Some(last.step);
        }
        Ok(points)
    }

    /// What is left to tell when the run has ended; `metrics` are the run's own.
    pub(super) async fn last_points(&mut self, metrics: &Value) -> Result<Vec<Point>, StoreError> {
        match self.kind {
            RunKind::Training => self.new_points().await,
            RunKind::Evaluation | RunKind::Serving => {
                let mut last = self.so_far().await?;
                last.numbers = flat(metrics);
                // Trackers refuse to go back; the last numbers stand where the run ended.
                last.step = last.step.max(self.told.unwrap_or(0));
                Ok(vec![last])
            }
        }
    }

    async fn steps(&self) -> Result<Vec<Point>, StoreError> {
        let steps = self.store.steps().await?.into_iter();
        Ok(steps
            .map(|step| {
                let metrics: Value = step.metrics.read().unwrap_or_default();
                let mut numbers = flat(&metrics);
                numbers.remove("step");
                Point {
                    step: step.step,
                    at_ms: step.finished_at_ms,
                    numbers,
                }
            })
            .collect())
    }

    /// The numbers of an evaluation so far, under the names that they have in `metrics.json`.
    async fn so_far(&self) -> Result<Point, StoreError> {
        let (mut done, mut ran, mut passed, mut scored) = (0, 0, 0, 0);
        let (mut reward_sum, mut calls, mut prompt, mut completion) = (0.0, 0, 0, 0);
        for tally in self.store.tally().await? {
            done += tally.rollouts;
            passed += tally.passed;
            reward_sum += tally.reward_sum;
            if tally.kind.ran() {
                ran += tally.rollouts;
            }
            if tally.kind == OutcomeKind::Scored {
                scored += tally.rollouts;
            }
            calls += tally.calls.model_calls;
            prompt += tally.calls.prompt_tokens;
            completion += tally.calls.completion_tokens;
        }
        let mut numbers = BTreeMap::from([
            ("rollouts".to_owned(), done as f64),
            ("model_calls".to_owned(), calls as f64),
            ("prompt_tokens".to_owned(), prompt as f64),
            ("completion_tokens".to_owned(), completion as f64),
        ]);
        if ran > 0 {
            numbers.insert("pass_rate".to_owned(), passed as f64 / ran as f64);
        }
        if scored > 0 {
            numbers.insert("reward/mean".to_owned(), reward_sum / scored as f64);
        }
        Ok(Point {
            step: done,
            at_ms: now_ms(),
            numbers,
        })
    }
}

/// The numbers in a document, named by their path: `reward/mean`. An interval `[low, high]` becomes two.
pub(super) fn flat(document: &Value) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    if let Value::Object(fields) = document {
        put(&mut numbers, "", fields);
    }
    numbers
}

fn put(numbers: &mut BTreeMap<String, f64>, path: &str, fields: &Map<String, Value>) {
    for (name, value) in fields {
        let name = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}/{name}")
        };
        match value {
            Value::Number(number) => {
                numbers.extend(number.as_f64().map(|number| (name, number)));
            }
            Value::Object(fields) => put(numbers, &name, fields),
            Value::Array(pair) => {
                if let [low, high] = pair.as_slice()
                    && let Some((low, high)) = low.as_f64().zip(high.as_f64())
                {
                    numbers.insert(format!("{name}/low"), low);
                    numbers.insert(format!("{name}/high"), high);
                }
            }
            Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_named_by_their_path() {
        let metrics = json!({
            "run_name": "t", "pass_rate": 0.5, "pass_rate_ci95": [0.25, 0.75],
            "reward": {"mean": 1, "ci95": null}, "pass_at_k": {"1": 0.5}, "resumed": false,
            "failures": [{"count": 1}, {"count": 2}],
        });
        let expected = [
            ("pass_at_k/1", 0.5),
            ("pass_rate", 0.5),
            ("pass_rate_ci95/high", 0.75),
            ("pass_rate_ci95/low", 0.25),
            ("reward/mean", 1.0),
        ];
        let expected = expected.map(|(name, number)| (name.to_owned(), number));
        assert_eq!(flat(&metrics), BTreeMap::from(expected));
    }
}
