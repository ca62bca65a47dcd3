//! What another grader made of the same samples: every rollout whose grade is not what it was.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufWriter, Write as _};

use camino::Utf8PathBuf;
use osmosis_core::{Outcome, RolloutId, RunName};
use osmosis_run::{RunError, io_error as io};
use osmosis_store::{RolloutPages, RolloutRecord, Store};
use owo_colors::Style;
use serde::Serialize;
use serde_json::{Value, json};

use crate::command_line;
use crate::figures::{number, thousands};
use crate::output::paint;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;
use osmosis_run::regrade::source::Source;

/// So many of each kind are printed; the file has all.
const MOST_PRINTED: usize = 100;
/// So many are in the JSON of the command.
const MOST_IN_JSON: usize = 1000;

/// How a grade changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    /// It passes now.
    Fixed,
    /// It passes no more.
    Broken,
    /// It passes as before, or does not, but with another reward or outcome.
    Other,
}

#[derive(Debug, Serialize)]
struct Flip {
    row_index: u64,
    run_index: u32,
    rollout_id: RolloutId,
    change: Change,
    before: Grade,
    after: Grade,
    /// The command that shows it.
    show: String,
}

/// What a rollout was worth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Grade {
    outcome: &'static str,
    reward: Option<f64>,
    passed: bool,
}

impl Grade {
    fn of(outcome: &Outcome) -> Self {
        Self {
            outcome: outcome.kind().as_str(),
            reward: outcome.reward().map(osmosis_core::Reward::get),
            passed: outcome.passed(),
        }
    }

    fn text(&self) -> String {
        match self.reward {
            Some(reward) => number(reward),
            None => self.outcome.replace('_', " "),
        }
    }
}

/// The flips of a run, counted; the first of each kind, and all of them in a file.
#[derive(Debug)]
pub(super) struct Flips {
    path: Utf8PathBuf,
    fixed: u64,
    broken: u64,
    other: u64,
    unchanged: u64,
    /// Among those that changed: they had a reward and have none now, or the other way round.
    no_longer_scored: u64,
    newly_scored: u64,
    first: Vec<Flip>,
}

impl Flips {
    /// Compares what is done so far, rollout by rollout, and writes `flips.jsonl`.
    pub(super) async fn write(
        source: &Source,
        store: &dyn Store,
        folder: &RunFolder,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let path = folder.path.join("flips.jsonl");
        let temporary = folder.path.join("flips.jsonl.tmp");
        let file = std::fs::File::create(&temporary).map_err(|error| io(&temporary, &error))?;
        let mut file = BufWriter::new(file);
        let mut flips = Self {
            path,
            fixed: 0,
            broken: 0,
            other: 0,
            unchanged: 0,
            no_longer_scored: 0,
            newly_scored: 0,
            first: vec![],
        };
        let run = folder.path.file_name().unwrap_or_default();
        let mut pages = RolloutPages::finished(store);
        while let Some(page) = pages.next().await? {
            let ids: Vec<RolloutId> = page.iter().map(|rollout| rollout.id.clone()).collect();
            let before = source.store.rollouts_by_id(&ids).await?;
            let before: HashMap<&RolloutId, &RolloutRecord> = before
                .iter()
                .map(|rollout| (&rollout.id, rollout))
                .collect();
            for rollout in &page {
                let was = before.get(&rollout.id).and_then(|was| was.outcome.as_ref());
                let (Some(was), Some(is)) = (was, rollout.outcome.as_ref()) else {
                    continue;
                };
                let place = format!("{}.{}", rollout.row_index, rollout.run_index);
                let show = || command_line::suggest(&["eval", "show", run, &place], workspace);
                let Some(flip) = flip(rollout, Grade::of(was), Grade::of(is), show) else {
                    flips.unchanged += 1;
                    continue;
                };
                serde_json::to_writer(&mut file, &flip)
                    .map_err(std::io::Error::from)
                    .and_then(|()| file.write_all(b"\n"))
                    .map_err(|error| io(&temporary, &error))?;
                flips.note(flip);
            }
        }
        file.flush().map_err(|error| io(&temporary, &error))?;
        std::fs::rename(&temporary, &flips.path).map_err(|error| io(&flips.path, &error))?;
        Ok(flips)
    }

    fn note(&mut self, flip: Flip) {
        match (flip.before.reward, flip.after.reward) {
            (Some(_), None) => self.no_longer_scored += 1,
            (None, Some(_)) => self.newly_scored += 1,
            (Some(_), Some(_)) | (None, None) => {}
        }
        let count = match flip.change {
            Change::Fixed => &mut self.fixed,
            Change::Broken => &mut self.broken,
            Change::Other => &mut self.other,
        };
        *count += 1;
        if *count <= MOST_PRINTED as u64 || self.first.len() < MOST_IN_JSON {
            self.first.push(flip);
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "fixed": self.fixed, "broken": self.broken, "other": self.other,
            "unchanged": self.unchanged, "path": self.path,
            "no_longer_scored": self.no_longer_scored, "newly_scored": self.newly_scored,
            "items": self.first.iter().take(MOST_IN_JSON).collect::<Vec<_>>(),
        })
    }

    pub(super) fn render(&self, source: &RunName) -> String {
        let mut text = format!(
            "\n{}  {} fixed · {} broken · {} with another reward or outcome · {} as in `{source}`\n",
            paint("flips", Style::new().bold()),
            thousands(self.fixed),
            thousands(self.broken),
            thousands(self.other),
            thousands(self.unchanged),
        );
        if self.no_longer_scored + self.newly_scored > 0 {
            let _ = writeln!(
                text,
                "  of these, {} no longer have a reward and {} have one now: the mean rewards of the two runs are \
                 over different rollouts",
                thousands(self.no_longer_scored),
                thousands(self.newly_scored),
            );
        }
        for (change, name, count) in [
            (Change::Fixed, "fixed", self.fixed),
            (Change::Broken, "broken", self.broken),
            (Change::Other, "changed", self.other),
        ] {
            let these = self.first.iter().filter(|flip| flip.change == change);
            for flip in these.take(MOST_PRINTED) {
                let place = format!("{}.{}", flip.row_index, flip.run_index);
                let grades = format!("{} → {}", flip.before.text(), flip.after.text());
                let _ = writeln!(
                    text,
                    "  {name:<8} {place:<8} {grades:<22} {}",
                    paint(&flip.show, Style::new().dimmed())
                );
            }
            if count > MOST_PRINTED as u64 {
                let _ = writeln!(
                    text,
                    "  and {} more {name}",
                    thousands(count - MOST_PRINTED as u64)
                );
            }
        }
        let _ = write!(text, "  all of them  {}", self.path);
        text
    }
}

fn flip(
    rollout: &RolloutRecord,
    before: Grade,
    after: Grade,
    show: impl FnOnce() -> String,
) -> Option<Flip> {
    let change = match (before.passed, after.passed) {
        (false, true) => Change::Fixed,
        (true, false) => Change::Broken,
        (false, false) | (true, true) if before == after => return None,
        (false, false) | (true, true) => Change::Other,
    };
    Some(Flip {
        row_index: rollout.row_index,
        run_index: rollout.run_index,
        rollout_id: rollout.id.clone(),
        change,
        before,
        after,
        show: show(),
    })
}
