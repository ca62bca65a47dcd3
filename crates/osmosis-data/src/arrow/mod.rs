//! Arrow's IPC formats: streams, as Hugging Face's `datasets` writes them, and files.
//!
//! Read here and not by the `arrow` crates, which make room for all that a file declares before they read it.
//! This reader holds a small window of each buffer, whatever a file declares.

mod batch;
mod flatbuffer;
mod schema;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use osmosis_core::config::DatasetColumns;

use self::batch::{Batch, ValueProblem};
use self::flatbuffer::Table as Fields;
use self::schema::{Schema, SchemaProblem};
use crate::{Row, RowError, RowProblem, Taking};

/// What a file of Arrow's file format starts with; a stream follows after two bytes more.
const MAGIC: &[u8; 6] = b"ARROW1";
/// Stands before every message since Arrow 0.15.
const CONTINUATION: u32 = u32::MAX;
/// A message's description, without the data.
const MAX_MESSAGE_BYTES: u32 = 16 << 20;

const SCHEMA: u8 = 1;
const RECORD_BATCH: u8 = 3;

/// Why a file can't be read any further.
#[derive(Debug)]
struct Damage {
    message: String,
}

impl Damage {
    fn new(message: &str) -> Self {
        Self {
            message: format!("the Arrow data can't be read: {message}"),
        }
    }

    fn of(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Self::cut_short();
        }
        Self {
            message: error.to_string(),
        }
    }

    fn cut_short() -> Self {
        Self {
            message: "the Arrow data is cut short".to_owned(),
        }
    }
}

/// Rows out of an Arrow file or stream. Holds one of them, and of each column a window.
pub struct ArrowRows {
    file: File,
    file_bytes: u64,
    /// Where the next message is.
    at: u64,
    schema: Option<Schema>,
    /// What keeps the file from being read.
    problem: Option<RowProblem>,
    batch: Option<Batch>,
    /// In the batch.
    next_row: u64,
    next_index: u64,
    ended: bool,
}

impl fmt::Debug for ArrowRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrowRows")
            .field("at", &self.at)
            .field("next_index", &self.next_index)
            .finish_non_exhaustive()
    }
}

/// A message: its description, and where its data is.
struct Message {
    bytes: Vec<u8>,
    body: (u64, u64),
}

impl ArrowRows {
    /// Reads the file's description; a problem with it comes in place of the first row.
    pub fn new(file: File, taking: Taking, columns: &DatasetColumns) -> Self {
        let mut rows = Self {
            file_bytes: file.metadata().map_or(0, |metadata| metadata.len()),
            file,
            at: 0,
            schema: None,
            problem: None,
            batch: None,
            next_row: 0,
            next_index: 0,
            ended: false,
        };
        match rows.read_schema(taking, columns) {
            Ok(schema) => rows.schema = Some(schema),
            Err(problem) => rows.problem = Some(problem),
        }
        rows
    }

    fn read_schema(
        &mut self,
        taking: Taking,
        columns: &DatasetColumns,
    ) -> Result<Schema, RowProblem> {
        let mut start = [0; 6];
        let length = usize::try_from(self.file_bytes).unwrap_or(6).min(6);
        let read = self.file.read_exact_at(&mut start[..length], 0);
        read.map_err(|error| RowProblem::unreadable(&error))?;
        if start == *MAGIC {
            self.at = 8;
        }
        let no_arrow = || RowProblem::Unreadable {
            message: "this is no Arrow data".to_owned(),
        };
        let message = match self.message() {
            Ok(Some(message)) => message,
            // A file that starts with something else declares any length.
            Ok(None) | Err(_) if self.at == 0 && start[..4] != [0xff; 4] => return Err(no_arrow()),
            Ok(None) => return Err(no_arrow()),
            Err(damage) => return Err(damage.into()),
        };
        let root = Fields::root(&message.bytes).ok_or_else(no_arrow)?;
        if root.u8(1) != Some(SCHEMA) {
            return Err(no_arrow());
        }
        let schema = root.table(2).ok_or_else(no_arrow)?;
        self.at = message.body.0 + message.body.1;
        Schema::of(schema, taking, columns).map_err(|problem| match problem {
            SchemaProblem::Damaged(message) => Damage::new(message).into(),
            SchemaProblem::Columns(problems) => RowProblem::BadColumns { problems },
        })
    }

    /// The message at `self.at`; `None` where the stream ends.
    fn message(&self) -> Result<Option<Message>, Damage> {
        let word = |at: u64| {
            let mut bytes = [0; 4];
            let read = self.file.read_exact_at(&mut bytes, at);
            read.map_err(|error| Damage::of(&error))?;
            Ok::<u32, Damage>(u32::from_le_bytes(bytes))
        };
        let first = word(self.at)?;
        let (size, at) = if first == CONTINUATION {
            (word(self.at + 4)?, self.at + 8)
        } else {
            (first, self.at + 4)
        };
        if size == 0 {
            return Ok(None);
        }
        if size > MAX_MESSAGE_BYTES {
            return Err(Damage::new("a message is longer than 16 MiB"));
        }
        let end = at + u64::from(size);
        if end > self.file_bytes {
            return Err(Damage::cut_short());
        }
        let mut bytes = vec![0; size as usize];
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_err(|error| Damage::of(&error))?;
        let root = Fields::root(&bytes).ok_or_else(|| Damage::new("a message is broken"))?;
        let body = u64::try_from(root.i64(3).unwrap_or(0))
            .map_err(|_| Damage::new("a message is broken"))?;
        match end.checked_add(body) {
            Some(body_end) if body_end <= self.file_bytes => Ok(Some(Message {
                bytes,
                body: (end, body),
            })),
            Some(_) | None => Err(Damage::cut_short()),
        }
    }

    /// Makes sure that there is a row in the batch; `false` at the end of the file.
    fn fill(&mut self) -> Result<bool, Damage> {
        loop {
            if let Some(batch) = &self.batch
                && self.next_row < batch.rows
            {
                return Ok(true);
            }
            self.batch = None;
            self.next_row = 0;
            let Some(message) = self.message()? else {
                return Ok(false);
            };
            self.at = message.body.0 + message.body.1;
            let Some(schema) = &self.schema else {
                return Ok(false);
            };
            let Some(root) = Fields::root(&message.bytes) else {
                return Err(Damage::new("a message is broken"));
            };
            // Columns with dictionaries are refused, so whatever else comes says nothing.
            if root.u8(1) == Some(RECORD_BATCH) {
                let header = root.table(2);
                let header = header.ok_or_else(|| Damage::new("a message is broken"))?;
                self.batch = Some(Batch::of(header, &schema.columns, message.body)?);
            }
        }
    }

    fn row(&mut self) -> Result<Option<Result<Row, RowError>>, Damage> {
        if !self.fill()? {
            return Ok(None);
        }
        let (Some(batch), Some(schema)) = (&mut self.batch, &self.schema) else {
            return Ok(None);
        };
        let mut body = String::new();
        let written = batch.write_row(&self.file, &schema.columns, self.next_row, &mut body);
        let index = self.next_index;
        // From 1, like the lines of a file.
        let line = index + 1;
        self.next_row += 1;
        self.next_index += 1;
        match written {
            Ok(()) => Ok(Some(schema.table.row(index, line, body))),
            Err(ValueProblem::Row(problem)) => {
                Ok(Some(Err(RowError::new(index, line, None, problem))))
            }
            Err(ValueProblem::Damage(damage)) => {
                self.next_index = index;
                Err(damage)
            }
        }
    }
}

impl From<Damage> for RowProblem {
    fn from(damage: Damage) -> Self {
        Self::Unreadable {
            message: damage.message,
        }
    }
}

impl Iterator for ArrowRows {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let problem = match self.problem.take() {
            Some(problem) => problem,
            None => match self.row() {
                Ok(Some(row)) => return Some(row),
                Ok(None) => {
                    self.ended = true;
                    return None;
                }
                // Nothing that comes after it can be trusted.
                Err(damage) => damage.into(),
            },
        };
        self.ended = true;
        let index = self.next_index;
        Some(Err(RowError::new(index, index + 1, None, problem)))
    }
}
