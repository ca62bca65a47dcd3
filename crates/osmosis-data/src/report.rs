use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::dataset::{buffered, unreadable};
use crate::{
    Compression, CsvRows, DataError, Dataset, Format, JsonlRows, ParquetRows, Row, RowError,
    RowMode, RowProblem,
};

/// How many bad rows a report shows; it counts all of them.
pub const MAX_SHOWN_ERRORS: usize = 50;

/// How many different columns a report lists.
const MAX_COLUMNS: usize = 1000;

/// What a dataset file holds.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub path: Utf8PathBuf,
    pub format: Format,
    /// What the whole file is compressed with.
    pub compression: Option<Compression>,
    /// All rows, the bad ones too.
    pub rows: u64,
    /// `None` when there is no good row.
    pub mode: Option<ReportMode>,
    /// In how many good rows each column appears.
    pub columns: BTreeMap<String, u64>,
    /// All bad rows.
    pub error_count: u64,
    /// The first of them.
    pub errors: Vec<RowError>,
    /// The file's, compressed or not.
    pub bytes: u64,
    /// Of the file's bytes, compressed or not, in hex.
    pub sha256: String,
}

/// Which kinds of row a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportMode {
    Prompt,
    Metadata,
    /// Rows are taken as they are.
    Whole,
    /// Some rows have a `metadata` column and some don't.
    Mixed,
}

impl ReportMode {
    fn with(mode: Option<Self>, row: RowMode) -> Self {
        let row = match row {
            RowMode::Prompt => Self::Prompt,
            RowMode::Metadata => Self::Metadata,
            RowMode::Whole => Self::Whole,
        };
        match mode {
            Some(mode) if mode != row => Self::Mixed,
            Some(_) | None => row,
        }
    }
}

impl Report {
    /// Whether every row can be used and there is one.
    pub fn check(&self) -> Result<(), DataError> {
        if self.error_count > 0 {
            return Err(DataError::BadRows {
                path: self.path.clone(),
                count: self.error_count,
                shown: self.errors.clone(),
            });
        }
        if self.rows == 0 {
            return Err(DataError::Empty {
                path: self.path.clone(),
            });
        }
        Ok(())
    }

    /// The bad rows, one on each line with its hint below; empty when there is none.
    pub fn render_errors(&self) -> String {
        render_errors(&self.path, &self.errors, self.error_count)
    }
}

/// Bad rows as `file:line:column: message`, each with its hint.
pub(crate) fn render_errors(path: &Utf8Path, shown: &[RowError], count: u64) -> String {
    let mut text = String::new();
    for error in shown {
        let place = match error.column {
            Some(column) => format!("{path}:{}:{column}", error.line),
            None => format!("{path}:{}", error.line),
        };
        // Writing to a string can't fail.
        let _ = writeln!(text, "{place}: {}", error.problem);
        if let Some(hint) = error.hint() {
            let _ = writeln!(text, "  hint: {hint}");
        }
    }
    let left = count.saturating_sub(shown.len() as u64);
    if left > 0 {
        let _ = writeln!(text, "and {left} more");
    }
    text
}

/// Reads a dataset file once from start to end and says what it holds.
pub fn validate(path: impl AsRef<Utf8Path>) -> Result<Report, DataError> {
    Dataset::open(path)?.validate()
}

pub(crate) fn read(dataset: &Dataset) -> Result<Report, DataError> {
    let path = dataset.path();
    let failed = |error: io::Error| unreadable(path, &error);
    let file = File::open(path).map_err(failed)?;
    let mut reader = buffered(Digesting {
        inner: file,
        digest: Sha256::new(),
        bytes: 0,
    });
    let mut report = Report {
        path: path.to_owned(),
        format: dataset.format(),
        compression: dataset.compression(),
        rows: 0,
        mode: None,
        columns: BTreeMap::new(),
        error_count: 0,
        errors: Vec::new(),
        bytes: 0,
        sha256: String::new(),
    };
    match dataset.format() {
        Format::Jsonl => {
            let text = dataset.text(&mut reader).map_err(failed)?;
            report.take_all(JsonlRows::new(text).taking(dataset.taking()))?;
        }
        Format::Csv => {
            let text = dataset.text(&mut reader).map_err(failed)?;
            report.take_all(CsvRows::new(text).taking(dataset.taking()))?;
        }
        // Read out of order, and so on its own.
        Format::Parquet => {
            let file = File::open(path).map_err(failed)?;
            report.take_all(ParquetRows::taking(file, dataset.taking()))?;
        }
    }
    // The digest is of all bytes, also of those behind the last row.
    io::copy(&mut reader, &mut io::sink()).map_err(failed)?;
    let digesting = reader.into_inner();
    report.bytes = digesting.bytes;
    for byte in digesting.digest.finalize() {
        let _ = write!(report.sha256, "{byte:02x}");
    }
    Ok(report)
}

impl Report {
    fn take_all(
        &mut self,
        rows: impl Iterator<Item = Result<Row, RowError>>,
    ) -> Result<(), DataError> {
        for row in rows {
            match row {
                Ok(row) => self.take(&row),
                Err(RowError {
                    problem: RowProblem::Unreadable { message },
                    ..
                }) => {
                    return Err(DataError::Unreadable {
                        path: self.path.clone(),
                        message,
                    });
                }
                Err(RowError {
                    problem: RowProblem::BadColumns { problems },
                    ..
                }) => {
                    return Err(DataError::BadColumns {
                        path: self.path.clone(),
                        problems,
                    });
                }
                Err(error) => {
                    self.rows += 1;
                    self.error_count += 1;
                    if self.errors.len() < MAX_SHOWN_ERRORS {
                        self.errors.push(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, row: &Row) {
        self.rows += 1;
        self.mode = Some(ReportMode::with(self.mode, row.mode));
        // A sound row is an object.
        let columns: BTreeMap<String, &RawValue> =
            serde_json::from_str(row.body.as_str()).unwrap_or_default();
        for column in columns.into_keys() {
            if let Some(count) = self.columns.get_mut(&column) {
                *count += 1;
            } else if self.columns.len() < MAX_COLUMNS {
                self.columns.insert(column, 1);
            }
        }
    }
}

/// Digests what is read through it.
struct Digesting<R> {
    inner: R,
    digest: Sha256,
    bytes: u64,
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.digest.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}
