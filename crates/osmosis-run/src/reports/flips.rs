//! What another grader made of the same samples: every rollout whose grade is not what it was.

use std::collections::HashMap;
use std::io::{BufWriter, Write as _};

use camino::Utf8PathBuf;
use osmosis_core::{Outcome, OutcomeKind, Reward, RolloutId};
use osmosis_store::{RolloutPages, RolloutRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::{OrderedMap, suggested_command};
use crate::run_folder::RunFolder;
use crate::{RunError, io_error as io};

/// So many of each kind are kept, whatever came before; the file has all.
pub const MOST_OF_A_KIND: usize = 100;
/// So many are in the JSON of the report.
const MOST_IN_JSON: usize = 1000;

/// A fact that another grader has otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FactChange {
    pub before: Value,
    pub now: Value,
}

/// What differs from the source in how samples are graded, by the name of the fact.
pub type FactChanges = OrderedMap<FactChange>;

/// How a grade changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GradeChange {
    /// It passes now.
    Fixed,
    /// It passes no more.
    Broken,
    /// It passes as before, or does not, but with another reward or outcome.
    Other,
}

/// A line of `flips.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flip {
    pub row_index: u64,
    pub run_index: u32,
    pub rollout_id: RolloutId,
    pub change: GradeChange,
    pub before: Grade,
    pub after: Grade,
    /// The command that shows it.
    pub show: String,
}

/// What a rollout was worth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Grade {
    pub outcome: OutcomeKind,
    pub reward: Option<f64>,
    pub passed: bool,
}

impl Grade {
    fn of(outcome: &Outcome) -> Self {
        Self {
            outcome: outcome.kind(),
            reward: outcome.reward().map(Reward::get),
            passed: outcome.passed(),
        }
    }
}

/// The flips of a run, counted; the first of each kind, and all of them in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlipsReport {
    pub fixed: u64,
    pub broken: u64,
    pub other: u64,
    pub unchanged: u64,
    /// `flips.jsonl`, which has all of them.
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    /// Among those that changed: they had a reward and have none now.
    pub no_longer_scored: u64,
    /// The other way round.
    pub newly_scored: u64,
    /// The first thousand.
    #[serde(serialize_with = "first_of")]
    pub items: Vec<Flip>,
}

fn first_of<S: Serializer>(items: &[Flip], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(items.iter().take(MOST_IN_JSON))
}

impl FlipsReport {
    /// Compares what is done so far, rollout by rollout, and writes `flips.jsonl`. `before` is the store of
    /// the run whose samples were graded again.
    pub async fn write(
        before: &dyn Store,
        store: &dyn Store,
        folder: &RunFolder,
    ) -> Result<Self, RunError> {
        let mut flips = Self {
            fixed: 0,
            broken: 0,
            other: 0,
            unchanged: 0,
            path: folder.path.join("flips.jsonl"),
            no_longer_scored: 0,
            newly_scored: 0,
            items: vec![],
        };
        let temporary = folder.path.join("flips.jsonl.tmp");
        let file = std::fs::File::create(&temporary).map_err(|error| io(&temporary, &error))?;
        let mut file = BufWriter::new(file);
        let mut pages = RolloutPages::finished(store);
        while let Some(page) = pages.next().await? {
            let ids: Vec<RolloutId> = page.iter().map(|rollout| rollout.id.clone()).collect();
            let before = before.rollouts_by_id(&ids).await?;
            let before: HashMap<&RolloutId, &RolloutRecord> = before
                .iter()
                .map(|rollout| (&rollout.id, rollout))
                .collect();
            for rollout in &page {
                let was = before.get(&rollout.id).and_then(|was| was.outcome.as_ref());
                let (Some(was), Some(is)) = (was, rollout.outcome.as_ref()) else {
                    continue;
                };
                let Some(flip) = Flip::of(rollout, Grade::of(was), Grade::of(is), folder) else {
                    flips.unchanged += 1;
                    continue;
                };
                serde_json::to_writer(&mut file, &flip)
                    .map_err(std::io::Error::from)
                    .and_then(|()| file.write_all(b"\n"))
                    .map_err(|error| io(&temporary, &error))?;
                flips.count(flip);
            }
        }
        file.flush().map_err(|error| io(&temporary, &error))?;
        std::fs::rename(&temporary, &flips.path).map_err(|error| io(&flips.path, &error))?;
        Ok(flips)
    }

    fn count(&mut self, flip: Flip) {
        match (flip.before.reward, flip.after.reward) {
            (Some(_), None) => self.no_longer_scored += 1,
            (None, Some(_)) => self.newly_scored += 1,
            (Some(_), Some(_)) | (None, None) => {}
        }
        let count = match flip.change {
            GradeChange::Fixed => &mut self.fixed,
            GradeChange::Broken => &mut self.broken,
            GradeChange::Other => &mut self.other,
        };
        *count += 1;
        if *count <= MOST_OF_A_KIND as u64 || self.items.len() < MOST_IN_JSON {
            self.items.push(flip);
        }
    }
}

impl Flip {
    /// `None` where nothing changed.
    fn of(
        rollout: &RolloutRecord,
        before: Grade,
        after: Grade,
        folder: &RunFolder,
    ) -> Option<Self> {
        let change = match (before.passed, after.passed) {
            (false, true) => GradeChange::Fixed,
            (true, false) => GradeChange::Broken,
            (false, false) | (true, true) if before == after => return None,
            (false, false) | (true, true) => GradeChange::Other,
        };
        let run = folder.path.file_name().unwrap_or_default();
        let place = format!("{}.{}", rollout.row_index, rollout.run_index);
        Some(Self {
            row_index: rollout.row_index,
            run_index: rollout.run_index,
            rollout_id: rollout.id.clone(),
            change,
            before,
            after,
            show: suggested_command(&["eval", "show", run, &place], &folder.workspace()),
        })
    }
}
