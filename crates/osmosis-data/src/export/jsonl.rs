use std::io::{self, BufWriter, Write};

use camino::Utf8Path;
use osmosis_core::Redactor;

use super::ExportRecord;
use super::line::Line;
use super::target::Target;
use crate::DataError;

/// Records as JSON lines. Holds one at a time.
#[derive(Debug)]
pub struct JsonlExport {
    writer: BufWriter<Target>,
    redactor: Redactor,
    records: u64,
}

impl JsonlExport {
    /// Starts a file that gets its name when it is finished.
    pub fn create(path: impl AsRef<Utf8Path>, redactor: Redactor) -> Result<Self, DataError> {
        Ok(Self::new(Target::create(path.as_ref())?, redactor))
    }

    /// Writes to what is open already: standard output, a pipe.
    pub fn to(writer: impl Write + Send + 'static, redactor: Redactor) -> Self {
        Self::new(Target::direct(writer), redactor)
    }

    fn new(target: Target, redactor: Redactor) -> Self {
        Self {
            writer: BufWriter::with_capacity(1 << 16, target),
            redactor,
            records: 0,
        }
    }

    pub fn write(&mut self, record: &ExportRecord) -> Result<(), DataError> {
        Line::of(record, &self.redactor)
            .map_err(io::Error::other)
            .and_then(|line| Ok(serde_json::to_writer(&mut self.writer, &line)?))
            .and_then(|()| self.writer.write_all(b"\n"))
            .map_err(|error| self.failed(error))?;
        self.records += 1;
        Ok(())
    }

    /// Ends the file and gives it its name. Returns how many records it holds.
    pub fn finish(self) -> Result<u64, DataError> {
        let to = self.writer.get_ref().name().to_owned();
        self.writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(Target::commit)
            .map_err(|error| DataError::Unwritable { to, error })?;
        Ok(self.records)
    }

    fn failed(&self, error: io::Error) -> DataError {
        DataError::Unwritable {
            to: self.writer.get_ref().name().to_owned(),
            error,
        }
    }
}
