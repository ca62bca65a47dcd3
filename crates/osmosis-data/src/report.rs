use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::dataset::{Place, buffered, text, unreadable};
use crate::table::missing_columns;
use crate::{
    ArrowRows, ColumnProblem, Compression, CsvRows, DataError, Dataset, Format, JsonlRows,
    ParquetRows, Row, RowError, RowMode, RowProblem,
};

/// How many bad rows a report shows; it counts all of them.
pub const MAX_SHOWN_ERRORS: usize = 50;

/// How many different columns a report lists.
const MAX_COLUMNS: usize = 1000;

/// What a dataset holds.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub path: Utf8PathBuf,
    /// In the order of their rows; left out when `path` is the only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Utf8PathBuf>,
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
    /// Of the file's bytes, compressed or not, in hex; of the lines of such digests when there are several files.
    pub sha256: String,
    /// In how many rows each column is missing that none may lack.
    #[serde(skip)]
    missing: BTreeMap<&'static str, u64>,
    /// The columns of such rows, as the file calls them.
    #[serde(skip)]
    beside_missing: BTreeSet<String>,
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
                missing: self.missing.clone(),
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
        render_errors(&self.path, &self.errors, self.error_count, &self.missing)
    }
}

/// So many rows that lack the same column have one line together.
const TOGETHER: u64 = 4;

/// Bad rows as `file:line:column: message`, each with its hint. `missing`: how many rows lack a column.
pub(crate) fn render_errors(
    path: &Utf8Path,
    shown: &[RowError],
    count: u64,
    missing: &BTreeMap<&'static str, u64>,
) -> String {
    let mut text = String::new();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    let mut lines = 0;
    for error in shown {
        let mut more = String::new();
        if let RowProblem::Missing { column, .. } = &error.problem
            && let Some(rows) = missing.get(column)
            && *rows >= TOGETHER
        {
            if !told.insert(column) {
                continue;
            }
            lines += rows;
            more = format!(" (and in {} more rows)", rows - 1);
        } else {
            lines += 1;
        }
        let path = error.file.as_deref().unwrap_or(path);
        let place = match error.column {
            Some(column) => format!("{path}:{}:{column}", error.line),
            None => format!("{path}:{}", error.line),
        };
        // Writing to a string can't fail.
        let _ = writeln!(text, "{place}: {}{more}", error.problem);
        if let Some(hint) = error.hint() {
            let _ = writeln!(text, "  hint: {hint}");
        }
    }
    let left = count.saturating_sub(lines);
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
    let mut report = Report {
        path: dataset.path().to_owned(),
        files: match dataset.files() {
            [only] if only == dataset.path() => Vec::new(),
            several => several.to_vec(),
        },
        format: dataset.format(),
        compression: dataset.compression(),
        rows: 0,
        mode: None,
        columns: BTreeMap::new(),
        error_count: 0,
        errors: Vec::new(),
        bytes: 0,
        sha256: String::new(),
        missing: BTreeMap::new(),
        beside_missing: BTreeSet::new(),
    };
    let mut digests = Vec::new();
    for file in dataset.files() {
        digests.push(report.read_file(dataset, file)?);
    }
    report.sha256 = match digests.as_slice() {
        [only] => only.clone(),
        several => {
            let lines = several.iter().flat_map(|digest| [digest.as_str(), "\n"]);
            let mut all = Sha256::new();
            lines.for_each(|line| all.update(line));
            hex(&all.finalize())
        }
    };
    let problems = report.column_problems(dataset);
    if !problems.is_empty() {
        return Err(DataError::BadColumns {
            path: report.path,
            problems,
        });
    }
    Ok(report)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl Report {
    /// Takes the rows of a file, and gives the digest of its bytes.
    fn read_file(&mut self, dataset: &Dataset, path: &Utf8Path) -> Result<String, DataError> {
        let failed = |error: io::Error| unreadable(path, &error);
        let file = File::open(path).map_err(failed)?;
        let mut reader = buffered(Digesting {
            inner: file,
            digest: Sha256::new(),
            bytes: 0,
        });
        let place = dataset.place(path, self.rows);
        let (taking, columns) = (dataset.taking(), dataset.columns());
        match dataset.format() {
            Format::Jsonl => {
                let text = text(path, &mut reader).map_err(failed)?;
                let rows = JsonlRows::new(text).taking(taking);
                self.take_all(rows.columns(columns.clone()), path, &place)?;
            }
            Format::Csv => {
                let text = text(path, &mut reader).map_err(failed)?;
                let rows = CsvRows::new(text).taking(taking);
                self.take_all(rows.columns(columns.clone()), path, &place)?;
            }
            // These are read out of order, and so on their own.
            Format::Parquet => {
                let file = File::open(path).map_err(failed)?;
                self.take_all(ParquetRows::new(file, taking, columns), path, &place)?;
            }
            Format::Arrow => {
                let file = File::open(path).map_err(failed)?;
                self.take_all(ArrowRows::new(file, taking, columns), path, &place)?;
            }
        }
        // The digest is of all bytes, also of those behind the last row.
        io::copy(&mut reader, &mut io::sink()).map_err(failed)?;
        let digesting = reader.into_inner();
        self.bytes += digesting.bytes;
        Ok(hex(&digesting.digest.finalize()))
    }

    /// What is wrong with the columns of a file whose rows have each their own: one problem for all rows.
    fn column_problems(&self, dataset: &Dataset) -> Vec<ColumnProblem> {
        let (taking, columns) = (dataset.taking(), dataset.columns());
        let lacking: u64 = self.missing.values().sum();
        if self.rows > 0 && lacking == self.rows {
            let there: Vec<String> = self.beside_missing.iter().cloned().collect();
            return missing_columns(&there, taking, columns);
        }
        if self.rows == 0 || self.error_count > 0 {
            return Vec::new();
        }
        // A column that the config names and no row has is a slip of the fingers.
        let theirs = |name: &String| columns.of(name).unwrap_or(name).to_owned();
        let there: Vec<String> = self.columns.keys().map(theirs).collect();
        let absent = |(ours, theirs): (&'static str, &str)| {
            (!self.columns.contains_key(ours)).then(|| ColumnProblem::Missing {
                column: ours,
                named: Some(theirs.to_owned()),
                there: there.clone(),
            })
        };
        match dataset.format() {
            Format::Jsonl => columns.named().filter_map(absent).collect(),
            // Their columns were checked before their rows, and an empty cell is none.
            Format::Csv | Format::Parquet | Format::Arrow => Vec::new(),
        }
    }
}

impl Report {
    fn take_all(
        &mut self,
        rows: impl Iterator<Item = Result<Row, RowError>>,
        path: &Utf8Path,
        place: &Place,
    ) -> Result<(), DataError> {
        for row in rows {
            match place.of(row) {
                Ok(row) => self.take(&row),
                Err(RowError {
                    problem: RowProblem::Unreadable { message },
                    ..
                }) => {
                    return Err(DataError::Unreadable {
                        path: path.to_owned(),
                        message,
                    });
                }
                Err(RowError {
                    problem: RowProblem::BadColumns { problems },
                    ..
                }) => {
                    return Err(DataError::BadColumns {
                        path: path.to_owned(),
                        problems,
                    });
                }
                Err(error) => {
                    self.rows += 1;
                    self.error_count += 1;
                    if let RowProblem::Missing { column, there, .. } = &error.problem {
                        *self.missing.entry(column).or_default() += 1;
                        if self.beside_missing.len() < MAX_COLUMNS {
                            self.beside_missing.extend(there.iter().cloned());
                        }
                    }
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
