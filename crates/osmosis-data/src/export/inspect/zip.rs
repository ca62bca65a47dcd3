//! A zip archive written from front to back. Of each entry only what the directory at the end says of it
//! is kept.
//!
//! Entries are compressed in memory, so their sizes are known before their bytes are written, and the
//! archive may go anywhere. The 64-bit form of the directory is always there: a log of 100,000 rollouts
//! has more entries than the old form can count.
//!
//! Written by hand: when an export fails, the `zip` crate's writer (9.2) ends the archive as it is dropped, so that
//! half a log at the end of a pipe looks like a whole one, and writes to standard error when it can't.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;
const END: u32 = 0x0605_4b50;
/// The version that knows the 64-bit form.
const VERSION: u16 = 45;
/// Names are UTF-8.
const FLAGS: u16 = 1 << 11;
const DEFLATE: u16 = 8;
/// 1980-01-01: an archive of the same rollouts is the same bytes.
const DOS_DATE: u16 = 0x21;
const IN_THE_EXTRA: u32 = u32::MAX;

/// An entry whose bytes come bit by bit.
#[derive(Debug)]
pub(super) struct Entry {
    compressor: DeflateEncoder<Vec<u8>>,
    crc: flate2::Crc,
    size: u64,
}

impl Entry {
    pub(super) fn new() -> Self {
        Self {
            compressor: DeflateEncoder::new(Vec::new(), Compression::fast()),
            crc: flate2::Crc::new(),
            size: 0,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.crc.update(bytes);
        self.size += bytes.len() as u64;
        self.compressor.write_all(bytes)
    }
}

/// An archive that is being written.
#[derive(Debug)]
pub(super) struct Zip<W> {
    writer: W,
    at: u64,
    /// The directory so far.
    directory: Vec<u8>,
    entries: u64,
}

impl<W: Write> Zip<W> {
    pub(super) fn new(writer: W) -> Self {
        Self {
            writer,
            at: 0,
            directory: Vec::new(),
            entries: 0,
        }
    }

    pub(super) fn target(&self) -> &W {
        &self.writer
    }

    pub(super) fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut entry = Entry::new();
        entry.push(bytes)?;
        self.add(name, entry)
    }

    pub(super) fn add(&mut self, name: &str, entry: Entry) -> io::Result<()> {
        let crc = entry.crc.sum();
        let body = entry.compressor.finish()?;
        let sizes = [entry.size, body.len() as u64];
        let name_length = u16::try_from(name.len()).map_err(io::Error::other)?;
        let offset = self.at;

        let mut header = Vec::with_capacity(64 + name.len());
        put4(&mut header, LOCAL);
        put_facts(&mut header, crc, name_length);
        put2(&mut header, 20);
        header.extend(name.as_bytes());
        put_extra(&mut header, &sizes);
        self.write(&header)?;
        self.write(&body)?;

        put4(&mut self.directory, CENTRAL);
        put2(&mut self.directory, VERSION);
        put_facts(&mut self.directory, crc, name_length);
        put2(&mut self.directory, 28);
        // Comment, disk, attributes within and without.
        for zero in [0, 0, 0] {
            put2(&mut self.directory, zero);
        }
        put4(&mut self.directory, 0);
        put4(&mut self.directory, IN_THE_EXTRA);
        self.directory.extend(name.as_bytes());
        put_extra(&mut self.directory, &[sizes[0], sizes[1], offset]);
        self.entries += 1;
        Ok(())
    }

    /// Writes the directory and gives back what was written to.
    pub(super) fn finish(mut self) -> io::Result<W> {
        let offset = self.at;
        let directory = std::mem::take(&mut self.directory);
        self.write(&directory)?;
        let size = directory.len() as u64;
        let end = self.at;

        let mut last = Vec::with_capacity(100);
        put4(&mut last, END_64);
        put8(&mut last, 44);
        put2(&mut last, VERSION);
        put2(&mut last, VERSION);
        put4(&mut last, 0);
        put4(&mut last, 0);
        for number in [self.entries, self.entries, size, offset] {
            put8(&mut last, number);
        }
        put4(&mut last, LOCATOR_64);
        put4(&mut last, 0);
        put8(&mut last, end);
        put4(&mut last, 1);
        put4(&mut last, END);
        put2(&mut last, 0);
        put2(&mut last, 0);
        let few = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        put2(&mut last, few(self.entries));
        put2(&mut last, few(self.entries));
        put4(&mut last, small(size));
        put4(&mut last, small(offset));
        put2(&mut last, 0);
        self.write(&last)?;
        Ok(self.writer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// What both headers of an entry say, up to the length of its name. The sizes are in the extra field.
fn put_facts(out: &mut Vec<u8>, crc: u32, name_length: u16) {
    put2(out, VERSION);
    put2(out, FLAGS);
    put2(out, DEFLATE);
    put2(out, 0);
    put2(out, DOS_DATE);
    put4(out, crc);
    put4(out, IN_THE_EXTRA);
    put4(out, IN_THE_EXTRA);
    put2(out, name_length);
}

/// The extra field with 64-bit numbers.
fn put_extra(out: &mut Vec<u8>, numbers: &[u64]) {
    put2(out, 1);
    put2(out, u16::try_from(numbers.len() * 8).unwrap_or_default());
    for number in numbers {
        put8(out, *number);
    }
}

fn put2(out: &mut Vec<u8>, number: u16) {
    out.extend(number.to_le_bytes());
}

fn put4(out: &mut Vec<u8>, number: u32) {
    out.extend(number.to_le_bytes());
}

fn put8(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}
