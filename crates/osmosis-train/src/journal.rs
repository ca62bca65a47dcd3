//! The steps that are done: in the store, in `metrics.jsonl`, and in TensorBoard's files.

use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_core::{JsonText, PolicyVersion};
use osmosis_store::{StepRecord, Store};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::metrics_file::MetricsFile;
use crate::tensorboard::EventFile;
use crate::{StepReport, TrainError, clock, ending};

/// The store is the truth; the files are what people and tools read, and are made of it.
#[derive(Debug)]
pub(crate) struct Journal {
    store: Arc<dyn Store>,
    folder: Utf8PathBuf,
    records: Vec<StepRecord>,
    metrics: MetricsFile,
    tensorboard: Option<EventFile>,
    /// The newest step that an earlier process recorded.
    settled: u64,
}

impl Journal {
    /// Takes up the steps up to `step`. Later ones stay in the store until they are repeated.
    pub(crate) async fn open(
        store: Arc<dyn Store>,
        folder: Utf8PathBuf,
        step: u64,
        tensorboard: bool,
    ) -> Result<Self, TrainError> {
        ending::forget(&*store).await?;
        let mut records = store.steps().await?;
        let settled = records.last().map_or(0, |record| record.step);
        records.retain(|record| record.step <= step);
        Ok(Self {
            metrics: MetricsFile::rewrite(&folder, &records)?,
            tensorboard: if tensorboard {
                Some(EventFile::rewrite(&folder, &records)?)
            } else {
                None
            },
            store,
            folder,
            records,
            settled,
        })
    }

    pub(crate) fn records(&self) -> &[StepRecord] {
        &self.records
    }

    /// The newest step that an earlier process recorded, which may lie ahead.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// Makes the numbers of a step durable, in place of those it had.
    pub(crate) async fn record_report(&mut self, report: &StepReport) -> Result<(), TrainError> {
        let metrics = JsonText::of(report).map_err(internal)?;
        self.record(report.step, metrics).await
    }

    /// The same for numbers of another shape.
    pub(crate) async fn record(&mut self, step: u64, metrics: JsonText) -> Result<(), TrainError> {
        let record = StepRecord {
            step,
            version: PolicyVersion(step),
            metrics,
            finished_at_ms: clock::now_ms(),
        };
        self.store.record_step(record.clone()).await?;
        self.records.retain(|other| other.step < step);
        self.records.push(record);
        Ok(())
    }

    /// Adds the newest step to the files. Its numbers are complete.
    pub(crate) fn publish(&mut self) -> Result<(), TrainError> {
        if let Some(record) = self.records.last() {
            self.metrics.append(record)?;
            if let Some(tensorboard) = &mut self.tensorboard {
                tensorboard.append(record)?;
            }
        }
        Ok(())
    }

    /// Whether the newest step is `step`, and its numbers have this one.
    pub(crate) fn newest_has(&self, step: u64, name: &str) -> bool {
        let metrics = self.newest(step).map(|record| &record.metrics);
        metrics.is_some_and(|metrics| {
            let read = metrics.read::<Map<String, Value>>();
            read.is_ok_and(|metrics| metrics.contains_key(name))
        })
    }

    /// Whether any step so far has changed the weights.
    pub(crate) fn any_update(&self) -> bool {
        any_update(&self.records)
    }

    /// Whether the evaluation after `step` is recorded.
    pub(crate) fn evaluated(&self, step: u64) -> bool {
        self.newest_has(step, "eval/rollouts")
    }

    /// Adds an evaluation to a step that is published already, or to step 0, which has nothing else.
    pub(crate) async fn add_evaluation(
        &mut self,
        step: u64,
        report: &impl Serialize,
    ) -> Result<(), TrainError> {
        // Step 0 has nothing else, and may be evaluated again.
        let before = match self.newest(step).filter(|_| step > 0) {
            Some(record) => record.metrics.clone(),
            None => JsonText::of(&json!({"step": step, "version": step})).map_err(internal)?,
        };
        let evaluated = JsonText::of(report).map_err(internal)?;
        self.record(step, joined(&before, &evaluated)?).await?;
        self.metrics = MetricsFile::rewrite(&self.folder, &self.records)?;
        if self.tensorboard.is_some() {
            self.tensorboard = Some(EventFile::rewrite(&self.folder, &self.records)?);
        }
        Ok(())
    }

    fn newest(&self, step: u64) -> Option<&StepRecord> {
        self.records.last().filter(|record| record.step == step)
    }
}

/// Whether any of these steps has changed the weights.
pub fn any_update(steps: &[StepRecord]) -> bool {
    let mut steps = steps.iter().filter(|record| record.step > 0);
    steps.any(|record| {
        let read = record.metrics.read::<Map<String, Value>>();
        read.is_ok_and(|metrics| !metrics.contains_key("skipped"))
    })
}

/// One object of two, as text: numbers that are read and written again may come back with another last
/// digit.
pub(crate) fn joined(one: &JsonText, other: &JsonText) -> Result<JsonText, TrainError> {
    let text = match (
        one.as_str().strip_suffix('}'),
        other.as_str().strip_prefix('{'),
    ) {
        (Some(one), Some(other)) => format!("{one},{other}"),
        (_, _) => return Err(internal("the numbers of a step are no object")),
    };
    JsonText::parse(text).map_err(internal)
}

fn internal(error: impl std::fmt::Display) -> TrainError {
    TrainError::Internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_keeps_every_digit() {
        let one = JsonText::parse(r#"{"loss":-2.516433819654829e-8}"#).unwrap();
        let other = JsonText::parse(r#"{"eval/rollouts":2}"#).unwrap();
        let both = joined(&one, &other).unwrap();
        assert_eq!(
            both.as_str(),
            r#"{"loss":-2.516433819654829e-8,"eval/rollouts":2}"#
        );
    }
}
