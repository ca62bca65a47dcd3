use std::fmt;
use std::ops::Range;

use camino::{Utf8Path, Utf8PathBuf};

/// Everything that is wrong with a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptErrors {
    pub file: Utf8PathBuf,
    /// In the order of the file; never empty.
    pub problems: Vec<ScriptProblem>,
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptProblem {
    pub line: usize,
    pub column: usize,
    pub message: String,
    /// The valid name that comes closest.
    pub nearest: Option<String>,
}

impl fmt::Display for ScriptErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            let ScriptProblem {
                line,
                column,
                message,
                nearest,
            } = problem;
            write!(f, "{}:{line}:{column}: {message}", self.file)?;
            if let Some(nearest) = nearest {
                write!(f, "; did you mean `{nearest}`?")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ScriptErrors {}

impl ScriptErrors {
    /// What to do, for people.
    pub fn hint(&self) -> Option<String> {
        Some("docs/scripted-policy.md describes the format".to_owned())
    }
}

/// Collects problems while a script is read.
#[derive(Debug)]
pub(super) struct Problems<'a> {
    file: &'a Utf8Path,
    text: &'a str,
    found: Vec<(usize, ScriptProblem)>,
}

impl<'a> Problems<'a> {
    pub(super) fn new(file: &'a Utf8Path, text: &'a str) -> Self {
        Self {
            file,
            text,
            found: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, span: Option<Range<usize>>, message: impl Into<String>) {
        self.add_with_nearest(span, message, None);
    }

    pub(super) fn add_with_nearest(
        &mut self,
        span: Option<Range<usize>>,
        message: impl Into<String>,
        nearest: Option<String>,
    ) {
        let at = span.map_or(0, |span| span.start);
        let (line, column) = self.place(at);
        let problem = ScriptProblem {
            line,
            column,
            message: message.into(),
            nearest,
        };
        self.found.push((at, problem));
    }

    /// Line and column, both from 1, of a byte offset.
    pub(super) fn place(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        (line, column)
    }

    pub(super) fn into_result<T>(mut self, value: T) -> Result<T, ScriptErrors> {
        if self.found.is_empty() {
            return Ok(value);
        }
        self.found.sort_by_key(|(at, _)| *at);
        Err(ScriptErrors {
            file: self.file.to_owned(),
            problems: self.found.into_iter().map(|(_, problem)| problem).collect(),
        })
    }
}

/// The known name a misspelt one is likely to mean.
pub(super) fn nearest(name: &str, known: &[&str]) -> Option<String> {
    known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.to_owned())
}
