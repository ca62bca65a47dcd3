use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::MAX_JSON_DEPTH;
use serde::{Serialize, Serializer};

use crate::csv::MAX_CELLS;
use crate::jsonl::MAX_BLANK_BYTES;
use crate::report::render_errors;
use crate::table::name_of;
use crate::{ColumnProblem, Format, MAX_ROW_BYTES};

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
    #[error("`{path}` holds the splits {}", listed(splits.iter().map(String::as_str)))]
    Splits {
        path: Utf8PathBuf,
        splits: Vec<String>,
    },
    #[error("`{pattern}` stands for files of several formats")]
    MixedFormats { pattern: Utf8PathBuf },
    #[error("`{pattern}` stands for more than {} files", crate::pattern::MAX_FILES)]
    TooManyFiles { pattern: Utf8PathBuf },
    #[error("`{path}` is not a dataset: unknown extension")]
    UnknownFormat { path: Utf8PathBuf },
    #[error("`{path}` can't be read: {message}")]
    Unreadable { path: Utf8PathBuf, message: String },
    #[error("`{path}` has no rows")]
    Empty { path: Utf8PathBuf },
    #[error("`{path}`: {}", joined(problems))]
    BadColumns {
        path: Utf8PathBuf,
        /// All of them.
        problems: Vec<ColumnProblem>,
    },
    #[error("`{path}` has {count} bad row{}", if *count == 1 { "" } else { "s" })]
    BadRows {
        path: Utf8PathBuf,
        /// All of them.
        count: u64,
        /// The first of them.
        shown: Vec<RowError>,
        /// In how many rows each column is missing that none may lack.
        missing: BTreeMap<&'static str, u64>,
    },
    #[error("{to} can't be written: {error}")]
    Unwritable {
        /// The path in backticks, or what else it is.
        to: String,
        error: std::io::Error,
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
    /// An export could not be written.
    Unwritable,
    /// Whoever read the export has read enough.
    OutputClosed,
}

impl DataError {
    pub fn kind(&self) -> DataErrorKind {
        match self {
            Self::NotFound { .. }
            | Self::Ambiguous { .. }
            | Self::NotAFile { .. }
            | Self::Splits { .. } => DataErrorKind::NotFound,
            Self::UnknownFormat { .. } | Self::MixedFormats { .. } | Self::TooManyFiles { .. } => {
                DataErrorKind::Unsupported
            }
            Self::Unreadable { .. } => DataErrorKind::Unreadable,
            Self::Empty { .. } | Self::BadColumns { .. } | Self::BadRows { .. } => {
                DataErrorKind::Invalid
            }
            Self::Unwritable { error, .. } => match error.kind() {
                std::io::ErrorKind::BrokenPipe => DataErrorKind::OutputClosed,
                _ => DataErrorKind::Unwritable,
            },
        }
    }

    /// What there is to see besides the message: the bad rows, each with its place and hint.
    pub fn details(&self) -> Option<String> {
        match self {
            Self::BadRows {
                path,
                count,
                shown,
                missing,
            } => Some(render_errors(path, shown, *count, missing)),
            Self::NotFound { .. }
            | Self::Ambiguous { .. }
            | Self::NotAFile { .. }
            | Self::Splits { .. }
            | Self::MixedFormats { .. }
            | Self::TooManyFiles { .. }
            | Self::UnknownFormat { .. }
            | Self::Unreadable { .. }
            | Self::Empty { .. }
            | Self::BadColumns { .. }
            | Self::Unwritable { .. } => None,
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
            Self::NotAFile { .. } => Some(
                "name a `.jsonl`, `.csv` or `.parquet` file, a pattern such as `data/part-*.parquet`, or a \
                 folder that `datasets.Dataset.save_to_disk` wrote"
                    .to_owned(),
            ),
            Self::Splits { path, splits } => {
                let split = splits.first().map_or("train", String::as_str);
                Some(format!("name one of them: `{path}/{split}`"))
            }
            Self::MixedFormats { .. } => {
                Some("write the ending into the pattern, such as `*.jsonl`".to_owned())
            }
            Self::TooManyFiles { .. } => Some("put the rows into fewer files".to_owned()),
            Self::UnknownFormat { path } => Some(
                if path.as_str().to_ascii_lowercase().contains(".parquet.") {
                    "parquet files are compressed inside: name the `.parquet` file itself"
                } else {
                    "datasets are `.jsonl`, `.csv`, `.parquet` and `.arrow` files, and the first two \
                     also with `.gz` or `.zst` behind"
                }
                .to_owned(),
            ),
            Self::Unreadable { .. } | Self::Unwritable { .. } => None,
            Self::Empty { path } => Some(
                match Format::of(path) {
                    Ok(Format::Csv) => "write a header, and below it one row on each line",
                    Ok(Format::Parquet | Format::Arrow) => "write a row into it",
                    Ok(Format::Jsonl) | Err(_) => "write one JSON object on each line",
                }
                .to_owned(),
            ),
            Self::BadColumns { problems, .. } => {
                let hints = ColumnProblem::hints(problems);
                (!hints.is_empty()).then(|| hints.join("; "))
            }
            Self::BadRows { path, .. } => {
                Some(format!("`osmosis dataset validate {path}` shows them"))
            }
        }
    }
}

fn joined(problems: &[ColumnProblem]) -> String {
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    problems.join("; ")
}

pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// A row that can't be used, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {problem}", in_file(file.as_deref()), place(*line, *column))]
pub struct RowError {
    /// The row's index, from 0. Bad rows count, so that the others keep theirs.
    pub index: u64,
    /// From 1; blank lines count. In parquet the row's number.
    pub line: u64,
    /// In characters from 1, where one can be told.
    pub column: Option<u64>,
    /// The file, in a dataset of several.
    pub file: Option<Utf8PathBuf>,
    pub problem: RowProblem,
}

fn in_file(file: Option<&Utf8Path>) -> String {
    file.map_or_else(String::new, |file| format!("`{file}`, "))
}

fn place(line: u64, column: Option<u64>) -> String {
    match column {
        Some(column) => format!("line {line}, column {column}"),
        None => format!("line {line}"),
    }
}

impl RowError {
    pub(crate) fn new(index: u64, line: u64, column: Option<u64>, problem: RowProblem) -> Self {
        Self {
            index,
            line,
            column,
            file: None,
            problem,
        }
    }

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
            #[serde(skip_serializing_if = "Option::is_none")]
            file: Option<&'a Utf8Path>,
            code: &'a str,
            message: String,
            hint: Option<String>,
        }
        Shown {
            row_index: self.index,
            line: self.line,
            column: self.column,
            file: self.file.as_deref(),
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
    #[error("the row has more than {MAX_CELLS} cells")]
    TooManyCells,
    #[error("{what} is nested deeper than {MAX_JSON_DEPTH} levels")]
    TooDeep {
        /// The row itself, or a column that holds JSON as text.
        what: &'static str,
    },
    #[error("not UTF-8")]
    NotUtf8,
    #[error("not JSON: {message}")]
    NotJson { message: String },
    #[error("a row must be a JSON object, found {found}")]
    NotAnObject { found: &'static str },
    #[error("missing column {}", name_of(column, named.as_deref()))]
    Missing {
        column: &'static str,
        /// What `[dataset.columns]` says the file calls it.
        named: Option<String>,
        /// Those that the row has.
        there: Vec<String>,
    },
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
    #[error("{what} has the field `{name}` twice")]
    DuplicateField {
        /// The row itself, or a column that holds JSON as text.
        what: &'static str,
        name: String,
    },
    #[error("`ground_truth` and `label` say different things")]
    TwoLabels,
    #[error("the row has {found} cells, and the header {expected}")]
    Ragged { expected: usize, found: usize },
    #[error("a quote is never closed")]
    OpenQuote,
    #[error("`{column}` {what}")]
    BadValue { column: String, what: &'static str },
    /// Of the whole file, in place of its first row.
    #[error("{}", joined(problems))]
    BadColumns { problems: Vec<ColumnProblem> },
    /// Of the whole file, in place of all that would follow.
    #[error("the file can't be read any further: {message}")]
    Unreadable { message: String },
}

impl RowProblem {
    pub(crate) fn unreadable(error: &std::io::Error) -> Self {
        Self::Unreadable {
            message: error.to_string(),
        }
    }

    /// Of a file that is all blank: a few megabytes may stand for terabytes when they are compressed.
    pub(crate) fn too_blank() -> Self {
        Self::Unreadable {
            message: format!(
                "more than {MAX_BLANK_BYTES} bytes of blank lines and spaces in a row"
            ),
        }
    }

    /// Whether it is one of the whole file, after which nothing of it is read.
    pub(crate) fn is_of_the_file(&self) -> bool {
        matches!(self, Self::BadColumns { .. } | Self::Unreadable { .. })
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::TooManyCells => "too_many_cells",
            Self::TooDeep { .. } => "too_deep",
            Self::NotUtf8 => "not_utf8",
            Self::NotJson { .. } => "not_json",
            Self::NotAnObject { .. } => "not_an_object",
            Self::Missing { .. } => "missing_column",
            Self::NothingToDo => "nothing_to_do",
            Self::Blank { .. } => "blank",
            Self::WrongType { .. } => "wrong_type",
            Self::MetadataText { .. } => "metadata_text",
            Self::DuplicateField { .. } => "duplicate_field",
            Self::TwoLabels => "two_labels",
            Self::Ragged { .. } => "ragged",
            Self::OpenQuote => "open_quote",
            Self::BadValue { .. } => "bad_value",
            Self::BadColumns { .. } => "bad_columns",
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
            Self::Missing {
                column: "ground_truth",
                ..
            } => "add `ground_truth` (or `label`); it is optional only in rows with `metadata`",
            Self::Missing { .. } => "add it; it is optional only in rows with `metadata`",
            Self::NothingToDo => "add a `user_prompt`, or put something into `metadata`",
            Self::Blank {
                column: "user_prompt",
            } => "write a prompt",
            Self::Blank { .. } => "write one; it is optional only in rows with `metadata`",
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
            Self::DuplicateField { .. } | Self::TwoLabels => "keep one of the two",
            Self::Ragged { .. } => {
                r#"put quotes around a cell with commas or line ends, and write a quote in it as """#
            }
            Self::OpenQuote => r#"a quote within a quoted cell is written as """#,
            Self::BadColumns { problems } => {
                let hints = ColumnProblem::hints(problems);
                return (!hints.is_empty()).then(|| hints.join("; "));
            }
            Self::TooDeep { .. } => "write what is deeper as JSON in a string",
            Self::TooLong
            | Self::TooManyCells
            | Self::BadValue { .. }
            | Self::Unreadable { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
