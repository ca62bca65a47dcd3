use std::fmt;
use std::io::{self, BufRead, ErrorKind};

use csv_core::{ReadRecordResult, Reader};
use osmosis_core::config::{ColumnUse, DatasetColumns};

use crate::json_string::push_json_string;
use crate::jsonl::MAX_BLANK_BYTES;
use crate::table::Table;
use crate::{ColumnProblem, MAX_ROW_BYTES, Row, RowError, RowProblem, Taking};

/// More cells than this in a row are not counted.
pub(crate) const MAX_CELLS: usize = 100_000;

/// What the parser is given to begin with; both grow up to the limits.
const FIRST_BYTES: usize = 4096;
const FIRST_CELLS: usize = 64;

/// A larger buffer is given back after its record.
const KEPT_BYTES: usize = 1 << 20;

/// Rows out of comma-separated values with a header. Holds one record at a time.
pub struct CsvRows<R> {
    reader: WithoutMark<R>,
    parser: Reader,
    header: Option<Header>,
    /// Newlines passed so far, and one.
    line: u64,
    record: Record,
    next_index: u64,
    ended: bool,
    taking: Taking,
    columns: DatasetColumns,
}

impl<R> fmt::Debug for CsvRows<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CsvRows")
            .field("line", &self.line)
            .field("next_index", &self.next_index)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

struct Header {
    table: Table,
    /// For each cell its name as a JSON string; `None` for a column without a name.
    keys: Vec<Option<Key>>,
}

struct Key {
    json: String,
    is_metadata: bool,
}

/// The record that was read last.
#[derive(Default)]
struct Record {
    /// The line it starts on.
    line: u64,
    bytes: Vec<u8>,
    /// Where its cells end in `bytes`.
    ends: Vec<usize>,
    cells: usize,
}

/// What `read_record` found.
enum Found {
    End,
    /// The record holds it.
    Whole,
    /// It was longer than a row may be, and is passed.
    TooLong,
    /// It has more cells than a row may have, and is passed.
    TooManyCells,
    /// Nothing but line ends, and more than there may be between two records.
    TooBlank,
    /// The file ended within quotes.
    OpenQuote,
}

impl<R: BufRead> CsvRows<R> {
    pub fn new(reader: R) -> Self {
        Self {
            reader: WithoutMark::new(reader),
            parser: Reader::new(),
            header: None,
            line: 1,
            record: Record::default(),
            next_index: 0,
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

    fn read_record(&mut self) -> io::Result<Found> {
        if !self.skip_line_ends()? {
            return Ok(Found::TooBlank);
        }
        self.record.begin(self.line);
        let mut started = false;
        let mut written = 0;
        let mut excess = None;
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let at_end = available.is_empty();
            if at_end && !started {
                return Ok(Found::End);
            }
            started = true;
            // A line end that is taken for text was within quotes: the parser itself would let an
            // open quote pass.
            let input = if at_end { b"\n" } else { available };
            let (result, read, output, ends) = self.parser.read_record(
                input,
                &mut self.record.bytes[written..],
                &mut self.record.ends[self.record.cells..],
            );
            if !at_end {
                self.line += newlines(&input[..read]);
                self.reader.consume(read);
            }
            written += output;
            self.record.cells += ends;
            match result {
                ReadRecordResult::Record => return Ok(excess.unwrap_or(Found::Whole)),
                ReadRecordResult::InputEmpty if at_end => return Ok(Found::OpenQuote),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if self.record.grow_bytes() => {}
                ReadRecordResult::OutputEndsFull if self.record.grow_ends() => {}
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    excess.get_or_insert(match result {
                        ReadRecordResult::OutputFull => Found::TooLong,
                        _ => Found::TooManyCells,
                    });
                    self.record.begin(self.record.line);
                    written = 0;
                }
                ReadRecordResult::End => return Ok(Found::End),
            }
        }
    }

    /// Passes the rest of the last line end and blank lines, so that a record's line is its own. `false`
    /// when there is no end of them.
    fn skip_line_ends(&mut self) -> io::Result<bool> {
        let mut blank: u64 = 0;
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let ends = available
                .iter()
                .take_while(|byte| matches!(byte, b'\r' | b'\n'))
                .count();
            self.line += newlines(&available[..ends]);
            let stop = ends < available.len() || available.is_empty();
            self.reader.consume(ends);
            blank += ends as u64;
            if blank > MAX_BLANK_BYTES {
                return Ok(false);
            }
            if stop {
                return Ok(true);
            }
        }
    }

    fn error(&self, index: u64, problem: RowProblem) -> RowError {
        RowError::new(index, self.record.line, None, problem)
    }

    /// Ends the rows with a problem of the file.
    fn end(&mut self, problem: RowProblem) -> RowError {
        self.ended = true;
        self.error(self.next_index, problem)
    }

    fn too_blank(&mut self) -> RowError {
        self.record.line = self.line;
        self.end(RowProblem::too_blank())
    }

    fn row(&self, header: &Header, index: u64) -> Result<Row, RowError> {
        let expected = header.keys.len();
        if self.record.cells != expected {
            let found = self.record.cells;
            return Err(self.error(index, RowProblem::Ragged { expected, found }));
        }
        let mut body = String::from("{");
        for (cell, key) in self.record.iter().zip(&header.keys) {
            let text =
                std::str::from_utf8(cell).map_err(|_| self.error(index, RowProblem::NotUtf8))?;
            let Some(key) = key else { continue };
            if text.is_empty() && !key.is_metadata {
                continue;
            }
            if body.len() > 1 {
                body.push(',');
            }
            body.push_str(&key.json);
            body.push(':');
            if text.is_empty() {
                // The file has the column, which is what makes the others optional.
                body.push_str("null");
            } else {
                push_json_string(&mut body, text);
            }
        }
        body.push('}');
        header.table.row(index, self.record.line, body)
    }
}

impl Header {
    fn of(
        record: &Record,
        taking: Taking,
        columns: &DatasetColumns,
    ) -> Result<Self, Vec<ColumnProblem>> {
        let mut names = Vec::new();
        let mut keys = Vec::new();
        for cell in record.iter() {
            let name = std::str::from_utf8(cell)
                .map_err(|_| vec![ColumnProblem::HeaderNotUtf8])?
                .trim();
            // Spreadsheets and indexes leave columns without a name behind.
            if name.is_empty() {
                keys.push(None);
                continue;
            }
            names.push(name.to_owned());
            let name = match columns.use_of(name) {
                ColumnUse::Kept(name) => name,
                ColumnUse::ReadAs(ours) => ours,
                ColumnUse::LeftOut => {
                    keys.push(None);
                    continue;
                }
            };
            let mut json = String::new();
            push_json_string(&mut json, name);
            keys.push(Some(Key {
                json,
                is_metadata: name == "metadata",
            }));
        }
        let table = Table::of(&names, taking, columns)?;
        Ok(Self { table, keys })
    }
}

impl Record {
    fn begin(&mut self, line: u64) {
        self.line = line;
        self.cells = 0;
        if self.bytes.is_empty() || self.bytes.len() > KEPT_BYTES {
            self.bytes = vec![0; FIRST_BYTES];
        }
        if self.ends.is_empty() {
            self.ends = vec![0; FIRST_CELLS];
        }
    }

    /// `false` at the limit.
    fn grow_bytes(&mut self) -> bool {
        let room = self.bytes.len() < MAX_ROW_BYTES;
        if room {
            let size = (self.bytes.len() * 2).min(MAX_ROW_BYTES);
            self.bytes.resize(size, 0);
        }
        room
    }

    fn grow_ends(&mut self) -> bool {
        let room = self.ends.len() < MAX_CELLS;
        if room {
            let size = (self.ends.len() * 2).min(MAX_CELLS);
            self.ends.resize(size, 0);
        }
        room
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends[..self.cells].iter().map(move |end| {
            let cell = &self.bytes[start..*end];
            start = *end;
            cell
        })
    }
}

impl<R: BufRead> Iterator for CsvRows<R> {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        if self.header.is_none() {
            let problems = match self.read_record() {
                Err(error) => return Some(Err(self.end(RowProblem::unreadable(&error)))),
                Ok(Found::End) => {
                    self.ended = true;
                    return None;
                }
                Ok(Found::Whole) => match Header::of(&self.record, self.taking, &self.columns) {
                    Ok(header) => {
                        self.header = Some(header);
                        Vec::new()
                    }
                    Err(problems) => problems,
                },
                Ok(Found::TooLong) => vec![ColumnProblem::HeaderTooLong],
                Ok(Found::TooManyCells) => vec![ColumnProblem::HeaderTooManyCells],
                Ok(Found::TooBlank) => return Some(Err(self.too_blank())),
                Ok(Found::OpenQuote) => vec![ColumnProblem::HeaderOpenQuote],
            };
            if !problems.is_empty() {
                return Some(Err(self.end(RowProblem::BadColumns { problems })));
            }
        }
        let found = match self.read_record() {
            Ok(found) => found,
            Err(error) => return Some(Err(self.end(RowProblem::unreadable(&error)))),
        };
        let index = self.next_index;
        self.next_index += 1;
        match found {
            Found::End => {
                self.ended = true;
                None
            }
            Found::Whole => self.header.as_ref().map(|header| self.row(header, index)),
            Found::TooLong => Some(Err(self.error(index, RowProblem::TooLong))),
            Found::TooManyCells => Some(Err(self.error(index, RowProblem::TooManyCells))),
            Found::TooBlank => Some(Err(self.too_blank())),
            Found::OpenQuote => {
                self.ended = true;
                Some(Err(self.error(index, RowProblem::OpenQuote)))
            }
        }
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A text without the byte order mark it may start with.
struct WithoutMark<R> {
    reader: R,
    looked: bool,
    /// Bytes that could have been the mark and were not.
    held: Vec<u8>,
}

impl<R: BufRead> WithoutMark<R> {
    fn new(reader: R) -> Self {
        Self {
            reader,
            looked: false,
            held: Vec::new(),
        }
    }

    fn look(&mut self) -> io::Result<()> {
        while self.held.len() < BYTE_ORDER_MARK.len() {
            let next = self.reader.fill_buf()?.first().copied();
            match next {
                Some(byte) if byte == BYTE_ORDER_MARK[self.held.len()] => {
                    self.held.push(byte);
                    self.reader.consume(1);
                }
                _ => break,
            }
        }
        if self.held == BYTE_ORDER_MARK {
            self.held.clear();
        }
        self.looked = true;
        Ok(())
    }

    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if !self.looked {
            self.look()?;
        }
        if self.held.is_empty() {
            self.reader.fill_buf()
        } else {
            Ok(&self.held)
        }
    }

    fn consume(&mut self, amount: usize) {
        if self.held.is_empty() {
            self.reader.consume(amount);
        } else {
            self.held.drain(..amount);
        }
    }
}
