//! Append-only files for the bodies of model calls.
//!
//! A segment is a sequence of records, each: `OSR1`, the payload's length and a CRC-32 over length and
//! payload (both `u32`, little endian), the payload. The database refers to a record only after the
//! segment has been synced, so whatever follows the last record it knows may be torn, and is cut off
//! when the run is next opened for writing. Whole records that the database doesn't know are harmless.
//!
//! Nobody appends to a segment but the writer that made it, which failed if it was there: two writers that take
//! each other for dead can't write over one another.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::StoreError;

use crate::appended_file::AppendedFile;
use crate::private::{create_private_folder, private_file};

pub(crate) const SEGMENTS_FOLDER: &str = "segments";
const HEADER_LENGTH: usize = 12;
pub(crate) const HEADER_BYTES: u64 = HEADER_LENGTH as u64;
const MAGIC: [u8; 4] = *b"OSR1";

/// Where a record is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
}

pub(crate) fn segment_path(folder: &Utf8Path, segment: u32) -> Utf8PathBuf {
    folder.join(format!("{segment:06}.seg"))
}

/// The one that appends.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    folder: Utf8PathBuf,
    rotate_at: u64,
    next_number: u32,
    current: Option<Segment>,
}

#[derive(Debug)]
struct Segment {
    number: u32,
    file: AppendedFile,
}

impl SegmentWriter {
    /// Opens the folder and cuts off what a crash left torn. `referenced` is the end of the last
    /// record that the database knows. What is appended goes to new segments.
    pub(crate) fn open(
        folder: Utf8PathBuf,
        rotate_at: u64,
        referenced: Option<Place>,
    ) -> Result<Self, StoreError> {
        create_private_folder(&folder, |_| true)
            .map_err(|error| StoreError::io(&folder, &error))?;
        let last_file = last_segment(&folder)?;
        let last_known = referenced.map_or(0, |place| place.segment);
        let writer = Self {
            next_number: last_file.unwrap_or(0).max(last_known) + 1,
            rotate_at,
            current: None,
            folder,
        };
        if let Some(number) = last_file.filter(|&number| number >= last_known) {
            let known_end = referenced
                .filter(|place| place.segment == number)
                .map_or(0, |place| place.offset);
            cut_torn_end(&writer.folder, number, known_end)?;
        } else if last_known > 0 {
            tracing::warn!(segment = last_known, folder = %writer.folder, "a segment of the run is missing");
        }
        Ok(writer)
    }

    /// Appends payloads, each in its pieces, next to each other in one segment; says where they begin.
    pub(crate) fn append<const N: usize>(
        &mut self,
        payloads: [&[&[u8]]; N],
    ) -> Result<[Place; N], StoreError> {
        if self.length() >= self.rotate_at {
            self.sync()?;
            self.current = None;
        }
        let segment = match &mut self.current {
            Some(segment) => segment,
            none => none.insert(create(&self.folder, &mut self.next_number)?),
        };
        let mut places = [Place::default(); N];
        for (place, payload) in places.iter_mut().zip(payloads) {
            *place = segment.append(payload)?;
        }
        Ok(places)
    }

    /// Puts everything appended so far on the disk.
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        let Some(segment) = &mut self.current else {
            return Ok(());
        };
        segment
            .file
            .flush()
            .map_err(|error| StoreError::io(&segment.file.path, &error))?;
        if let Err(error) = segment.file.sync() {
            let failure = StoreError::io(&segment.file.path, &error);
            // After a failed sync nobody knows what is on the disk: leave that file alone for good.
            self.current = None;
            return Err(failure);
        }
        Ok(())
    }

    /// Forgets what was appended after the last sync. The database must not refer to it.
    pub(crate) fn discard_unsynced(&mut self) {
        let Some(segment) = &mut self.current else {
            return;
        };
        if let Err(error) = segment.file.discard_unsynced() {
            tracing::warn!(path = %segment.file.path, %error, "leaving a segment with a torn end behind");
            self.current = None;
        }
    }

    fn length(&self) -> u64 {
        let current = self.current.as_ref();
        current.map_or(0, |segment| segment.file.length())
    }
}

impl Segment {
    fn append(&mut self, payload: &[&[u8]]) -> Result<Place, StoreError> {
        let place = Place {
            segment: self.number,
            offset: self.file.length(),
        };
        let header = header(payload).ok_or_else(|| {
            let length: usize = payload.iter().map(|piece| piece.len()).sum();
            StoreError::refused(format!("a body of {length} bytes is too large"))
        })?;
        for bytes in std::iter::once(&header[..]).chain(payload.iter().copied()) {
            self.file
                .append(bytes)
                .map_err(|error| StoreError::io(&self.file.path, &error))?;
        }
        Ok(place)
    }
}

fn create(folder: &Utf8Path, next_number: &mut u32) -> Result<Segment, StoreError> {
    let number = *next_number;
    let path = segment_path(folder, number);
    let file = private_file()
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(|error| StoreError::io(&path, &error))?;
    *next_number += 1;
    // The file's name has to survive as well.
    sync_folder(folder)?;
    Ok(Segment {
        number,
        file: AppendedFile::new(path, file, 0),
    })
}

pub(crate) fn header(payload: &[&[u8]]) -> Option<[u8; HEADER_LENGTH]> {
    let length: usize = payload.iter().map(|piece| piece.len()).sum();
    let length = u32::try_from(length).ok()?.to_le_bytes();
    let mut crc = crc32fast::Hasher::new();
    crc.update(&length);
    for piece in payload {
        crc.update(piece);
    }
    let mut header = [0; HEADER_LENGTH];
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&length);
    header[8..].copy_from_slice(&crc.finalize().to_le_bytes());
    Some(header)
}

fn last_segment(folder: &Utf8Path) -> Result<Option<u32>, StoreError> {
    let entries = folder
        .read_dir_utf8()
        .map_err(|error| StoreError::io(folder, &error))?;
    let mut last = None;
    for entry in entries {
        let entry = entry.map_err(|error| StoreError::io(folder, &error))?;
        let number = entry
            .file_name()
            .strip_suffix(".seg")
            .and_then(|stem| stem.parse::<u32>().ok());
        last = last.max(number);
    }
    Ok(last)
}

/// Cuts off what follows the last whole record. One that lacks bytes that the database refers to is left alone.
fn cut_torn_end(folder: &Utf8Path, number: u32, known_end: u64) -> Result<(), StoreError> {
    let path = segment_path(folder, number);
    let failed = |error: io::Error| StoreError::io(&path, &error);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length < known_end {
        tracing::warn!(%path, length, known_end, "a segment is shorter than the database says");
        return Ok(());
    }
    let end = whole_records_end(&mut file, known_end, length).map_err(failed)?;
    if end < length {
        tracing::warn!(%path, cut = length - end, "cutting a torn write off");
        file.set_len(end).map_err(failed)?;
        file.sync_all().map_err(failed)?;
    }
    Ok(())
}

/// Where the last whole record ends, beginning at `start`.
fn whole_records_end(file: &mut File, start: u64, length: u64) -> io::Result<u64> {
    file.seek(SeekFrom::Start(start))?;
    let mut reader = BufReader::new(file);
    let mut end = start;
    let mut payload = Vec::new();
    while end + HEADER_BYTES <= length {
        let mut header = [0; HEADER_LENGTH];
        reader.read_exact(&mut header)?;
        let Some(promise) = Promise::read(header) else {
            break;
        };
        if end + HEADER_BYTES + promise.length > length {
            break;
        }
        payload.clear();
        (&mut reader)
            .take(promise.length)
            .read_to_end(&mut payload)?;
        if !promise.is_kept_by(&payload) {
            break;
        }
        end += HEADER_BYTES + promise.length;
    }
    Ok(end)
}

/// What a record's header says about its payload.
struct Promise {
    length: u64,
    header: [u8; HEADER_LENGTH],
}

impl Promise {
    fn read(bytes: [u8; HEADER_LENGTH]) -> Option<Self> {
        let [m0, m1, m2, m3, l0, l1, l2, l3, ..] = bytes;
        ([m0, m1, m2, m3] == MAGIC).then(|| Self {
            length: u64::from(u32::from_le_bytes([l0, l1, l2, l3])),
            header: bytes,
        })
    }

    fn is_kept_by(&self, payload: &[u8]) -> bool {
        header(&[payload]) == Some(self.header)
    }
}

/// Reads records, and keeps the segment of the last one open.
#[derive(Debug)]
pub(crate) struct SegmentReader<'f> {
    folder: &'f Utf8Path,
    current: Option<(u32, File)>,
}

impl<'f> SegmentReader<'f> {
    pub(crate) fn new(folder: &'f Utf8Path) -> Self {
        Self {
            folder,
            current: None,
        }
    }

    /// The payload of a record, checked.
    pub(crate) fn read(&mut self, place: Place) -> Result<Vec<u8>, StoreError> {
        let path = segment_path(self.folder, place.segment);
        let file = match self.current.take() {
            Some((segment, file)) if segment == place.segment => file,
            _ => File::open(&path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    StoreError::damaged(&path, "the file is missing".to_owned())
                }
                _ => StoreError::io(&path, &error),
            })?,
        };
        let (_, file) = self.current.insert((place.segment, file));
        read_from(file, &path, place)
    }
}

fn read_from(file: &mut File, path: &Utf8Path, place: Place) -> Result<Vec<u8>, StoreError> {
    let damaged = |message: String| StoreError::damaged(path, message);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            damaged(format!("it ends inside the record at {}", place.offset))
        }
        _ => StoreError::io(path, &error),
    };
    let length = file.metadata().map_err(failed)?.len();
    file.seek(SeekFrom::Start(place.offset)).map_err(failed)?;
    let mut header = [0; HEADER_LENGTH];
    file.read_exact(&mut header).map_err(failed)?;
    let Some(promise) = Promise::read(header) else {
        return Err(damaged(format!("no record begins at {}", place.offset)));
    };
    // Checked before memory is set aside: the length itself may be the damage.
    if place.offset + HEADER_BYTES + promise.length > length {
        return Err(damaged(format!(
            "it ends inside the record at {}",
            place.offset
        )));
    }
    let mut payload = Vec::with_capacity(usize::try_from(promise.length).unwrap_or(0));
    file.take(promise.length)
        .read_to_end(&mut payload)
        .map_err(failed)?;
    if !promise.is_kept_by(&payload) {
        return Err(damaged(format!(
            "the checksum of the record at {} is wrong",
            place.offset
        )));
    }
    Ok(payload)
}

/// Makes names in a folder durable.
pub(crate) fn sync_folder(folder: &Utf8Path) -> Result<(), StoreError> {
    File::open(folder)
        .and_then(|file| file.sync_all())
        .map_err(|error| StoreError::io(folder, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().to_owned()).unwrap();
        (folder, path)
    }

    fn read_record(folder: &Utf8Path, place: Place) -> Result<Vec<u8>, StoreError> {
        SegmentReader::new(folder).read(place)
    }

    fn pair(
        writer: &mut SegmentWriter,
        request: &[u8],
        response: &[u8],
    ) -> Result<(Place, Place), StoreError> {
        let [request, response] = writer.append([&[request], &[response]])?;
        Ok((request, response))
    }

    #[test]
    fn a_full_segment_is_followed_by_another() {
        let (_keep, path) = folder();
        let mut writer = SegmentWriter::open(path.clone(), 100, None).unwrap();
        let places: Vec<_> = (0..4_u8)
            .map(|n| pair(&mut writer, &[n; 40], &[n; 8]).unwrap())
            .collect();
        writer.sync().unwrap();
        let segments: Vec<_> = places.iter().map(|(first, _)| first.segment).collect();
        assert_eq!(segments, [1, 1, 2, 2]);
        for (n, (request, response)) in (0..4_u8).zip(places) {
            assert_eq!(read_record(&path, request).unwrap(), [n; 40]);
            assert_eq!(read_record(&path, response).unwrap(), [n; 8]);
        }
    }

    #[test]
    fn what_was_not_synced_can_be_taken_back() {
        let (_keep, path) = folder();
        let mut writer = SegmentWriter::open(path.clone(), u64::MAX, None).unwrap();
        let (kept, _) = pair(&mut writer, b"kept", b"").unwrap();
        writer.sync().unwrap();
        let (taken_back, _) = pair(&mut writer, &vec![1; 3 << 20], b"x").unwrap();
        writer.discard_unsynced();
        let (instead, _) = pair(&mut writer, b"instead", b"").unwrap();
        writer.sync().unwrap();
        assert_eq!(instead, taken_back);
        assert_eq!(read_record(&path, kept).unwrap(), b"kept");
        assert_eq!(read_record(&path, instead).unwrap(), b"instead");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told_apart_and_the_next_segment_works() {
        let (_keep, path) = folder();
        let mut writer = SegmentWriter::open(path.clone(), u64::MAX, None).unwrap();
        pair(&mut writer, b"first", b"").unwrap();
        writer.sync().unwrap();
        let segment = writer.current.as_mut().unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        segment.file.is_really(full);
        let failed = pair(&mut writer, b"second", b"")
            .and_then(|_| writer.sync())
            .unwrap_err();
        assert!(
            matches!(failed, StoreError::Io { full: true, .. }),
            "{failed}"
        );
        writer.discard_unsynced();
        let (place, _) = pair(&mut writer, b"second", b"").unwrap();
        writer.sync().unwrap();
        assert_eq!(place.segment, 2);
        assert_eq!(read_record(&path, place).unwrap(), b"second");
    }

    proptest! {
        #[test]
        fn any_bodies_come_back_and_any_tail_is_cut(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..10),
            tail in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let (_keep, path) = folder();
            let mut writer = SegmentWriter::open(path.clone(), u64::MAX, None).unwrap();
            let places: Vec<_> = bodies
                .iter()
                .map(|body| pair(&mut writer, body, b"").unwrap().0)
                .collect();
            writer.sync().unwrap();
            let end = writer.length();
            let file = segment_path(&path, 1);
            let mut bytes = std::fs::read(&file).unwrap();
            bytes.extend(&tail);
            std::fs::write(&file, bytes).unwrap();
            drop(writer);
            let mut writer = SegmentWriter::open(path.clone(), u64::MAX, None).unwrap();
            prop_assert_eq!(std::fs::metadata(&file).unwrap().len(), end);
            let (next, _) = pair(&mut writer, b"next", b"").unwrap();
            prop_assert_eq!(next, Place { segment: 2, offset: 0 });
            for (place, body) in places.into_iter().zip(&bodies) {
                prop_assert_eq!(&read_record(&path, place).unwrap(), body);
            }
        }
    }
}
