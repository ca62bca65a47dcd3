use std::io::{self, BufWriter, Write};

use camino::Utf8Path;
use osmosis_core::{JsonText, Redactor};
use serde::Serialize;

use super::redact::clean_json;
use super::target::Target;
use crate::DataError;

/// JSON documents without secrets, one on each line. Holds one at a time.
#[derive(Debug)]
pub struct JsonLines {
    writer: BufWriter<Target>,
    redactor: Redactor,
    written: u64,
}

impl JsonLines {
    /// Starts a file that gets its name when it is finished.
    pub fn create(path: &Utf8Path, redactor: Redactor) -> Result<Self, DataError> {
        Ok(Self::new(Target::create(path)?, redactor))
    }

    /// Writes to what is open already: standard output, a pipe.
    pub fn to(writer: impl Write + Send + 'static, redactor: Redactor) -> Self {
        Self::new(Target::direct(writer), redactor)
    }

    fn new(target: Target, redactor: Redactor) -> Self {
        Self {
            writer: BufWriter::with_capacity(1 << 16, target),
            redactor,
            written: 0,
        }
    }

    pub fn write(&mut self, document: &impl Serialize) -> Result<(), DataError> {
        self.write_line(|writer, redactor| {
            writer.write_all(clean(redactor, document)?.as_str().as_bytes())
        })
    }

    /// Writes a line by hand; whoever does takes out the secrets.
    pub(super) fn write_line(
        &mut self,
        write: impl FnOnce(&mut BufWriter<Target>, &Redactor) -> io::Result<()>,
    ) -> Result<(), DataError> {
        write(&mut self.writer, &self.redactor)
            .and_then(|()| self.writer.write_all(b"\n"))
            .map_err(|error| DataError::Unwritable {
                to: self.writer.get_ref().name().to_owned(),
                error,
            })?;
        self.written += 1;
        Ok(())
    }

    /// Ends the file and gives it its name. Returns how many lines it has.
    pub fn finish(self) -> Result<u64, DataError> {
        let to = self.writer.get_ref().name().to_owned();
        self.writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(Target::commit)
            .map_err(|error| DataError::Unwritable { to, error })?;
        Ok(self.written)
    }
}

/// The text of a document without secrets, on one line.
pub(super) fn clean(redactor: &Redactor, document: &impl Serialize) -> io::Result<JsonText> {
    JsonText::of(document)
        .and_then(|text| clean_json(redactor, &text))
        .map_err(io::Error::other)
}
