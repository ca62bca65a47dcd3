mod leaf;
mod pages;
mod shape;
mod source;
pub(crate) mod value;

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use parquet::column::reader::get_column_reader;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use osmosis_core::config::DatasetColumns;
use osmosis_core::panics;

use self::leaf::{Damage, Leaf, Levels};
use self::pages::Pages;
use self::shape::{Field, Node, Shape};
use self::source::Source;
use crate::{Row, RowError, RowProblem, Taking};

/// About how many bytes of rows are held at a time.
const BATCH_BYTES: i64 = 1 << 20;

/// At most how many rows are held at a time.
const MAX_BATCH_ROWS: i64 = 1024;

/// Rows out of a parquet file. Holds a few of them, and of each column a page.
pub struct ParquetRows {
    file: Option<SerializedFileReader<Source>>,
    shape: Option<Shape>,
    /// What keeps the file from being read.
    problem: Option<RowProblem>,
    next_group: usize,
    /// One for each leaf column of the current row group.
    leaves: Vec<Box<dyn Leaf>>,
    /// Rows of the current group that are in no batch yet.
    rows_left: u64,
    batch_rows: u64,
    /// Rows of the current batch that are still to be read.
    batch_left: u64,
    next_index: u64,
}

impl fmt::Debug for ParquetRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetRows")
            .field("next_group", &self.next_group)
            .field("next_index", &self.next_index)
            .finish_non_exhaustive()
    }
}

impl ParquetRows {
    /// Reads the file's description; a problem with it comes in place of the first row.
    pub fn new(file: File, taking: Taking, columns: &DatasetColumns) -> Self {
        let mut rows = Self {
            file: None,
            shape: None,
            problem: None,
            next_group: 0,
            leaves: Vec::new(),
            rows_left: 0,
            batch_rows: 0,
            batch_left: 0,
            next_index: 0,
        };
        let opened = check_marks(&file).and_then(|()| {
            guarded(|| SerializedFileReader::new(Source(file)).map_err(Damage::from))
        });
        match opened {
            Ok(file) => {
                match Shape::of(file.metadata().file_metadata().schema(), taking, columns) {
                    Ok(shape) => rows.shape = Some(shape),
                    Err(problems) => rows.problem = Some(RowProblem::BadColumns { problems }),
                }
                rows.file = Some(file);
            }
            Err(damage) => rows.problem = Some(damage.into()),
        }
        rows
    }

    /// Makes sure that there is a row in the batch; `false` at the end of the file.
    fn fill(&mut self) -> Result<bool, Damage> {
        let Some(file) = &self.file else {
            return Ok(false);
        };
        while self.batch_left == 0 {
            if self.rows_left == 0 {
                if self.next_group >= file.num_row_groups() {
                    return Ok(false);
                }
                let group = file.get_row_group(self.next_group)?;
                self.next_group += 1;
                let metadata = group.metadata();
                let rows = metadata.num_rows();
                self.rows_left = u64::try_from(rows)
                    .map_err(|_| Damage::new("a row group has a negative number of rows"))?;
                self.batch_rows = batch_rows(rows, metadata.total_byte_size());
                self.leaves.clear();
                let columns = metadata.schema_descr().columns();
                if columns.len() != group.num_columns() {
                    return Err(Damage::new("a row group lacks columns"));
                }
                for (index, column) in columns.iter().enumerate() {
                    let pages = Pages::new(group.get_column_page_reader(index)?);
                    let reader = get_column_reader(column.clone(), Box::new(pages));
                    self.leaves.push(leaf::open(reader, column.max_def_level()));
                }
                continue;
            }
            let rows = self.batch_rows.min(self.rows_left);
            for leaf in &mut self.leaves {
                leaf.fill(usize::try_from(rows).unwrap_or(usize::MAX))?;
            }
            self.rows_left -= rows;
            self.batch_left = rows;
        }
        Ok(true)
    }

    fn row(&mut self, index: u64) -> Result<Result<Row, RowError>, Damage> {
        let Some(shape) = &self.shape else {
            return Err(Damage::new("there are no columns"));
        };
        self.batch_left -= 1;
        let mut assembly = Assembly {
            leaves: &mut self.leaves,
            body: String::from("{"),
            problem: None,
        };
        for column in &shape.columns {
            if column.left_out {
                // Read all the same, so that the columns stay in step.
                let (length, problem) = (assembly.body.len(), assembly.problem.take());
                assembly.write(column)?;
                assembly.body.truncate(length);
                assembly.problem = problem;
                continue;
            }
            if assembly.body.len() > 1 {
                assembly.body.push(',');
            }
            assembly.body.push_str(&column.key);
            assembly.body.push(':');
            assembly.write(column)?;
        }
        assembly.body.push('}');
        let Assembly { body, problem, .. } = assembly;
        for leaf in &self.leaves {
            if leaf.levels().is_some_and(|levels| levels.rep != 0) {
                return Err(Damage::new("the columns of a row don't fit together"));
            }
        }
        // From 1, like the lines of a file.
        let line = index + 1;
        Ok(match problem {
            Some(problem) => Err(RowError::new(index, line, None, problem)),
            None => shape.table.row(index, line, body),
        })
    }
}

impl Iterator for ParquetRows {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next_index;
        let problem = if let Some(problem) = self.problem.take() {
            self.file = None;
            problem
        } else {
            let more = if self.batch_left > 0 {
                Ok(true)
            } else {
                guarded(|| self.fill())
            };
            let next = match more {
                Ok(true) => self.row(index),
                Ok(false) => return None,
                Err(damage) => Err(damage),
            };
            match next {
                Ok(row) => {
                    self.next_index += 1;
                    return Some(row);
                }
                Err(damage) => {
                    // Nothing that comes after it can be trusted.
                    self.file = None;
                    damage.into()
                }
            }
        };
        self.batch_left = 0;
        Some(Err(RowError::new(index, index + 1, None, problem)))
    }
}

impl From<Damage> for RowProblem {
    fn from(damage: Damage) -> Self {
        Self::Unreadable {
            message: damage.message,
        }
    }
}

impl From<ParquetError> for Damage {
    fn from(error: ParquetError) -> Self {
        let message = match error {
            ParquetError::General(message) | ParquetError::EOF(message) => message,
            ParquetError::NYI(message) => format!("not supported: {message}"),
            other => other.to_string(),
        };
        Self::new(format!("the parquet data is damaged: {message}"))
    }
}

/// What a parquet file starts and ends with.
const MARK: &[u8; 4] = b"PAR1";

/// Tells what never was a parquet file from one that was cut short.
fn check_marks(mut file: &File) -> Result<(), Damage> {
    let failed = |error: io::Error| Damage::new(error.to_string());
    let mut mark = [0; 4];
    match file.read_exact(&mut mark) {
        Ok(()) if mark == *MARK => {}
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(failed(error)),
        Ok(()) | Err(_) => return Err(Damage::new("this is no parquet data")),
    }
    file.seek(SeekFrom::End(-4)).map_err(failed)?;
    file.read_exact(&mut mark).map_err(failed)?;
    if mark == *MARK {
        Ok(())
    } else {
        Err(Damage::new("the parquet data is cut short"))
    }
}

/// How many rows to hold at a time, when rows are of the average size.
fn batch_rows(rows: i64, bytes: i64) -> u64 {
    let row_bytes = bytes.checked_div(rows).unwrap_or(0).max(1);
    let rows = (BATCH_BYTES / row_bytes).clamp(1, MAX_BATCH_ROWS);
    rows.unsigned_abs()
}

/// A row on its way from columns to one JSON object.
struct Assembly<'a> {
    leaves: &'a mut [Box<dyn Leaf>],
    body: String,
    /// The first value that can't be said. The row is read to its end all the same, so that the
    /// columns stay in step.
    problem: Option<RowProblem>,
}

impl Assembly<'_> {
    fn write(&mut self, field: &Field) -> Result<(), Damage> {
        let def = self.first(field)?.def;
        if def < field.def {
            self.skip(field)?;
            self.body.push_str("null");
            return Ok(());
        }
        match &field.node {
            Node::Leaf(kind) => {
                let start = self.body.len();
                let leaf = leaf_of(self.leaves, field.leaves.start)?;
                if let Err(fault) = leaf.take(*kind, &mut self.body)? {
                    self.body.truncate(start);
                    self.body.push_str("null");
                    self.problem.get_or_insert_with(|| fault.at(&field.name));
                }
            }
            Node::Struct(fields) => {
                self.body.push('{');
                for (place, field) in fields.iter().enumerate() {
                    if place > 0 {
                        self.body.push(',');
                    }
                    self.body.push_str(&field.key);
                    self.body.push(':');
                    self.write(field)?;
                }
                self.body.push('}');
            }
            Node::List(element) => {
                self.body.push('[');
                self.repeat(field, |assembly| assembly.write(element))?;
                self.body.push(']');
            }
            Node::Map { key, value } => {
                self.body.push('{');
                self.repeat(field, |assembly| {
                    let start = assembly.body.len();
                    assembly.write(key)?;
                    // JSON has only texts for keys.
                    if !assembly.body[start..].starts_with('"') {
                        assembly.body.insert(start, '"');
                        assembly.body.push('"');
                    }
                    assembly.body.push(':');
                    assembly.write(value)
                })?;
                self.body.push('}');
            }
        }
        Ok(())
    }

    /// Writes what is repeated in `field`, with commas between.
    fn repeat(
        &mut self,
        field: &Field,
        write: impl Fn(&mut Self) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        // One level more than that of the list itself says that there is something in it.
        if self.first(field)?.def <= field.def {
            return self.skip(field);
        }
        let level = field.rep + 1;
        loop {
            write(self)?;
            match leaf_of(self.leaves, field.leaves.start)?.levels() {
                Some(levels) if levels.rep >= level => self.body.push(','),
                Some(_) | None => return Ok(()),
            }
        }
    }

    fn first(&mut self, field: &Field) -> Result<Levels, Damage> {
        leaf_of(self.leaves, field.leaves.start)?
            .levels()
            .ok_or_else(|| Damage::new("a column ends before its rows"))
    }

    fn skip(&mut self, field: &Field) -> Result<(), Damage> {
        for index in field.leaves.clone() {
            leaf_of(self.leaves, index)?.skip()?;
        }
        Ok(())
    }
}

fn leaf_of(leaves: &mut [Box<dyn Leaf>], index: usize) -> Result<&mut Box<dyn Leaf>, Damage> {
    leaves
        .get_mut(index)
        .ok_or_else(|| Damage::new("a row group lacks columns"))
}

/// Runs a part of the parquet library, which may panic over a damaged file.
fn guarded<T>(read: impl FnOnce() -> Result<T, Damage>) -> Result<T, Damage> {
    panics::guarded(read).unwrap_or_else(|_| Err(Damage::new("the parquet data is damaged")))
}
