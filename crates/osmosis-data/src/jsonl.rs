use std::io::{BufRead, ErrorKind};

use osmosis_core::config::DatasetColumns;
use osmosis_core::{JsonText, duplicate_json_field};

use crate::column_names::renamed;
use crate::{Row, RowError, RowProblem, Taking, row};

/// A row beyond this is an error and is skipped; it would not fit a frame to a worker either.
pub const MAX_ROW_BYTES: usize = osmosis_core::frame::MAX_FRAME_BYTES / 2;

/// So much may stand between two rows and say nothing.
pub(crate) const MAX_BLANK_BYTES: u64 = MAX_ROW_BYTES as u64;

/// Rows out of JSON lines. Holds one line at a time.
#[derive(Debug)]
pub struct JsonlRows<R> {
    reader: R,
    line: u64,
    next_index: u64,
    buffer: Vec<u8>,
    ended: bool,
    taking: Taking,
    columns: DatasetColumns,
}

/// What `read_line` found.
enum Line {
    End,
    /// The buffer holds it, without its end.
    Whole,
    /// It was longer than a row may be, and is passed.
    TooLong,
}

impl<R: BufRead> JsonlRows<R> {
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            line: 0,
            next_index: 0,
            buffer: Vec::new(),
            ended: false,
            taking: Taking::Columns,
            columns: DatasetColumns::default(),
        }
    }

    /// The same rows, whose columns have these names.
    #[must_use]
    pub fn columns(self, columns: DatasetColumns) -> Self {
        Self { columns, ..self }
    }

    /// The same rows, of which this is taken.
    #[must_use]
    pub fn taking(self, taking: Taking) -> Self {
        Self { taking, ..self }
    }

    fn read_line(&mut self) -> std::io::Result<Line> {
        self.buffer.clear();
        let mut too_long = false;
        let mut anything = false;
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                break;
            }
            anything = true;
            let newline = memchr::memchr(b'\n', available);
            let part = &available[..newline.unwrap_or(available.len())];
            if self.buffer.len() + part.len() > MAX_ROW_BYTES {
                too_long = true;
                // The memory goes back too: the next line may be short.
                self.buffer = Vec::new();
            } else if !too_long {
                self.buffer.extend_from_slice(part);
            }
            let used = newline.map_or(part.len(), |at| at + 1);
            self.reader.consume(used);
            if newline.is_some() {
                break;
            }
        }
        Ok(match (anything, too_long) {
            (false, _) => Line::End,
            (true, true) => Line::TooLong,
            (true, false) => Line::Whole,
        })
    }

    fn error(&self, index: u64, column: Option<u64>, problem: RowProblem) -> RowError {
        RowError::new(index, self.line, column, problem)
    }

    fn parse(&self, index: u64) -> Result<Row, RowError> {
        let bytes = trimmed(&self.buffer, self.line);
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let sound = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let column = sound.chars().count() as u64 + 1;
            self.error(index, Some(column), RowProblem::NotUtf8)
        })?;
        let body = JsonText::parse(text);
        if body.is_ok()
            && let Some(name) = duplicate_json_field(text)
        {
            let what = "the row";
            return Err(self.error(index, None, RowProblem::DuplicateField { what, name }));
        }
        match body {
            Ok(body) if !self.columns.is_empty() => self.parse_renamed(index, body),
            Ok(body) => row::read(index, self.line, body, self.taking).map_err(|mut error| {
                // The body starts where its brace is.
                let indent = text.chars().take_while(char::is_ascii_whitespace).count();
                error.column = error.column.map(|column| column + indent as u64);
                error
            }),
            Err(error) => Err(row::not_json(index, self.line, text, &error)),
        }
    }
}

impl<R> JsonlRows<R> {
    /// Reads a row whose columns have other names. A place in what is read is none in the file.
    fn parse_renamed(&self, index: u64, body: JsonText) -> Result<Row, RowError> {
        let body = match renamed(body.as_str(), &self.columns).map(JsonText::parse) {
            Ok(Ok(body)) => body,
            // No object, which has its own message.
            Ok(Err(_)) | Err(_) => body,
        };
        row::read(index, self.line, body, self.taking).map_err(|mut error| {
            error.column = None;
            if let RowProblem::Missing {
                column,
                named,
                there,
            } = &mut error.problem
            {
                *named = self.columns.of(column).map(str::to_owned);
                for name in there {
                    if let Some(theirs) = self.columns.of(name) {
                        theirs.clone_into(name);
                    }
                }
            }
            error
        })
    }
}

/// A line without a byte order mark and the line end of other systems.
fn trimmed(bytes: &[u8], line: u64) -> &[u8] {
    let bytes = match line {
        1 => bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes),
        _ => bytes,
    };
    bytes.strip_suffix(b"\r").unwrap_or(bytes)
}

impl<R: BufRead> Iterator for JsonlRows<R> {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut blank: u64 = 0;
        while !self.ended {
            self.line += 1;
            let line = match self.read_line() {
                Ok(line) => line,
                Err(error) => {
                    self.ended = true;
                    let problem = RowProblem::unreadable(&error);
                    return Some(Err(self.error(self.next_index, None, problem)));
                }
            };
            let index = self.next_index;
            match line {
                Line::End => self.ended = true,
                Line::Whole if trimmed(&self.buffer, self.line).trim_ascii().is_empty() => {
                    blank += self.buffer.len() as u64 + 1;
                    if blank > MAX_BLANK_BYTES {
                        self.ended = true;
                        return Some(Err(self.error(index, None, RowProblem::too_blank())));
                    }
                }
                Line::Whole => {
                    self.next_index += 1;
                    return Some(self.parse(index));
                }
                Line::TooLong => {
                    self.next_index += 1;
                    return Some(Err(self.error(index, None, RowProblem::TooLong)));
                }
            }
        }
        None
    }
}
