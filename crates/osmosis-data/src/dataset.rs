use std::fs::File;
use std::io::{self, BufRead, BufReader};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::DatasetColumns;

use crate::decompress::Text;
use crate::table::missing_columns;
use crate::{
    ArrowRows, Compression, CsvRows, DataError, Format, JsonlRows, ParquetRows, Report, Row,
    RowError, RowProblem, Taking, pattern, report, saved_folder,
};

/// What is read of a file at a time.
const BUFFER_BYTES: usize = 1 << 16;

/// A dataset of a format we read: a file, or several whose rows follow each other. Holds no row.
#[derive(Debug, Clone)]
pub struct Dataset {
    path: Utf8PathBuf,
    /// At least one, in the order of their rows.
    files: Vec<Utf8PathBuf>,
    format: Format,
    taking: Taking,
    columns: DatasetColumns,
}

impl Dataset {
    /// Looks at the names and kinds of the files, not yet at their rows. `path` is a file, a pattern or a folder that
    /// Hugging Face's `datasets` saved.
    pub fn open(path: impl AsRef<Utf8Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let files = match path.metadata() {
            Ok(metadata) if metadata.is_file() => vec![path.to_owned()],
            Ok(metadata) if metadata.is_dir() => saved_folder::files(path)?,
            Ok(_) => {
                return Err(DataError::NotAFile {
                    path: path.to_owned(),
                });
            }
            Err(_) if pattern::is_pattern(path) => pattern::files(path),
            Err(error) => return Err(unreadable(path, &error)),
        };
        let Some(first) = files.first() else {
            let missing = io::Error::from(io::ErrorKind::NotFound);
            return Err(unreadable(path, &missing));
        };
        if files.len() > pattern::MAX_FILES {
            return Err(DataError::TooManyFiles {
                pattern: path.to_owned(),
            });
        }
        let format = Format::of(first)?;
        for file in &files {
            if Format::of(file)? != format {
                return Err(DataError::MixedFormats {
                    pattern: path.to_owned(),
                });
            }
        }
        Ok(Self {
            path: path.to_owned(),
            files,
            format,
            taking: Taking::Columns,
            columns: DatasetColumns::default(),
        })
    }

    /// The same files, of whose rows this is taken.
    #[must_use]
    pub fn with(self, taking: Taking) -> Self {
        Self { taking, ..self }
    }

    /// The same files, whose columns have these names.
    #[must_use]
    pub fn with_columns(self, columns: DatasetColumns) -> Self {
        Self { columns, ..self }
    }

    pub fn taking(&self) -> Taking {
        self.taking
    }

    pub fn columns(&self) -> &DatasetColumns {
        &self.columns
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// What its rows are in, in their order.
    pub fn files(&self) -> &[Utf8PathBuf] {
        &self.files
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// What the first file is compressed with.
    pub fn compression(&self) -> Option<Compression> {
        self.files.first().and_then(|file| Compression::of(file))
    }

    /// Reads the files from their start, one row at a time. A file that can't be opened any more is an error in place
    /// of its first row.
    pub fn rows(&self) -> Rows {
        Rows {
            files: self.files.clone().into_iter(),
            dataset: self.clone(),
            current: None,
            first_index: 0,
            next_index: 0,
            ended: false,
        }
    }

    fn source(&self, path: &Utf8Path) -> io::Result<Source> {
        let file = File::open(path)?;
        Ok(match self.format {
            Format::Jsonl => {
                let rows = JsonlRows::new(text(path, buffered(file))?).taking(self.taking);
                Source::Jsonl(Box::new(rows.columns(self.columns.clone())))
            }
            Format::Csv => {
                let rows = CsvRows::new(text(path, buffered(file))?).taking(self.taking);
                Source::Csv(Box::new(rows.columns(self.columns.clone())))
            }
            Format::Parquet => {
                let rows = ParquetRows::new(file, self.taking, &self.columns);
                Source::Parquet(Box::new(rows))
            }
            Format::Arrow => {
                let rows = ArrowRows::new(file, self.taking, &self.columns);
                Source::Arrow(Box::new(rows))
            }
        })
    }

    /// Where a file's rows are among all of them, when the rows before it are so many.
    pub(crate) fn place(&self, file: &Utf8Path, first_index: u64) -> Place {
        Place {
            first_index,
            file: (self.files.len() > 1).then(|| file.to_owned()),
        }
    }

    /// Refuses files whose rows have these columns, and lack one that the config names or no row may lack.
    pub fn check_columns(&self, there: &[String]) -> Result<(), DataError> {
        let problems = missing_columns(there, self.taking, &self.columns);
        if problems.is_empty() {
            return Ok(());
        }
        Err(DataError::BadColumns {
            path: self.path.clone(),
            problems,
        })
    }

    /// Reads every row once and says what the files hold.
    pub fn validate(&self) -> Result<Report, DataError> {
        report::read(self)
    }
}

/// What a file says when it is not compressed any more.
pub(crate) fn text<R: BufRead>(path: &Utf8Path, file: R) -> io::Result<Text<R>> {
    Text::new(Compression::of(path), file)
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

/// Where the rows of a file are in its dataset.
#[derive(Debug)]
pub(crate) struct Place {
    first_index: u64,
    /// In a dataset of several.
    file: Option<Utf8PathBuf>,
}

impl Place {
    /// The row as one of the dataset. Where there are several files, rows are numbered through and errors name theirs.
    pub(crate) fn of(&self, row: Result<Row, RowError>) -> Result<Row, RowError> {
        match row {
            Ok(mut row) => {
                row.index += self.first_index;
                if self.file.is_some() {
                    row.line = row.index + 1;
                }
                Ok(row)
            }
            Err(mut error) => {
                error.index += self.first_index;
                error.file.clone_from(&self.file);
                Err(error)
            }
        }
    }
}

/// The rows of a dataset in the order of its files.
#[derive(Debug)]
pub struct Rows {
    files: std::vec::IntoIter<Utf8PathBuf>,
    dataset: Dataset,
    current: Option<(Place, Source)>,
    first_index: u64,
    next_index: u64,
    ended: bool,
}

#[derive(Debug)]
enum Source {
    Jsonl(Box<JsonlRows<Text<BufReader<File>>>>),
    Csv(Box<CsvRows<Text<BufReader<File>>>>),
    Parquet(Box<ParquetRows>),
    Arrow(Box<ArrowRows>),
    Unopened(Option<RowError>),
}

impl Iterator for Source {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Jsonl(rows) => rows.next(),
            Self::Csv(rows) => rows.next(),
            Self::Parquet(rows) => rows.next(),
            Self::Arrow(rows) => rows.next(),
            Self::Unopened(error) => error.take().map(Err),
        }
    }
}

impl Iterator for Rows {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let Some((place, source)) = &mut self.current else {
                let Some(file) = self.files.next() else {
                    self.ended = true;
                    return None;
                };
                let source = self.dataset.source(&file).unwrap_or_else(|error| {
                    let problem = RowProblem::unreadable(&error);
                    Source::Unopened(Some(RowError::new(0, 1, None, problem)))
                });
                self.first_index = self.next_index;
                self.current = Some((self.dataset.place(&file, self.first_index), source));
                continue;
            };
            let Some(row) = source.next() else {
                self.current = None;
                continue;
            };
            let row = place.of(row);
            let index = match &row {
                Ok(row) => row.index,
                Err(error) => {
                    // Without this file, the rows of those that follow would have other numbers.
                    self.ended = error.problem.is_of_the_file();
                    error.index
                }
            };
            self.next_index = index + 1;
            return Some(row);
        }
        None
    }
}
