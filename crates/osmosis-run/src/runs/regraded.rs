//! What a run that only grades knows of the one whose samples it grades.

use osmosis_core::RunName;
use osmosis_store::{RunKind, RunRecord};
use osmosis_store_sqlite::SqliteStore;
use serde_json::Value;

use super::Pinned;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

const RUN: &str = "regraded_from";
const CREATED: &str = "regraded_from_created_at_ms";
const CALLS_IN: &str = "policy_calls_in";

/// Facts of a run that was made by `eval regrade`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegradedFrom {
    /// The run whose samples it grades.
    pub run: String,
    created_at_ms: i64,
    /// The run that has the policy's calls: the same, unless that one was regraded too.
    pub calls_in: String,
}

impl RegradedFrom {
    pub fn new(source: &RunRecord, pinned: &Pinned) -> Self {
        let run = source.name.to_string();
        Self {
            calls_in: Self::of(pinned).map_or_else(|| run.clone(), |of_source| of_source.calls_in),
            run,
            created_at_ms: source.created_at_ms,
        }
    }

    /// `None` for a run that had its rollouts run.
    pub fn of(pinned: &Pinned) -> Option<Self> {
        let run = pinned.text(RUN)?;
        Some(Self {
            calls_in: pinned.text(CALLS_IN).unwrap_or_else(|| run.clone()),
            created_at_ms: pinned.0.get(CREATED).and_then(Value::as_i64).unwrap_or(0),
            run,
        })
    }

    /// The run that has the policy's calls. `None` when it is gone, or another has its name by now; for
    /// what was regraded several times, also when one of the runs between is.
    pub async fn open_calls(&self, workspace: &Workspace) -> Option<SqliteStore> {
        let mut from = self.clone();
        loop {
            let name = RunName::new(from.run).ok()?;
            let folder = RunFolder::of(workspace, RunKind::Evaluation, &name);
            let store = SqliteStore::open_read_only(&folder.path).ok()?;
            let record = store.run().await.ok()??;
            if record.created_at_ms != from.created_at_ms {
                return None;
            }
            match Self::of(&Pinned::read(&record.pinned).ok()?) {
                Some(before) => from = before,
                None => return Some(store),
            }
        }
    }

    pub fn pin(&self, facts: &mut Pinned) {
        facts.insert(RUN, self.run.as_str());
        facts.insert(CREATED, self.created_at_ms);
        facts.insert(CALLS_IN, self.calls_in.as_str());
    }
}
