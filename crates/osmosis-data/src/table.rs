use std::collections::HashSet;

use osmosis_core::JsonText;

use crate::csv::MAX_CELLS;
use crate::error::listed;
use crate::{MAX_ROW_BYTES, Row, RowError, RowProblem, Taking, row};

/// How many of a file's columns an error names.
const MAX_NAMED: usize = 12;

/// What can be wrong with the columns of a file, whatever its rows hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ColumnProblem {
    #[error("missing column `{column}`")]
    Missing {
        column: &'static str,
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
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { column, there } => Some(missing_hint(column, there)),
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

fn missing_hint(column: &'static str, there: &[String]) -> String {
    if let [one] = there
        && one.contains([';', '\t'])
    {
        return "separate cells with commas".to_owned();
    }
    let add = RowProblem::Missing { column }.hint().unwrap_or_default();
    let names = listed(there.iter().take(MAX_NAMED).map(String::as_str));
    match there.len() {
        0 => add,
        count if count > MAX_NAMED => format!("{add}; there is {names} and more"),
        _ => format!("{add}; there is {names}"),
    }
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
    pub(crate) fn of(names: &[String], taking: Taking) -> Result<Self, Vec<ColumnProblem>> {
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
        let missing = |column| ColumnProblem::Missing {
            column,
            there: names.to_vec(),
        };
        if taking == Taking::Columns && !seen.contains("metadata") {
            if !seen.contains("user_prompt") {
                problems.push(missing("user_prompt"));
            }
            if !seen.contains("ground_truth") && !seen.contains("label") {
                problems.push(missing("ground_truth"));
            }
        }
        if problems.is_empty() {
            let label = if seen.contains("ground_truth") {
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
        let error = |problem| RowError {
            index,
            line,
            column: None,
            problem,
        };
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
                } => RowProblem::Blank { column: self.label },
                RowProblem::Missing { column } => RowProblem::Blank { column },
                other => other,
            })
        })
    }
}
