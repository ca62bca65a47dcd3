//! A parquet file that is written column by column.

use std::io;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::target::Target;
use crate::DataError;

/// A file that gets its name when it is finished.
pub(super) struct ParquetFile {
    writer: SerializedFileWriter<Target>,
    to: String,
}

impl ParquetFile {
    /// `plain` are the columns in which no value comes twice: to look for repeated ones only takes memory.
    pub(super) fn new(target: Target, schema: &str, plain: &[&str]) -> Result<Self, DataError> {
        let to = target.name().to_owned();
        match open(target, schema, plain) {
            Ok(writer) => Ok(Self { writer, to }),
            Err(error) => Err(unwritable(to, error)),
        }
    }

    pub(super) fn to(&self) -> &str {
        &self.to
    }

    /// Adds rows. `write` writes every column, in the order of the schema.
    pub(super) fn row_group(
        &mut self,
        write: impl FnOnce(&mut RowGroup<'_>) -> Result<(), ParquetError>,
    ) -> Result<(), DataError> {
        let add = || {
            let mut group = self.writer.next_row_group()?;
            write(&mut group)?;
            group.close().map(|_| ())
        };
        add().map_err(|error| unwritable(self.to.clone(), error))
    }

    pub(super) fn finish(self) -> Result<(), DataError> {
        let to = self.to;
        let target = match self.writer.into_inner() {
            Ok(target) => target,
            Err(error) => return Err(unwritable(to, error)),
        };
        target
            .commit()
            .map_err(|error| DataError::Unwritable { to, error })
    }
}

pub(super) type RowGroup<'a> = SerializedRowGroupWriter<'a, Target>;

fn open(
    target: Target,
    schema: &str,
    plain: &[&str],
) -> Result<SerializedFileWriter<Target>, ParquetError> {
    let schema = Arc::new(parse_message_type(schema)?);
    let mut properties = WriterProperties::builder()
        .set_created_by(format!("osmosis {}", env!("CARGO_PKG_VERSION")))
        .set_compression(Compression::ZSTD(ZstdLevel::default()));
    for path in plain {
        let column = ColumnPath::new(path.split('.').map(str::to_owned).collect());
        properties = properties.set_column_dictionary_enabled(column, false);
    }
    SerializedFileWriter::new(target, schema, Arc::new(properties.build()))
}

fn unwritable(to: String, error: ParquetError) -> DataError {
    let error = match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    };
    DataError::Unwritable { to, error }
}

/// The values of a column, and where they stand: Dremel's definition and repetition levels.
pub(super) struct Cells<T: DataType> {
    values: Vec<T::T>,
    def: Vec<i16>,
    rep: Vec<i16>,
}

impl<T: DataType> Default for Cells<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            def: Vec::new(),
            rep: Vec::new(),
        }
    }
}

impl<T: DataType> Cells<T> {
    /// Of a column that is never null, and so has no levels.
    pub(super) fn push(&mut self, value: T::T) {
        self.values.push(value);
    }

    pub(super) fn push_option(&mut self, value: Option<T::T>) {
        self.def.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    /// A whole list, of a column that is never null and whose elements never are.
    pub(super) fn push_list(&mut self, values: impl IntoIterator<Item = T::T>) {
        let before = self.values.len();
        self.values.extend(values);
        let count = self.values.len() - before;
        if count == 0 {
            self.push_empty_list();
            return;
        }
        self.rep.push(0);
        self.rep.resize(self.rep.len() + count - 1, 1);
        self.def.resize(self.def.len() + count, 1);
    }

    pub(super) fn push_empty_list(&mut self) {
        self.rep.push(0);
        self.def.push(0);
    }

    pub(super) fn push_element(&mut self, first: bool, value: T::T) {
        self.rep.push(i16::from(!first));
        self.def.push(1);
        self.values.push(value);
    }

    pub(super) fn push_element_option(&mut self, first: bool, value: Option<T::T>) {
        self.rep.push(i16::from(!first));
        self.def.push(if value.is_some() { 2 } else { 1 });
        self.values.extend(value);
    }

    pub(super) fn write(&self, group: &mut RowGroup<'_>) -> Result<(), ParquetError> {
        let Some(mut column) = group.next_column()? else {
            return Err(ParquetError::General(
                "the schema has fewer columns".to_owned(),
            ));
        };
        let def = (!self.def.is_empty()).then_some(self.def.as_slice());
        let rep = (!self.rep.is_empty()).then_some(self.rep.as_slice());
        column.typed::<T>().write_batch(&self.values, def, rep)?;
        column.close()
    }
}

pub(super) fn text(text: impl Into<String>) -> ByteArray {
    ByteArray::from(text.into().into_bytes())
}

pub(super) fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
