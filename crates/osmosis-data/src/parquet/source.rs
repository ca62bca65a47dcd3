//! The file below the library's readers.

use std::fs::File;
use std::io::{self, Read};

use bytes::Bytes;
use parquet::errors::Result;
use parquet::file::reader::{ChunkReader, Length};

/// Reads at the end of the file that are let pass: the library looks for it now and then.
const READS_AT_END: u32 = 64;

/// A file that can't be read at its end for ever. The library skips what a damaged page header declares piece by
/// piece, up to two thousand million of them, and does not notice that there is nothing left to skip.
#[derive(Debug)]
pub(super) struct Source(pub(super) File);

impl Length for Source {
    fn len(&self) -> u64 {
        Length::len(&self.0)
    }
}

impl ChunkReader for Source {
    type T = EndingReader<<File as ChunkReader>::T>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(EndingReader {
            inner: self.0.get_read(start)?,
            at_end: 0,
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

pub(super) struct EndingReader<R> {
    inner: R,
    at_end: u32,
}

impl<R: Read> Read for EndingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if read > 0 || buffer.is_empty() {
            self.at_end = 0;
            return Ok(read);
        }
        self.at_end += 1;
        if self.at_end > READS_AT_END {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(0)
    }
}
