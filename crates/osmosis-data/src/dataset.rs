use std::fs::File;
use std::io::BufReader;

use camino::{Utf8Path, Utf8PathBuf};

use crate::jsonl::JsonlRows;
use crate::{DataError, Format, Report, Row, RowError, RowProblem, report};

/// A dataset file of a format we read. Holds no row.
#[derive(Debug, Clone)]
pub struct Dataset {
    path: Utf8PathBuf,
    format: Format,
}

impl Dataset {
    /// Looks at the file's name and kind, not yet at its rows.
    pub fn open(path: impl AsRef<Utf8Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let metadata = path.metadata().map_err(|error| unreadable(path, &error))?;
        if !metadata.is_file() {
            return Err(DataError::NotAFile {
                path: path.to_owned(),
            });
        }
        let format = Format::of(path)?;
        Ok(Self {
            path: path.to_owned(),
            format,
        })
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Reads the file from its start, one row at a time. A file that can't be opened any more is an
    /// error in place of the first row.
    pub fn rows(&self) -> Rows {
        let source = match (File::open(&self.path), self.format) {
            (Ok(file), Format::Jsonl) => Source::Jsonl(JsonlRows::new(BufReader::new(file))),
            (Err(error), Format::Jsonl) => Source::Unopened(Some(RowError {
                index: 0,
                line: 1,
                column: None,
                problem: RowProblem::Unreadable {
                    message: error.to_string(),
                },
            })),
        };
        Rows { source }
    }

    /// Reads every row once and says what the file holds.
    pub fn validate(&self) -> Result<Report, DataError> {
        report::read(self)
    }
}

pub(crate) fn unreadable(path: &Utf8Path, error: &std::io::Error) -> DataError {
    if error.kind() == std::io::ErrorKind::NotFound {
        return DataError::NotFound {
            reference: path.to_string(),
            looked_at: vec![path.to_owned()],
            instead: Vec::new(),
        };
    }
    DataError::Unreadable {
        path: path.to_owned(),
        message: error.to_string(),
    }
}

/// The rows of a dataset in the order of the file.
#[derive(Debug)]
pub struct Rows {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Jsonl(JsonlRows<BufReader<File>>),
    Unopened(Option<RowError>),
}

impl Iterator for Rows {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.source {
            Source::Jsonl(rows) => rows.next(),
            Source::Unopened(error) => error.take().map(Err),
        }
    }
}
