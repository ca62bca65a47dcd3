use std::io::{self, Write};

use camino::Utf8Path;
use osmosis_core::Redactor;

use super::ExportRecord;
use super::line::Line;
use super::lines::JsonLines;
use crate::DataError;

/// Records as JSON lines. Holds one at a time.
#[derive(Debug)]
pub struct JsonlExport(JsonLines);

impl JsonlExport {
    /// Starts a file that gets its name when it is finished.
    pub fn create(path: impl AsRef<Utf8Path>, redactor: Redactor) -> Result<Self, DataError> {
        JsonLines::create(path.as_ref(), redactor).map(Self)
    }

    /// Writes to what is open already: standard output, a pipe.
    pub fn to(writer: impl Write + Send + 'static, redactor: Redactor) -> Self {
        Self(JsonLines::to(writer, redactor))
    }

    pub fn write(&mut self, record: &ExportRecord) -> Result<(), DataError> {
        self.0.write_line(|writer, redactor| {
            let line = Line::of(record, redactor).map_err(io::Error::other)?;
            Ok(serde_json::to_writer(writer, &line)?)
        })
    }

    /// Ends the file and gives it its name. Returns how many records it holds.
    pub fn finish(self) -> Result<u64, DataError> {
        self.0.finish()
    }
}
