//! Everything about a regrade that can be checked before any process is started.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;
use osmosis_core::config::{ConfigSource, EvalConfig};
use osmosis_core::row_selection::RowSelection;
use osmosis_store::{NewRollout, NewRow, RolloutPages, RolloutRecord, Store};
use serde_json::{Map, Value};

use super::source::Source;
use crate::judge::ReadyJudge;
use crate::notices::Notices;
use crate::reports::{FactChange, FactChanges};
use crate::runs::{Pinned, RegradedFrom, Remembered};
use crate::user_code::{PassedOn, UserCode};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// What the user asked for, now or when the run was begun.
#[derive(Debug)]
pub struct RegradeRequest {
    pub config: ConfigSource,
    pub rows: Option<String>,
    pub secrets_file: Option<Utf8PathBuf>,
    pub seed: u64,
}

/// A checked regrade.
#[derive(Debug)]
pub struct RegradePlan {
    pub workspace: Workspace,
    pub source: Source,
    pub asked: RegradeRequest,
    pub config: EvalConfig,
    /// The config with what is set beside it.
    pub config_text: String,
    pub code: UserCode,
    pub judge: Option<ReadyJudge>,
    selection: Option<RowSelection>,
    /// Rollouts of the source that take part: those with a result, of the rows asked for.
    pub rollouts: u64,
    /// Rollouts of the source that have no result.
    unfinished: u64,
}

/// Facts that a config can't change any more.
const FACTS_OF_THE_SAMPLES: &[&str] = &[
    "experiment.model_path",
    "experiment.dataset",
    "evaluation.n",
];

impl RegradePlan {
    pub async fn check(
        asked: RegradeRequest,
        workspace: Workspace,
        source: Source,
    ) -> Result<Self, RunError> {
        let config = EvalConfig::of(&asked.config)?;
        let config_text = asked.config.effective_text()?;
        let selection = match &asked.rows {
            Some(text) => Some(text.parse::<RowSelection>().map_err(|error| {
                RunError::usage(RunErrorKind::Usage, format!("--rows: {error}")).hint(error.hint())
            })?),
            None => None,
        };
        let passed_on = PassedOn::from(&config);
        let secrets = asked.secrets_file.as_deref();
        let code = UserCode::check(&workspace, &config.experiment, passed_on, secrets).map_err(
            |error| {
                match source.pinned.server.as_deref() {
                Some(server) if error.kind() == RunErrorKind::RolloutNotFound => error.hint(format!(
                    "the run was graded at {server}; to grade it here, the rollout must be in this \
                     workspace"
                )),
                Some(_) | None => error,
            }
            },
        )?;
        let judge_model = config.judge_model.as_ref();
        let judge = ReadyJudge::open(judge_model, asked.seed, &workspace, None).await?;
        let counts = source.store.counts().await?;
        let mut plan = Self {
            rollouts: counts.done,
            unfinished: counts.queued + counts.leased,
            workspace,
            source,
            asked,
            config,
            config_text,
            code,
            judge,
            selection,
        };
        if plan.selection.is_some() {
            plan.rollouts = plan.count().await?;
        }
        if plan.rollouts == 0 {
            let run = &plan.source.record.name;
            return Err(RunError::failed(
                RunErrorKind::NothingToGrade,
                format!("run `{run}` has no rollout with a result to grade"),
            )
            .maybe_hint(
                plan.asked.rows.as_ref().map(|rows| {
                    format!("of the rows `{rows}`; `osmosis eval info {run}` counts them")
                }),
            ));
        }
        Ok(plan)
    }

    async fn count(&self) -> Result<u64, RunError> {
        let mut count = 0;
        let mut pages = RolloutPages::finished(&*self.source.store);
        while let Some(page) = pages.next().await? {
            count += page.iter().filter(|rollout| self.takes(rollout)).count() as u64;
        }
        Ok(count)
    }

    fn takes(&self, rollout: &RolloutRecord) -> bool {
        let rows = self.selection.as_ref();
        rows.is_none_or(|rows| rows.contains(rollout.row_index))
    }

    /// Puts the rollouts of the source, with its own copy of their rows, into the queue of the new run.
    pub async fn enqueue(&self, store: &dyn Store) -> Result<(), RunError> {
        let source = &*self.source.store;
        let mut pages = RolloutPages::finished(source);
        while let Some(page) = pages.next().await? {
            let taken = page.into_iter().filter(|rollout| self.takes(rollout));
            let rollouts: Vec<NewRollout> = taken
                .map(|rollout| NewRollout {
                    id: rollout.id,
                    row_index: rollout.row_index,
                    run_index: rollout.run_index,
                })
                .collect();
            let wanted: BTreeSet<u64> = rollouts.iter().map(|rollout| rollout.row_index).collect();
            let wanted: Vec<u64> = wanted.into_iter().collect();
            let rows = source.rows(&wanted).await?.into_iter().map(|row| NewRow {
                row_index: row.row_index,
                line: row.line,
                body: row.body,
            });
            store.enqueue(rows.collect(), rollouts).await?;
        }
        Ok(())
    }

    /// What a resume must find as it is now: the facts of the source about its samples, and ours about the
    /// grader.
    pub fn pinned(&self, environment_digest: &str) -> Result<Pinned, RunError> {
        let ours = Pinned::of_config(&self.config)?;
        let mut pinned = self.source.pinned.clone();
        let of_grader = Pinned::is_of_the_grader;
        pinned.settings.retain(|name, _| !of_grader(name));
        let settings = ours.settings.into_iter();
        pinned
            .settings
            .extend(settings.filter(|(name, _)| of_grader(name)));
        pinned.pin_source(self.code.source()?);
        pinned.environment_sha256 = Some(environment_digest.to_owned());
        pinned.judge = self.judge.as_ref().map(|judge| judge.identity.clone());
        pinned.server = None;
        pinned.remembered = Remembered::default();
        if let Some(selection) = &self.selection {
            pinned.rows = Some(selection.to_string());
        }
        let from = RegradedFrom::new(&self.source.record, &self.source.pinned);
        pinned.regraded_from = Some(from);
        Ok(pinned)
    }

    /// What differs from the source in how samples are graded: by name, before and now.
    pub fn changes(&self, now: &Pinned) -> FactChanges {
        let files = self.source.pinned.files_changed(now);
        let same_files = files.is_some_and(|files| files.is_empty());
        let (before, now) = (&self.source.pinned.facts(), &now.facts());
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        let mut changes = FactChanges::default();
        for name in names {
            let side = |facts: &Map<String, Value>| facts.get(name).cloned().unwrap_or_default();
            let (before, now) = (side(before), side(now));
            // Which rows take part says nothing about how they are graded.
            let differs = before != now && !(same_files && name == "source_sha256");
            if Pinned::is_of_the_grader(name) && name != "rows" && differs {
                changes.0.push((name.clone(), FactChange { before, now }));
            }
        }
        changes
    }

    /// Says what changed since the source was made, and what of the config has no effect here.
    pub fn tell_changes(&self, now: &Pinned, notices: &dyn Notices) {
        let run = &self.source.record.name;
        let changes = self.changes(now);
        if changes.0.is_empty() {
            notices.note(format_args!(
                "Grader, config and code are those that graded `{run}`"
            ));
        } else {
            notices.note(format_args!("Changed since `{run}`:"));
        }
        for (name, change) in changes.iter() {
            match name {
                "source_sha256" => match self.source.pinned.files_changed(now) {
                    Some(files) => {
                        for line in files.lines() {
                            notices.note(format_args!("  project files: {line}"));
                        }
                    }
                    None => notices.note("  project files"),
                },
                "environment_sha256" => notices.note("  the environment of the project"),
                _ => notices.note(format_args!("  {name}: {} → {}", change.before, change.now)),
            }
        }
        let given = Pinned::of_config(&self.config);
        for name in FACTS_OF_THE_SAMPLES {
            let here = given
                .as_ref()
                .ok()
                .and_then(|given| given.settings.get(*name));
            if let (Some(here), Some(there)) = (here, self.source.pinned.settings.get(*name))
                && here != there
            {
                notices.warn(format_args!(
                    "`{name}` is {here} in {}, and was {there} in `{run}`: its samples are graded as \
                     they are",
                    self.asked.config.place()
                ));
            }
        }
        if self.unfinished > 0 {
            notices.warn(format_args!(
                "{} rollouts of `{run}` have no result and are left out",
                self.unfinished
            ));
        }
    }
}
