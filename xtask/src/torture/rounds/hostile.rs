//! Agents that do their worst, beside others that do nothing wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use rand::RngExt as _;

use super::{LIMIT, Round, row_of};
use crate::torture::faults::{Deed, Victim};
use crate::torture::invariants::Invariant;
use crate::torture::process::told;

const INNOCENT: u32 = 10;
/// Attempts that a rollout gets at most.
const ATTEMPTS: i64 = 10;
/// What a run may write to `logs.txt` for each rollout, with room for its headings.
const LOG_BYTES: u64 = (1 << 20) + (64 << 10);

impl Round<'_> {
    pub(in crate::torture) fn hostile(&mut self) -> Result<()> {
        // Three deeds at a time, so that their effects can be told apart.
        let mut deeds = Deed::ALL.to_vec();
        while deeds.len() > 3 {
            deeds.swap_remove(self.random.random_range(0..deeds.len()));
        }
        let mut rows: Vec<(String, Option<Deed>)> =
            (0..INNOCENT).map(|_| ("say".to_owned(), None)).collect();
        for deed in &deeds {
            let at = self.random.random_range(0..=rows.len());
            rows.insert(at, (deed.word().to_owned(), Some(*deed)));
        }
        let of_rows = (0..).zip(&rows);
        self.deeds = of_rows
            .filter_map(|(number, (_, deed))| Some((number, (*deed)?)))
            .collect();
        let numbered = rows.iter().enumerate();
        self.workspace
            .rows(numbered.map(|(n, (word, _))| (format!("{word} {n}"), n.to_string())))?;
        let limits = "agent_workflow_timeout_s = 8\ngrader_timeout_s = 8";
        self.workspace
            .eval_config("script:policies/p.toml", limits)?;

        let mut engine = self.start(&mut self.workspace.eval(&["--workers", "2"]), Victim::Eval)?;
        let ended = engine.wait(LIMIT);
        let complete = ended.is_some_and(|status| status.success());
        self.check(Invariant::ResumeCompletes, complete, || {
            format!("with {deeds:?}: {}: {}", told(ended), engine.errors())
        });
        engine.end();
        let run = self.workspace.run_folder("evals");
        self.count_deeds(&run)?;
        if !complete {
            return Ok(());
        }
        let accepted = self.check_results(&run, rows.len(), &BTreeMap::new())?;
        let of_row = self.deeds.clone();
        let deed_of = |id: &str| row_of(id).and_then(|row| of_row.get(&row)).copied();
        let hurt: Vec<String> = accepted
            .iter()
            .filter(|(id, _)| deed_of(id).is_none())
            .filter(|(_, accepted)| accepted.outcome != "scored" || accepted.reward != Some(1.0))
            .map(|(id, accepted)| format!("{id}: {accepted:?}"))
            .collect();
        self.check(Invariant::InnocentScored, hurt.is_empty(), || {
            format!("beside {deeds:?}: {}", hurt.join("; "))
        });
        let spared: Vec<String> = accepted
            .iter()
            .filter_map(|(id, accepted)| Some((id, deed_of(id)?, accepted)))
            .filter(|(_, deed, accepted)| {
                let fits = match deed {
                    Deed::KillParent | Deed::KillSelf | Deed::Escape | Deed::Leak => {
                        accepted.outcome == "agent_failed"
                    }
                    Deed::Block => accepted.outcome == "timed_out",
                    Deed::Child | Deed::Daemon | Deed::Orphan | Deed::Print => {
                        accepted.outcome == "scored"
                    }
                    // As the program sees fit, if it says so.
                    Deed::Deep => accepted.outcome != "infrastructure_failed",
                };
                !fits || accepted.attempt > ATTEMPTS
            })
            .map(|(id, deed, accepted)| format!("{deed:?} {id}: {accepted:?}"))
            .collect();
        self.check(Invariant::CulpritFailed, spared.is_empty(), || {
            spared.join("; ")
        });
        let logs = std::fs::metadata(run.join("logs.txt")).map_or(0, |about| about.len());
        let most = LOG_BYTES * rows.len() as u64;
        self.check(Invariant::BoundedLogs, logs <= most, || {
            format!("{logs} bytes of {} rollouts", rows.len())
        });
        self.look_at_it()
    }

    /// Everything that shows a run on a terminal.
    fn look_at_it(&mut self) -> Result<()> {
        let submit = self.workspace.eval_arguments(&[]);
        let submit: Vec<&str> = submit.iter().map(String::as_str).collect();
        let export = ["export", "t", "--format", "messages", "--out", "exported"];
        let ways: [&[&str]; 6] = [
            &["eval", "info", "t"],
            &["eval", "show", "t"],
            &["eval", "logs", "t"],
            &["eval", "list"],
            &export,
            // Of a run that is complete: the report.
            &submit,
        ];
        for way in ways {
            let Some(mut command) = self.workspace.on_a_terminal(way) else {
                let why = "`script` is not installed".to_owned();
                self.table.skip("hostile output on a terminal", why);
                return Ok(());
            };
            let mut engine = self.start(&mut command, Victim::Eval)?;
            let ended = engine.wait(Duration::from_mins(1));
            self.check(Invariant::EndsWhenAsked, ended.is_some(), || {
                format!("`{}` {}", way.join(" "), told(ended))
            });
            let shown = engine.output();
            let found = Deed::ESCAPES.iter().find(|escape| shown.contains(**escape));
            self.check(Invariant::CleanTerminal, found.is_none(), || {
                format!("`{}` prints {found:?}", way.join(" "))
            });
        }
        Ok(())
    }
}
