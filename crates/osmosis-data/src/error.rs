use camino::Utf8PathBuf;
use serde::{Serialize, Serializer};

use crate::MAX_ROW_BYTES;
use crate::report::render_errors;

/// Why a dataset can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("dataset `{reference}` not found")]
    NotFound {
        reference: String,
        looked_at: Vec<Utf8PathBuf>,
        /// Datasets that are there and have a similar name; all of them when none has.
        instead: Vec<String>,
    },
    #[error("dataset `{name}` could be any of several files")]
    Ambiguous {
        name: String,
        files: Vec<Utf8PathBuf>,
    },
    #[error("`{path}` is not a file")]
    NotAFile { path: Utf8PathBuf },
    #[error("`{path}`: {format} datasets can't be read yet")]
    NotYet {
        path: Utf8PathBuf,
        format: &'static str,
    },
    #[error("`{path}` is not a dataset: unknown extension")]
    UnknownFormat { path: Utf8PathBuf },
    #[error("`{path}` can't be read: {message}")]
    Unreadable { path: Utf8PathBuf, message: String },
    #[error("`{path}` has no rows")]
    Empty { path: Utf8PathBuf },
    #[error("`{path}` has {count} bad row{}", if *count == 1 { "" } else { "s" })]
    BadRows {
        path: Utf8PathBuf,
        /// All of them.
        count: u64,
        /// The first of them.
        shown: Vec<RowError>,
    },
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataErrorKind {
    /// There is no such dataset, or not exactly one.
    NotFound,
    /// A format this program does not read.
    Unsupported,
    /// The disk or the permissions.
    Unreadable,
    /// The contents.
    Invalid,
}

impl DataError {
    pub fn kind(&self) -> DataErrorKind {
        match self {
            Self::NotFound { .. } | Self::Ambiguous { .. } | Self::NotAFile { .. } => {
                DataErrorKind::NotFound
            }
            Self::NotYet { .. } | Self::UnknownFormat { .. } => DataErrorKind::Unsupported,
            Self::Unreadable { .. } => DataErrorKind::Unreadable,
            Self::Empty { .. } | Self::BadRows { .. } => DataErrorKind::Invalid,
        }
    }

    /// What there is to see besides the message: the bad rows, each with its place and hint.
    pub fn details(&self) -> Option<String> {
        match self {
            Self::BadRows { path, count, shown } => Some(render_errors(path, shown, *count)),
            Self::NotFound { .. }
            | Self::Ambiguous { .. }
            | Self::NotAFile { .. }
            | Self::NotYet { .. }
            | Self::UnknownFormat { .. }
            | Self::Unreadable { .. }
            | Self::Empty { .. } => None,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound {
                looked_at, instead, ..
            } => {
                let looked = listed(looked_at.iter().map(|path| path.as_str()));
                Some(if instead.is_empty() {
                    format!("looked for {looked}")
                } else {
                    let instead = listed(instead.iter().map(String::as_str));
                    format!("looked for {looked}; there is {instead}")
                })
            }
            Self::Ambiguous { files, .. } => Some(format!(
                "write the path: {}",
                listed(files.iter().map(|path| path.as_str()))
            )),
            Self::NotAFile { .. } => Some("name a `.jsonl` file".to_owned()),
            Self::NotYet { .. } | Self::UnknownFormat { .. } => {
                Some("write it as `.jsonl`, one JSON object on each line".to_owned())
            }
            Self::Unreadable { .. } => None,
            Self::Empty { .. } => Some("write one JSON object on each line".to_owned()),
            Self::BadRows { path, .. } => {
                Some(format!("`osmosis dataset validate {path}` shows them"))
            }
        }
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// A row that can't be used, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", place(*line, *column))]
pub struct RowError {
    /// The row's index, from 0. Bad rows count, so that the others keep theirs.
    pub index: u64,
    /// From 1; blank lines count.
    pub line: u64,
    /// In characters from 1, where one can be told.
    pub column: Option<u64>,
    pub problem: RowProblem,
}

fn place(line: u64, column: Option<u64>) -> String {
    match column {
        Some(column) => format!("line {line}, column {column}"),
        None => format!("line {line}"),
    }
}

impl RowError {
    pub fn hint(&self) -> Option<String> {
        self.problem.hint()
    }
}

impl Serialize for RowError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            row_index: u64,
            line: u64,
            column: Option<u64>,
            code: &'a str,
            message: String,
            hint: Option<String>,
        }
        Shown {
            row_index: self.index,
            line: self.line,
            column: self.column,
            code: self.problem.code(),
            message: self.problem.to_string(),
            hint: self.hint(),
        }
        .serialize(serializer)
    }
}

/// What can be wrong with a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowProblem {
    #[error("the row is longer than {MAX_ROW_BYTES} bytes")]
    TooLong,
    #[error("not UTF-8")]
    NotUtf8,
    #[error("not JSON: {message}")]
    NotJson { message: String },
    #[error("a row must be a JSON object, found {found}")]
    NotAnObject { found: &'static str },
    #[error("missing column `{column}`")]
    Missing { column: &'static str },
    #[error("neither `user_prompt` nor `metadata` says anything")]
    NothingToDo,
    #[error("`{column}` must not be empty")]
    Blank { column: &'static str },
    #[error("`{column}` must be {expected}, found {found}")]
    WrongType {
        column: &'static str,
        expected: &'static str,
        found: &'static str,
    },
    #[error("`metadata` is a string that holds no JSON object: {message}")]
    MetadataText { message: String },
    #[error("`ground_truth` and `label` say different things")]
    TwoLabels,
    #[error("the file can't be read any further: {message}")]
    Unreadable { message: String },
}

impl RowProblem {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::NotUtf8 => "not_utf8",
            Self::NotJson { .. } => "not_json",
            Self::NotAnObject { .. } => "not_an_object",
            Self::Missing { .. } => "missing_column",
            Self::NothingToDo => "nothing_to_do",
            Self::Blank { .. } => "blank",
            Self::WrongType { .. } => "wrong_type",
            Self::MetadataText { .. } => "metadata_text",
            Self::TwoLabels => "two_labels",
            Self::Unreadable { .. } => "unreadable",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotUtf8 => "save the file as UTF-8",
            Self::NotJson { .. } | Self::NotAnObject { .. } => {
                r#"each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}"#
            }
            Self::Missing { column } if *column == "ground_truth" => {
                "add `ground_truth` (or `label`); it is optional only in rows with `metadata`"
            }
            Self::Missing { .. } => "add it; it is optional only in rows with `metadata`",
            Self::NothingToDo => "add a `user_prompt`, or put something into `metadata`",
            Self::Blank { .. } => "write a prompt",
            Self::WrongType { column, found, .. } => match (*column, *found) {
                ("user_prompt" | "system_prompt", "an array") => {
                    "chat messages can't stand here: write `system_prompt` and `user_prompt`, or \
                     put the messages into `metadata`"
                }
                ("ground_truth" | "label", _) => {
                    "write it as text; structured labels go into `metadata`"
                }
                _ => return None,
            },
            Self::MetadataText { .. } => {
                r#"write the object itself, or a string such as "{\"a\": 1}""#
            }
            Self::TwoLabels => "keep one of the two",
            Self::TooLong | Self::Unreadable { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
