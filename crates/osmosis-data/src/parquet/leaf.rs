use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;

use super::value::{self, Fault, Kind};

/// Why a file can't be read any further.
#[derive(Debug)]
pub(super) struct Damage {
    pub(super) message: String,
}

impl Damage {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

/// Where in the nesting of lists and nulls a value stands, in Dremel's numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Levels {
    /// At which list it repeats; 0 for the first of a row.
    pub(super) rep: i16,
    /// Down to where it is not null.
    pub(super) def: i16,
}

/// The values of a column of the lowest level, some rows at a time.
pub(super) trait Leaf: Send {
    /// Reads exactly so many rows, in place of those held.
    fn fill(&mut self, rows: usize) -> Result<(), Damage>;

    /// Of the next value; `None` after the last one held.
    fn levels(&self) -> Option<Levels>;

    /// Passes a place that has no value.
    fn skip(&mut self) -> Result<(), Damage>;

    /// Writes the next value as JSON.
    fn take(&mut self, kind: Kind, out: &mut String) -> Result<Result<(), Fault>, Damage>;
}

/// A column at whose level `max_def` there is a value.
pub(super) fn open(reader: ColumnReader, max_def: i16) -> Box<dyn Leaf> {
    match reader {
        ColumnReader::BoolColumnReader(reader) => Typed::boxed(reader, max_def, |value, _, out| {
            value::write_number(*value, out)
        }),
        ColumnReader::Int32ColumnReader(reader) => {
            Typed::boxed(reader, max_def, |value, kind, out| {
                value::write_int32(*value, kind, out)
            })
        }
        ColumnReader::Int64ColumnReader(reader) => {
            Typed::boxed(reader, max_def, |value, kind, out| {
                value::write_int64(*value, kind, out)
            })
        }
        ColumnReader::Int96ColumnReader(reader) => {
            Typed::boxed(reader, max_def, |value, _, out| {
                value::write_int96(value, out)
            })
        }
        ColumnReader::FloatColumnReader(reader) => {
            Typed::boxed(reader, max_def, |value, _, out| {
                value::write_number(*value, out)
            })
        }
        ColumnReader::DoubleColumnReader(reader) => {
            Typed::boxed(reader, max_def, |value, _, out| {
                value::write_number(*value, out)
            })
        }
        ColumnReader::ByteArrayColumnReader(reader) => {
            Typed::boxed(reader, max_def, |value, kind, out| {
                value::write_bytes(value.data(), kind, out)
            })
        }
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            Typed::boxed(reader, max_def, |value, kind, out| {
                value::write_bytes(value.data(), kind, out)
            })
        }
    }
}

type Write<V> = fn(&V, Kind, &mut String) -> Result<(), Fault>;

struct Typed<T: DataType> {
    reader: ColumnReaderImpl<T>,
    max_def: i16,
    write: Write<T::T>,
    /// Those that are not null.
    values: Vec<T::T>,
    /// For each place; empty when there is a value in every one.
    def: Vec<i16>,
    /// For each place; empty when every row has one.
    rep: Vec<i16>,
    places: usize,
    at: usize,
    value_at: usize,
}

impl<T: DataType> Typed<T> {
    fn boxed(reader: ColumnReaderImpl<T>, max_def: i16, write: Write<T::T>) -> Box<dyn Leaf> {
        Box::new(Self {
            reader,
            max_def,
            write,
            values: Vec::new(),
            def: Vec::new(),
            rep: Vec::new(),
            places: 0,
            at: 0,
            value_at: 0,
        })
    }
}

impl<T: DataType> Leaf for Typed<T> {
    fn fill(&mut self, rows: usize) -> Result<(), Damage> {
        self.values.clear();
        self.def.clear();
        self.rep.clear();
        self.at = 0;
        self.value_at = 0;
        let (read, _, places) = self.reader.read_records(
            rows,
            Some(&mut self.def),
            Some(&mut self.rep),
            &mut self.values,
        )?;
        self.places = places;
        if read == rows {
            Ok(())
        } else {
            Err(Damage::new("a column ends before its rows"))
        }
    }

    fn levels(&self) -> Option<Levels> {
        (self.at < self.places).then(|| Levels {
            rep: self.rep.get(self.at).copied().unwrap_or(0),
            def: self.def.get(self.at).copied().unwrap_or(self.max_def),
        })
    }

    fn skip(&mut self) -> Result<(), Damage> {
        match self.levels() {
            Some(levels) if levels.def < self.max_def => {
                self.at += 1;
                Ok(())
            }
            Some(_) | None => Err(Damage::new("the columns of a row don't fit together")),
        }
    }

    fn take(&mut self, kind: Kind, out: &mut String) -> Result<Result<(), Fault>, Damage> {
        match (self.levels(), self.values.get(self.value_at)) {
            (Some(levels), Some(value)) if levels.def == self.max_def => {
                self.at += 1;
                self.value_at += 1;
                Ok((self.write)(value, kind, out))
            }
            _ => Err(Damage::new("the columns of a row don't fit together")),
        }
    }
}
