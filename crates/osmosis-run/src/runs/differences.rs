//! What is not as it was when a run was begun: why it can't be resumed, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use osmosis_core::row_selection::RowSelection;
use osmosis_store::Store;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Pinned;
use crate::checked_dataset::CheckedDataset;
use crate::reports::ErrorDetails;
use crate::source_files::IGNORE_FILE;
use crate::{RunError, RunErrorKind};

/// Files of a kind that a message names.
const MOST_FILES: usize = 10;
/// Rows that are read from the store at once.
const ROW_BATCH: usize = 500;
/// Longest value that a message shows.
const VALUE_WIDTH: usize = 80;

/// Sections of a config: a fact of theirs that is gone now has been taken out of the config.
const SECTIONS: &[&str] = &[
    "experiment.",
    "evaluation.",
    "training.",
    "sampling.",
    "checkpoints.",
    "workflow.",
    "grader.",
    "env.",
    "secrets.",
    "workers.",
    "advanced.",
    "serve.",
];
/// Facts of earlier versions, which changed nothing about what a run is.
const NO_MORE: &[&str] = &["evaluation.batch_size"];

/// The `details` of an error that refuses a resume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PinnedDifferences {
    pub differences: Vec<FactDifference>,
    /// `null` when no file changed, or the run was begun before digests of single files were kept.
    pub files: Option<FileChanges>,
    /// `null` when the dataset is the same, or its rows can't be compared.
    pub rows: Option<RowChanges>,
}

/// A fact and its values; `null` where there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FactDifference {
    pub fact: String,
    pub old: Value,
    pub new: Value,
}

/// The project's files that differ, by their paths from the project's folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileChanges {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

/// The rows of the dataset that differ from those of the run: `3,7,10-20`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RowChanges {
    pub changed: Option<String>,
    pub added: Option<String>,
    pub removed: Option<String>,
}

impl FileChanges {
    pub fn between(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Self {
        let only = |these: &BTreeMap<String, String>, those: &BTreeMap<String, String>| {
            let missing = these.keys().filter(|name| !those.contains_key(*name));
            missing.cloned().collect()
        };
        Self {
            added: only(now, before),
            changed: now
                .iter()
                .filter(|(name, digest)| before.get(*name).is_some_and(|old| old != *digest))
                .map(|(name, _)| name.clone())
                .collect(),
            removed: only(before, now),
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// `added judged.py`, one line for each kind of change.
    pub fn lines(&self) -> Vec<String> {
        [
            ("added", &self.added),
            ("changed", &self.changed),
            ("removed", &self.removed),
        ]
        .into_iter()
        .filter(|(_, files)| !files.is_empty())
        .map(|(what, files)| {
            let shown = files[..files.len().min(MOST_FILES)].join(", ");
            match files.len().saturating_sub(MOST_FILES) {
                0 => format!("{what} {shown}"),
                more => format!("{what} {shown} and {more} more"),
            }
        })
        .collect()
    }
}

impl RowChanges {
    /// Compares the rows that the run has with those of the dataset as it is now.
    pub async fn of(
        store: &dyn Store,
        before: &Pinned,
        dataset: &CheckedDataset,
    ) -> Result<Self, RunError> {
        // Of a run on part of the rows, it can't be said which ones are new.
        let all = before.rows.is_none() && before.limit().is_none();
        let end = before.remembered.dataset_rows.unwrap_or(u64::MAX);
        let (mut changed, mut added, mut removed) = (vec![], vec![], vec![]);
        let mut now = dataset.read();
        let mut first = 0;
        loop {
            let rows: Vec<_> = now.by_ref().take(ROW_BATCH).collect::<Result<_, _>>()?;
            let indices: Vec<u64> = (first..(first + ROW_BATCH as u64).min(end)).collect();
            let there = store.rows(&indices).await?;
            if rows.is_empty() && there.is_empty() {
                break;
            }
            let mut there: BTreeMap<u64, _> =
                there.into_iter().map(|row| (row.row_index, row)).collect();
            for row in rows {
                match there.remove(&row.row_index) {
                    Some(kept) if same(kept.body.as_str(), row.body.as_str()) => {}
                    Some(_) => changed.push(row.row_index),
                    None if row.row_index >= end => added.push(row.row_index),
                    None if all && end == u64::MAX => added.push(row.row_index),
                    None => {}
                }
            }
            removed.extend(there.into_keys());
            first += ROW_BATCH as u64;
        }
        let told = |rows: Vec<u64>| RowSelection::of(rows).map(|rows| rows.to_string());
        Ok(Self {
            changed: told(changed),
            added: told(added),
            removed: told(removed),
        })
    }
}

/// Whether two rows hold the same, however they are written.
fn same(one: &str, other: &str) -> bool {
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    one == other || value(one).is_some_and(|one| Some(one) == value(other))
}

impl PinnedDifferences {
    /// What differs, when something does.
    pub fn between(before: &Pinned, now: &Pinned) -> Option<Self> {
        let (old, new) = (before.facts(), now.facts());
        let files = before.files_changed(now);
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        // In the order of the facts as they are now.
        let order = |name: &str| new.keys().position(|key| key == name).unwrap_or(usize::MAX);
        let mut names: Vec<&String> = names.into_iter().collect();
        names.sort_by_key(|name| order(name));
        let mut differences = vec![];
        for name in names {
            let side = |facts: &Map<String, Value>| facts.get(name).cloned().unwrap_or_default();
            let (old, new_value) = (side(&old), side(&new));
            let is_compared = !Pinned::is_remembered(name)
                && name != Pinned::SOURCE_FILES
                && (new.contains_key(name) || is_setting(name));
            let differs = match (name.as_str(), &files) {
                // Files that do not count are in the digest of all.
                ("source_sha256", Some(files)) => !files.is_empty(),
                _ => old != new_value,
            };
            if is_compared && differs {
                differences.push(FactDifference {
                    fact: name.clone(),
                    old,
                    new: new_value,
                });
            }
        }
        (!differences.is_empty()).then(|| Self {
            differences,
            files: files.filter(|files| !files.is_empty()),
            rows: None,
        })
    }

    pub fn has(&self, fact: &str) -> bool {
        self.differences.iter().any(|one| one.fact == fact)
    }

    /// Why the run can't be resumed, with everything that differs.
    pub fn refusal(self, run: &str, project: Option<&str>) -> RunError {
        let mut message =
            format!("run `{run}` can't be resumed: something changed since it was begun");
        for difference in &self.differences {
            for line in self.lines(difference) {
                let _ = write!(message, "\n  {line}");
            }
        }
        let mut hint =
            "undo the change, choose another `--name`, or archive this run and start again with `--fresh`"
                .to_owned();
        if let (Some(_), Some(project)) = (&self.files, project) {
            let _ = write!(
                hint,
                "; files that the agent does not use can be listed in `rollouts/{project}/{IGNORE_FILE}`"
            );
        }
        RunError::failed(RunErrorKind::RunPinned, message)
            .hint(hint)
            .details(ErrorDetails::Pinned(self))
    }

    fn lines(&self, difference: &FactDifference) -> Vec<String> {
        let FactDifference { fact, old, new } = difference;
        match fact.as_str() {
            "source_sha256" => self.file_lines(),
            "dataset_sha256" => self.row_lines(),
            "eval_dataset_sha256" => vec!["the held-out dataset (`eval_dataset`)".to_owned()],
            "environment_sha256" => {
                vec!["the project's environment: its interpreter or packages".to_owned()]
            }
            "model_sha256" => vec!["the weights of the model".to_owned()],
            "model" | "judge" => identity_lines(fact, old, new),
            "rows" => vec![changed_text("--rows", old, new, "all rows")],
            _ => vec![changed_text(fact, old, new, "not set")],
        }
    }

    fn file_lines(&self) -> Vec<String> {
        match &self.files {
            Some(files) => {
                let lines = files.lines().into_iter();
                lines.map(|line| format!("project files: {line}")).collect()
            }
            None => vec![
                "project files: which ones can't be said, because this run was begun by a version that \
                 kept one digest of them all"
                    .to_owned(),
            ],
        }
    }

    fn row_lines(&self) -> Vec<String> {
        let Some(rows) = &self.rows else {
            return vec!["the dataset".to_owned()];
        };
        let lines: Vec<String> = [
            ("changed", &rows.changed),
            ("added", &rows.added),
            ("removed", &rows.removed),
        ]
        .into_iter()
        .filter_map(|(what, rows)| Some(format!("dataset rows {what}: {}", rows.as_ref()?)))
        .collect();
        if lines.is_empty() {
            return vec!["the dataset, but none of the rows that this run has".to_owned()];
        }
        lines
    }
}

/// Whether a fact is a key of the config.
fn is_setting(fact: &str) -> bool {
    !NO_MORE.contains(&fact) && SECTIONS.iter().any(|section| fact.starts_with(section))
}

/// Of a model or judge: what of its identity differs.
fn identity_lines(fact: &str, old: &Value, new: &Value) -> Vec<String> {
    let (Value::Object(before), Value::Object(now)) = (old, new) else {
        return vec![changed_text(fact, old, new, "none")];
    };
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let value = |side: &Map<String, Value>, name: &str| side.get(name).cloned().unwrap_or_default();
    names
        .into_iter()
        .map(|name| (name, value(before, name), value(now, name)))
        .filter(|(_, old, new)| old != new)
        .map(|(name, old, new)| match name.as_str() {
            "script_sha256" => format!("{fact}: the script"),
            "model_sha256" => format!("{fact}: the weights"),
            _ => changed_text(&format!("{fact} {name}"), &old, &new, "not set"),
        })
        .collect()
}

fn changed_text(name: &str, old: &Value, new: &Value, none: &str) -> String {
    let text = |value: &Value| match value {
        Value::Null => none.to_owned(),
        other => {
            let text = other.to_string();
            if text.chars().count() <= VALUE_WIDTH {
                return text;
            }
            let start: String = text.chars().take(VALUE_WIDTH).collect();
            format!("{start}…")
        }
    };
    format!("{name}: was {}, is now {}", text(old), text(new))
}

#[cfg(test)]
mod tests {
    use osmosis_core::JsonText;
    use serde_json::json;

    use super::*;

    fn read(facts: &Value) -> Pinned {
        Pinned::read(&JsonText::of(facts).unwrap()).unwrap()
    }

    #[track_caller]
    fn refusal(before: &Value, now: &Value) -> String {
        let found = PinnedDifferences::between(&read(before), &read(now)).unwrap();
        let error = found.refusal("t", Some("hello"));
        format!("{error}\nhint: {}", error.hint_text().unwrap())
    }

    #[test]
    fn a_refused_resume_names_files_keys_and_values() {
        let before = json!({
            "evaluation.n": 1, "workflow.style": "short", "model": {"script_sha256": "a", "seed": 0},
            "rows": null, "source_sha256": "x", "environment_sha256": "e", "remembered.config": "c.toml",
            "source_files": {"main.py": "1", "old.py": "2", "same.py": "3"},
        });
        let now = json!({
            "evaluation.n": 4, "grader.strict": true, "model": {"script_sha256": "b", "seed": 1},
            "rows": "0-3", "source_sha256": "y", "environment_sha256": "f", "remembered.config": "d.toml",
            "source_files": {"main.py": "9", "judged.py": "2", "same.py": "3"},
        });
        insta::assert_snapshot!(refusal(&before, &now));
    }

    #[test]
    fn a_run_without_digests_of_files_says_what_it_can() {
        let before = json!({"evaluation.n": 1, "source_sha256": "x"});
        let now =
            json!({"evaluation.n": 1, "source_sha256": "y", "source_files": {"main.py": "9"}});
        insta::assert_snapshot!(refusal(&before, &now));
        let same =
            json!({"evaluation.n": 1, "source_sha256": "x", "source_files": {"main.py": "9"}});
        assert_eq!(
            PinnedDifferences::between(&read(&before), &read(&same)),
            None
        );
    }

    #[test]
    fn files_that_do_not_count_may_change() {
        let files = json!({"main.py": "1"});
        let before = json!({"source_sha256": "x", "source_files": files});
        let now = json!({"source_sha256": "y", "source_files": files});
        assert_eq!(
            PinnedDifferences::between(&read(&before), &read(&now)),
            None
        );
    }

    #[test]
    fn many_files_are_counted() {
        let files = FileChanges {
            added: (0..12).map(|i| format!("f{i}.py")).collect(),
            ..FileChanges::default()
        };
        assert!(files.lines()[0].ends_with("f9.py and 2 more"), "{files:?}");
    }
}
