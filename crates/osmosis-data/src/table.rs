use std::collections::HashSet;

use osmosis_core::JsonText;
use osmosis_core::config::{ColumnUse, DatasetColumns};

use crate::csv::MAX_CELLS;
use crate::missing::{self, MissingColumn};
use crate::{MAX_ROW_BYTES, Row, RowError, RowProblem, Taking, row};

/// What can be wrong with the columns of a file, whatever its rows hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ColumnProblem {
    #[error("missing column {}", name_of(column, named.as_deref()))]
    Missing {
        column: &'static str,
        /// What `[dataset.columns]` says the file calls it.
        named: Option<String>,
        /// Those that are there.
        there: Vec<String>,
    },
    #[error("two columns are called `{column}`")]
    Duplicate { column: String },
    #[error("`{column}` must be {expected}, found {found}")]
    WrongType {
        column: &'static str,
        expected: &'static str,
        found: &'static str,
    },
    #[error("column `{column}` holds {found}")]
    Unsupported { column: String, found: &'static str },
    #[error("the header is not UTF-8")]
    HeaderNotUtf8,
    #[error("the header is longer than {MAX_ROW_BYTES} bytes")]
    HeaderTooLong,
    #[error("the header has more than {MAX_CELLS} cells")]
    HeaderTooManyCells,
    #[error("a quote in the header is never closed")]
    HeaderOpenQuote,
}

impl ColumnProblem {
    /// What to do about all of them. Columns that are missing have one hint together.
    pub(crate) fn hints(problems: &[Self]) -> Vec<String> {
        let mut absent = Vec::new();
        let mut in_file: &[String] = &[];
        let mut hints = Vec::new();
        for problem in problems {
            match problem {
                Self::Missing {
                    column,
                    named,
                    there,
                } => {
                    in_file = there;
                    absent.push(MissingColumn {
                        column,
                        named: named.as_deref(),
                    });
                }
                other => hints.extend(other.hint()),
            }
        }
        if !absent.is_empty() {
            hints.insert(0, missing::hint(&absent, in_file));
        }
        hints.dedup();
        hints
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing {
                column,
                named,
                there,
            } => {
                let column = MissingColumn {
                    column,
                    named: named.as_deref(),
                };
                Some(missing::hint(&[column], there))
            }
            Self::Duplicate { .. } => Some("rename one of them, or leave it out".to_owned()),
            Self::WrongType {
                column,
                expected,
                found,
            } => RowProblem::WrongType {
                column,
                expected,
                found,
            }
            .hint(),
            Self::Unsupported { .. } => Some("write it as text, or leave it out".to_owned()),
            Self::HeaderNotUtf8 => Some("save the file as UTF-8".to_owned()),
            Self::HeaderTooLong | Self::HeaderTooManyCells | Self::HeaderOpenQuote => None,
        }
    }
}

/// What a column of ours is called in messages.
pub(crate) fn name_of(column: &str, named: Option<&str>) -> String {
    match named {
        None => format!("`{column}`"),
        Some(named) => format!("`{named}` (`{column}` in `[dataset.columns]`)"),
    }
}

/// The problem of a column that every row would be refused for: its name, and what its values are.
pub(crate) fn wrong_type(name: &str, found: &'static str) -> Option<ColumnProblem> {
    let (column, expected, fits): (_, _, &[&str]) = match name {
        "user_prompt" => ("user_prompt", "a string", &["a string"]),
        "system_prompt" => ("system_prompt", "a string", &["a string"]),
        "ground_truth" => (
            "ground_truth",
            "a string or a number",
            &["a string", "a number"],
        ),
        "label" => ("label", "a string or a number", &["a string", "a number"]),
        "metadata" => (
            "metadata",
            "an object or a string that holds one",
            &["an object", "a string"],
        ),
        _ => return None,
    };
    (!fits.contains(&found)).then_some(ColumnProblem::WrongType {
        column,
        expected,
        found,
    })
}

/// The columns that rows must have and a file with these doesn't: those that the config names, and those without
/// which there is no prompt and no label.
pub(crate) fn missing_columns(
    there: &[String],
    taking: Taking,
    columns: &DatasetColumns,
) -> Vec<ColumnProblem> {
    let is_there = |column: &str| there.iter().any(|name| name == column);
    let has = |column: &str| columns.use_of(column) == ColumnUse::Kept(column) && is_there(column);
    let missing = |column, named: Option<&str>| ColumnProblem::Missing {
        column,
        named: named.map(str::to_owned),
        there: there.to_vec(),
    };
    let mut problems = Vec::new();
    for (ours, theirs) in columns.named() {
        if !is_there(theirs) {
            problems.push(missing(ours, Some(theirs)));
        }
    }
    let has_metadata = columns.of("metadata").is_some() || has("metadata");
    if taking == Taking::Columns && !has_metadata {
        if columns.of("user_prompt").is_none() && !has("user_prompt") {
            problems.push(missing("user_prompt", None));
        }
        if columns.of("ground_truth").is_none() && !has("ground_truth") && !has("label") {
            problems.push(missing("ground_truth", None));
        }
    }
    problems
}

/// What the rows of a file with fixed columns have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    /// What this file calls the label.
    label: &'static str,
    taking: Taking,
}

impl Table {
    /// Checks the names of a file's columns.
    pub(crate) fn of(
        names: &[String],
        taking: Taking,
        columns: &DatasetColumns,
    ) -> Result<Self, Vec<ColumnProblem>> {
        let mut problems = Vec::new();
        let mut seen: HashSet<&str> = HashSet::new();
        let mut repeated: HashSet<&str> = HashSet::new();
        for name in names {
            if !seen.insert(name) && repeated.insert(name) {
                problems.push(ColumnProblem::Duplicate {
                    column: name.clone(),
                });
            }
        }
        problems.extend(missing_columns(names, taking, columns));
        if problems.is_empty() {
            let label = if columns.of("ground_truth").is_some() || seen.contains("ground_truth") {
                "ground_truth"
            } else {
                "label"
            };
            Ok(Self { label, taking })
        } else {
            Err(problems)
        }
    }

    /// Reads a row from the object its cells were written as.
    pub(crate) fn row(self, index: u64, line: u64, body: String) -> Result<Row, RowError> {
        let error = |problem| RowError::new(index, line, None, problem);
        if body.len() > MAX_ROW_BYTES {
            return Err(error(RowProblem::TooLong));
        }
        let body = JsonText::parse(body).map_err(|parse| {
            error(RowProblem::NotJson {
                message: parse.to_string(),
            })
        })?;
        row::read(index, line, body, self.taking).map_err(|found| {
            // The place in the object is none in the file. And the file has the column, or its
            // rows would not be read.
            error(match found.problem {
                RowProblem::Missing {
                    column: "ground_truth",
                    ..
                } => RowProblem::Blank { column: self.label },
                RowProblem::Missing { column, .. } => RowProblem::Blank { column },
                other => other,
            })
        })
    }
}
