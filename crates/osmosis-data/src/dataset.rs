use std::fs::File;
use std::io::{self, BufRead, BufReader};

use camino::{Utf8Path, Utf8PathBuf};

use crate::decompress::Text;
use crate::{
    Compression, CsvRows, DataError, Format, JsonlRows, ParquetRows, Report, Row, RowError,
    RowProblem, Taking, report,
};

/// What is read of a file at a time.
const BUFFER_BYTES: usize = 1 << 16;

/// A dataset file of a format we read. Holds no row.
#[derive(Debug, Clone)]
pub struct Dataset {
    path: Utf8PathBuf,
    format: Format,
    taking: Taking,
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
            taking: Taking::Columns,
        })
    }

    /// The same file, of whose rows this is taken.
    #[must_use]
    pub fn with(self, taking: Taking) -> Self {
        Self { taking, ..self }
    }

    pub fn taking(&self) -> Taking {
        self.taking
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// What the whole file is compressed with.
    pub fn compression(&self) -> Option<Compression> {
        Compression::of(&self.path)
    }

    /// Reads the file from its start, one row at a time. A file that can't be opened any more is an
    /// error in place of the first row.
    pub fn rows(&self) -> Rows {
        let source = match self.source() {
            Ok(source) => source,
            Err(error) => Source::Unopened(Some(RowError {
                index: 0,
                line: 1,
                column: None,
                problem: RowProblem::unreadable(&error),
            })),
        };
        Rows { source }
    }

    fn source(&self) -> io::Result<Source> {
        let file = File::open(&self.path)?;
        Ok(match self.format {
            Format::Jsonl => {
                let rows = JsonlRows::new(self.text(buffered(file))?);
                Source::Jsonl(Box::new(rows.taking(self.taking)))
            }
            Format::Csv => {
                let rows = CsvRows::new(self.text(buffered(file))?);
                Source::Csv(Box::new(rows.taking(self.taking)))
            }
            Format::Parquet => Source::Parquet(Box::new(ParquetRows::taking(file, self.taking))),
        })
    }

    /// What the file says when it is not compressed any more.
    pub(crate) fn text<R: BufRead>(&self, file: R) -> io::Result<Text<R>> {
        Text::new(self.compression(), file)
    }

    /// Reads every row once and says what the file holds.
    pub fn validate(&self) -> Result<Report, DataError> {
        report::read(self)
    }
}

pub(crate) fn buffered<R: io::Read>(file: R) -> BufReader<R> {
    BufReader::with_capacity(BUFFER_BYTES, file)
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
    Jsonl(Box<JsonlRows<Text<BufReader<File>>>>),
    Csv(Box<CsvRows<Text<BufReader<File>>>>),
    Parquet(Box<ParquetRows>),
    Unopened(Option<RowError>),
}

impl Iterator for Rows {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.source {
            Source::Jsonl(rows) => rows.next(),
            Source::Csv(rows) => rows.next(),
            Source::Parquet(rows) => rows.next(),
            Source::Unopened(error) => error.take().map(Err),
        }
    }
}
