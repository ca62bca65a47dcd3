//! How people name a run: `NAME`, or `KIND/NAME` where runs of two kinds have the name.

use osmosis_core::RunName;
use osmosis_store::RunKind;

use super::kept;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

const KINDS: [RunKind; 3] = [RunKind::Evaluation, RunKind::Training, RunKind::Serving];

/// The word for a kind in `KIND/NAME`.
pub fn kind_word(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Evaluation => "eval",
        RunKind::Training => "train",
        RunKind::Serving => "serve",
    }
}

/// A run as it was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunReference<'t> {
    pub kind: Option<RunKind>,
    pub name: &'t str,
}

impl<'t> RunReference<'t> {
    pub fn parse(text: &'t str) -> Result<Self, RunError> {
        let Some((word, name)) = text.split_once('/') else {
            return Ok(Self {
                kind: None,
                name: text,
            });
        };
        // Also as the folders are named.
        let kind = match word {
            "eval" | "evals" => RunKind::Evaluation,
            "train" | "training" => RunKind::Training,
            "serve" | "gateway" => RunKind::Serving,
            _ => {
                return Err(RunError::usage(
                    RunErrorKind::RunNotFound,
                    format!("`{text}` names no run: `{word}` is no kind of run"),
                )
                .hint("write NAME, or eval/NAME, train/NAME or serve/NAME"));
            }
        };
        Ok(Self {
            kind: Some(kind),
            name,
        })
    }

    /// The name, for a command that takes runs of one kind.
    pub fn of_kind(text: &'t str, wanted: RunKind) -> Result<&'t str, RunError> {
        let Self { kind, name } = Self::parse(text)?;
        match kind {
            Some(kind) if kind != wanted => Err(RunError::usage(
                RunErrorKind::RunNotFound,
                format!(
                    "`{text}` is no run of this kind; this command takes {}/NAME",
                    kind_word(wanted)
                ),
            )),
            Some(_) | None => Ok(name),
        }
    }
}

/// A run that is there.
#[derive(Debug, Clone)]
pub struct FoundRun {
    pub kind: RunKind,
    pub name: RunName,
    pub folder: RunFolder,
}

impl FoundRun {
    /// The run of one of these kinds that `text` names; an error when there are several.
    pub fn among(kinds: &[RunKind], workspace: &Workspace, text: &str) -> Result<Self, RunError> {
        let reference = RunReference::parse(text)?;
        let mut found: Vec<Self> = kinds
            .iter()
            .filter(|kind| reference.kind.is_none_or(|wanted| wanted == **kind))
            .filter_map(|kind| {
                let name = RunName::new(reference.name).ok()?;
                let folder = RunFolder::of(workspace, *kind, &name);
                folder.exists().then_some(Self {
                    kind: *kind,
                    name,
                    folder,
                })
            })
            .collect();
        if found.is_empty() {
            // As it was called before it got another name.
            let wanted = kinds
                .iter()
                .filter(|kind| reference.kind.is_none_or(|wanted| wanted == **kind));
            found.extend(wanted.filter_map(|kind| {
                let name = kept::renamed_from(workspace, *kind, reference.name)?;
                Some(Self {
                    kind: *kind,
                    folder: RunFolder::of(workspace, *kind, &name),
                    name,
                })
            }));
        }
        if found.len() > 1 {
            let names: Vec<String> = found.iter().map(|run| format!("`{run}`")).collect();
            return Err(RunError::usage(
                RunErrorKind::RunAmbiguous,
                format!(
                    "`{text}` is the name of {} runs: {}",
                    names.len(),
                    names.join(", ")
                ),
            )
            .hint("write one of these instead"));
        }
        if let Some(run) = found.pop() {
            return Ok(run);
        }
        let kind = reference.kind.or_else(|| kinds.first().copied());
        let missing = RunFolder::existing(workspace, kind.unwrap_or(RunKind::Evaluation), text);
        Err(missing.err().unwrap_or_else(|| {
            RunError::failed(RunErrorKind::RunNotFound, format!("no run `{text}`"))
        }))
    }

    /// The run of any kind that `text` names.
    pub fn of_any_kind(workspace: &Workspace, text: &str) -> Result<Self, RunError> {
        Self::among(&KINDS, workspace, text)
    }
}

impl std::fmt::Display for FoundRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", kind_word(self.kind), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_stands_before_the_name() {
        let parsed = RunReference::parse("train/a").unwrap();
        assert_eq!((parsed.kind, parsed.name), (Some(RunKind::Training), "a"));
        let parsed = RunReference::parse("a").unwrap();
        assert_eq!((parsed.kind, parsed.name), (None, "a"));
        RunReference::parse("other/a").unwrap_err();
        assert_eq!(
            RunReference::of_kind("eval/a", RunKind::Evaluation).unwrap(),
            "a"
        );
        RunReference::of_kind("train/a", RunKind::Evaluation).unwrap_err();
    }
}
