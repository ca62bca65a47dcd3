use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;

use crate::Compression;

/// The text of a file that may be compressed. Holds a window of it.
pub(crate) enum Text<R: BufRead> {
    Plain(R),
    Gzip(Box<BufReader<MultiGzDecoder<R>>>),
    Zstd(BufReader<zstd::Decoder<'static, R>>),
}

impl<R: BufRead> Text<R> {
    pub(crate) fn new(compression: Option<Compression>, reader: R) -> io::Result<Self> {
        Ok(match compression {
            None => Self::Plain(reader),
            Some(Compression::Gzip) => {
                Self::Gzip(Box::new(BufReader::new(MultiGzDecoder::new(reader))))
            }
            Some(Compression::Zstd) => {
                Self::Zstd(BufReader::new(zstd::Decoder::with_buffer(reader)?))
            }
        })
    }
}

impl<R: BufRead> Read for Text<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let count = available.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Text<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Self::Plain(reader) => reader.fill_buf(),
            Self::Gzip(reader) => explained(Compression::Gzip, reader.fill_buf()),
            Self::Zstd(reader) => explained(Compression::Zstd, reader.fill_buf()),
        }
    }

    fn consume(&mut self, amount: usize) {
        match self {
            Self::Plain(reader) => reader.consume(amount),
            Self::Gzip(reader) => reader.consume(amount),
            Self::Zstd(reader) => reader.consume(amount),
        }
    }
}

/// A decoder's error as one of the file, unless it was the disk's.
fn explained<T>(compression: Compression, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| {
        if error.raw_os_error().is_some() || error.kind() == ErrorKind::Interrupted {
            return error;
        }
        let name = compression.as_str();
        let what = if error.kind() == ErrorKind::UnexpectedEof {
            format!("the {name} data is cut short")
        } else {
            format!("the {name} data is damaged: {error}")
        };
        io::Error::new(error.kind(), what)
    })
}

impl<R: BufRead> fmt::Debug for Text<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Text(plain)",
            Self::Gzip(_) => "Text(gzip)",
            Self::Zstd(_) => "Text(zstd)",
        })
    }
}
