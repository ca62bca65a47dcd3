//! `inspect`: a log of Inspect (`inspect-ai`) in its `.eval` form, a zip archive with an entry for each
//! sample. A rollout is a sample of Inspect, its row the id, its run the epoch.

mod sample;
mod transcript;
mod zip;

use std::io::{self, BufWriter, Write as _};

use camino::Utf8Path;
use osmosis_core::Redactor;
use serde_json::{Map, Value, json};

use self::sample::Tally;
use self::zip::{Entry, Zip};
use super::ExportRecord;
use super::line::rfc_3339;
use super::lines::clean;
use super::talk::{RunFacts, SampleTalk};
use super::target::Target;
use crate::DataError;

/// Of the log's form.
const VERSION: u64 = 2;

/// A log that is being written. Holds one rollout at a time, and the compressed list of all.
#[derive(Debug)]
pub struct InspectExport {
    zip: Zip<BufWriter<Target>>,
    summaries: Entry,
    tally: Tally,
    redactor: Redactor,
}

impl InspectExport {
    /// Starts a file that gets its name when it is finished.
    pub fn create(path: &Utf8Path, run: &RunFacts, redactor: Redactor) -> Result<Self, DataError> {
        let writer = BufWriter::with_capacity(1 << 16, Target::create(path)?);
        let mut export = Self {
            zip: Zip::new(writer),
            summaries: Entry::new(),
            tally: Tally::default(),
            redactor,
        };
        let start = json!({"version": VERSION, "eval": spec(run, None), "plan": plan()});
        let written = export.document("_journal/start.json", &start);
        written.map_err(|error| export.failed(error))?;
        Ok(export)
    }

    pub fn write(
        &mut self,
        run: &RunFacts,
        record: &ExportRecord,
        samples: &[SampleTalk],
    ) -> Result<(), DataError> {
        let sample = sample::sample(run, record, samples);
        let summary = sample::summary(&sample);
        self.tally.count(record, &sample);
        let name = format!(
            "samples/{}_epoch_{}.json",
            record.row_index,
            u64::from(record.run_index) + 1
        );
        let written = self
            .document(&name, &sample)
            .and_then(|()| self.summarise(&summary));
        written.map_err(|error| self.failed(error))
    }

    /// Ends the file and gives it its name. Returns how many rollouts it holds.
    pub fn finish(mut self, run: &RunFacts) -> Result<u64, DataError> {
        let to = self.zip.target().get_ref().name().to_owned();
        let rollouts = self.tally.rollouts;
        let header = json!({
            "version": VERSION,
            "status": if run.finished { "success" } else { "cancelled" },
            "eval": spec(run, Some(self.tally.rows)),
            "plan": plan(),
            "results": self.tally.results(),
            "stats": {
                "started_at": rfc_3339(run.created_at_ms).unwrap_or_default(),
                "completed_at": run.finished_at_ms.and_then(rfc_3339).unwrap_or_default(),
                "model_usage": self.tally.model_usage(),
            },
        });
        let mut end = || {
            let last: &[u8] = if rollouts == 0 { b"[]" } else { b"]" };
            self.summaries.push(last)?;
            let summaries = std::mem::replace(&mut self.summaries, Entry::new());
            self.zip.add("summaries.json", summaries)?;
            let text = clean(&self.redactor, &header)?;
            self.zip.add_bytes("header.json", text.as_str().as_bytes())
        };
        end()
            .and_then(|()| self.zip.finish())
            .and_then(|mut writer| {
                writer.flush()?;
                let target = writer
                    .into_inner()
                    .map_err(io::IntoInnerError::into_error)?;
                target.commit()
            })
            .map_err(|error| DataError::Unwritable { to, error })?;
        Ok(rollouts)
    }

    fn document(&mut self, name: &str, document: &Value) -> io::Result<()> {
        let text = clean(&self.redactor, document)?;
        self.zip.add_bytes(name, text.as_str().as_bytes())
    }

    fn summarise(&mut self, summary: &Value) -> io::Result<()> {
        let text = clean(&self.redactor, summary)?;
        let before: &[u8] = if self.tally.rollouts == 1 { b"[" } else { b"," };
        self.summaries.push(before)?;
        self.summaries.push(text.as_str().as_bytes())
    }

    fn failed(&self, error: io::Error) -> DataError {
        DataError::Unwritable {
            to: self.zip.target().get_ref().name().to_owned(),
            error,
        }
    }
}

fn spec(run: &RunFacts, rows: Option<u64>) -> Value {
    let mut dataset = json!({"name": run.dataset});
    if let Some(rows) = rows {
        dataset["samples"] = json!(rows);
    }
    json!({
        "eval_id": run.name,
        "run_id": run.name,
        "created": rfc_3339(run.created_at_ms).unwrap_or_default(),
        "task": run.rollout,
        "task_id": run.name,
        "task_version": 0,
        "task_attribs": {},
        "task_args": {},
        "dataset": dataset,
        "model": run.model,
        "model_args": {},
        "config": {"epochs": run.n},
        "packages": {"osmosis": run.version},
        "metadata": {"run_name": run.name},
    })
}

fn plan() -> Value {
    json!({"name": "plan", "steps": [], "config": Value::Object(Map::new())})
}
