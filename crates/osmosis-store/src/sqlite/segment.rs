//! Append-only files for the bodies of model calls.
//!
//! A segment is a sequence of records, each: `OSR1`, the payload's length and a CRC-32 over length and
//! payload (both `u32`, little endian), the payload. The database refers to a record only after the
//! segment has been synced, so whatever follows the last record it knows may be torn, and is cut off
//! when the run is next opened for writing. Whole records that the database doesn't know are harmless.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use camino::{Utf8Path, Utf8PathBuf};

use crate::StoreError;

pub(crate) const SEGMENTS_FOLDER: &str = "segments";
const HEADER_LENGTH: usize = 12;
pub(crate) const HEADER_BYTES: u64 = HEADER_LENGTH as u64;
const MAGIC: [u8; 4] = *b"OSR1";
/// Small records are gathered to this size before they are written.
const BUFFER_BYTES: usize = 1024 * 1024;

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
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Segment {
    number: u32,
    path: Utf8PathBuf,
    file: File,
    /// Bytes that are known to be on the disk.
    synced: u64,
    /// Bytes that were given to the file.
    written: u64,
}

impl SegmentWriter {
    /// Opens the folder and cuts off what a crash left torn. `referenced` is the end of the last
    /// record that the database knows.
    pub(crate) fn open(
        folder: Utf8PathBuf,
        rotate_at: u64,
        referenced: Option<Place>,
    ) -> Result<Self, StoreError> {
        fs::create_dir_all(&folder).map_err(|error| StoreError::io(&folder, &error))?;
        let last_file = last_segment(&folder)?;
        let last_known = referenced.map_or(0, |place| place.segment);
        let mut writer = Self {
            next_number: last_file.unwrap_or(0).max(last_known) + 1,
            rotate_at,
            current: None,
            buffer: Vec::new(),
            folder,
        };
        if let Some(number) = last_file.filter(|&number| number >= last_known) {
            let known_end = referenced
                .filter(|place| place.segment == number)
                .map_or(0, |place| place.offset);
            writer.current = recover(&writer.folder, number, known_end)?;
        } else if last_known > 0 {
            tracing::warn!(segment = last_known, folder = %writer.folder, "a segment of the run is missing");
        }
        Ok(writer)
    }

    /// Appends payloads next to each other, in one segment, and says where they begin.
    pub(crate) fn append<const N: usize>(
        &mut self,
        payloads: [&[u8]; N],
    ) -> Result<[Place; N], StoreError> {
        if self.length() >= self.rotate_at {
            self.sync()?;
            self.current = None;
        }
        self.ensure_segment()?;
        let mut places = [Place::default(); N];
        for (place, payload) in places.iter_mut().zip(payloads) {
            *place = self.append_record(payload)?;
        }
        Ok(places)
    }

    /// Puts everything appended so far on the disk.
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        self.flush()?;
        let Some(segment) = &mut self.current else {
            return Ok(());
        };
        if segment.synced == segment.written {
            return Ok(());
        }
        if let Err(error) = segment.file.sync_data() {
            let failure = StoreError::io(&segment.path, &error);
            // After a failed sync nobody knows what is on the disk: leave that file alone for good.
            self.current = None;
            return Err(failure);
        }
        segment.synced = segment.written;
        Ok(())
    }

    /// Forgets what was appended after the last sync. The database must not refer to it.
    pub(crate) fn discard_unsynced(&mut self) {
        self.buffer.clear();
        let Some(segment) = &mut self.current else {
            return;
        };
        let cut = segment
            .file
            .set_len(segment.synced)
            .and_then(|()| segment.file.seek(SeekFrom::Start(segment.synced)));
        match cut {
            Ok(_) => segment.written = segment.synced,
            Err(error) => {
                tracing::warn!(path = %segment.path, %error, "leaving a segment with a torn end behind");
                self.current = None;
            }
        }
    }

    fn length(&self) -> u64 {
        let written = self.current.as_ref().map_or(0, |segment| segment.written);
        written + self.buffer.len() as u64
    }

    fn ensure_segment(&mut self) -> Result<(), StoreError> {
        if self.current.is_some() {
            return Ok(());
        }
        let number = self.next_number;
        let path = segment_path(&self.folder, number);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|error| StoreError::io(&path, &error))?;
        self.next_number += 1;
        // The file's name has to survive as well.
        sync_folder(&self.folder)?;
        self.current = Some(Segment {
            number,
            path,
            file,
            synced: 0,
            written: 0,
        });
        Ok(())
    }

    fn append_record(&mut self, payload: &[u8]) -> Result<Place, StoreError> {
        let offset = self.length();
        let header = header(payload).ok_or_else(|| {
            StoreError::refused(format!("a body of {} bytes is too large", payload.len()))
        })?;
        self.buffer.extend_from_slice(&header);
        if self.buffer.len() + payload.len() > BUFFER_BYTES {
            self.flush()?;
            self.write(payload)?;
        } else {
            self.buffer.extend_from_slice(payload);
        }
        let segment = self.current.as_ref().map_or(0, |segment| segment.number);
        Ok(Place { segment, offset })
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let buffer = std::mem::take(&mut self.buffer);
        let done = self.write(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
        done
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(segment) = &mut self.current else {
            return Err(StoreError::refused("no segment is open"));
        };
        segment
            .file
            .write_all(bytes)
            .map_err(|error| StoreError::io(&segment.path, &error))?;
        segment.written += bytes.len() as u64;
        Ok(())
    }
}

fn header(payload: &[u8]) -> Option<[u8; HEADER_LENGTH]> {
    let length = u32::try_from(payload.len()).ok()?.to_le_bytes();
    let mut crc = crc32fast::Hasher::new();
    crc.update(&length);
    crc.update(payload);
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

/// The segment, ready to be appended to; `None` when it lacks bytes that the database refers to,
/// so that nothing new takes their place.
fn recover(folder: &Utf8Path, number: u32, known_end: u64) -> Result<Option<Segment>, StoreError> {
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
        return Ok(None);
    }
    let end = whole_records_end(&mut file, known_end, length).map_err(failed)?;
    if end < length {
        tracing::warn!(%path, cut = length - end, "cutting a torn write off");
        file.set_len(end).map_err(failed)?;
        file.sync_all().map_err(failed)?;
    }
    file.seek(SeekFrom::Start(end)).map_err(failed)?;
    Ok(Some(Segment {
        number,
        path,
        file,
        synced: end,
        written: end,
    }))
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
        header(payload) == Some(self.header)
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
        let [request, response] = writer.append([request, response])?;
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
        let (taken_back, _) = pair(&mut writer, &vec![1; 2 * BUFFER_BYTES], b"x").unwrap();
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
        segment.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
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
            let mut bytes = fs::read(&file).unwrap();
            bytes.extend(&tail);
            fs::write(&file, bytes).unwrap();
            drop(writer);
            let writer = SegmentWriter::open(path.clone(), u64::MAX, None).unwrap();
            prop_assert_eq!(writer.length(), end);
            prop_assert_eq!(fs::metadata(&file).unwrap().len(), end);
            for (place, body) in places.into_iter().zip(&bodies) {
                prop_assert_eq!(&read_record(&path, place).unwrap(), body);
            }
        }
    }
}
