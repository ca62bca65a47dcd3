//! Rows of a parquet file, gathered column by column and written a group at a time.

use std::fmt;

use parquet::errors::ParquetError;

use crate::DataError;
use crate::export::columns::{ParquetFile, RowGroup};
use crate::export::target::Target;

/// Rows that are not written yet.
pub(super) trait Gathered: Default {
    fn is_empty(&self) -> bool;
    /// They are enough for a group.
    fn is_full(&self) -> bool;
    /// Writes the columns in the order of the schema.
    fn write(self, columns: &mut RowGroup<'_>) -> Result<(), ParquetError>;
}

/// Holds one row group.
pub(super) struct RowGroups<G> {
    file: ParquetFile,
    gathered: G,
    rows: u64,
}

impl<G> fmt::Debug for RowGroups<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowGroups({})", self.file.to())
    }
}

impl<G: Gathered> RowGroups<G> {
    /// `plain` are the columns in which no value comes twice.
    pub(super) fn new(target: Target, schema: &str, plain: &[&str]) -> Result<Self, DataError> {
        Ok(Self {
            file: ParquetFile::new(target, schema, plain)?,
            gathered: G::default(),
            rows: 0,
        })
    }

    pub(super) fn to(&self) -> &str {
        self.file.to()
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds a row, which `push` puts into every column.
    pub(super) fn add(&mut self, push: impl FnOnce(&mut G)) -> Result<(), DataError> {
        push(&mut self.gathered);
        self.rows += 1;
        if self.gathered.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<u64, DataError> {
        self.flush()?;
        self.file.finish()?;
        Ok(self.rows)
    }

    fn flush(&mut self) -> Result<(), DataError> {
        let gathered = std::mem::take(&mut self.gathered);
        if gathered.is_empty() {
            return Ok(());
        }
        self.file.row_group(|columns| gathered.write(columns))
    }
}
