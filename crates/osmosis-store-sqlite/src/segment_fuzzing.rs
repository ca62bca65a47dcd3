use camino::{Utf8Path, Utf8PathBuf};

use crate::segment::{HEADER_BYTES, Place, SegmentReader, SegmentWriter, segment_path};

/// A segment is read record by record and cut behind the last whole one; what comes next goes to a segment of its own.
pub fn segments(data: &[u8]) {
    let Some(folder) = Folder::new() else { return };
    let path = segment_path(&folder.0, 1);
    if std::fs::write(&path, data).is_err() {
        return;
    }
    let mut offset = 0;
    let mut reader = SegmentReader::new(&folder.0);
    while let Ok(payload) = reader.read(Place { segment: 1, offset }) {
        offset += HEADER_BYTES + payload.len() as u64;
    }
    assert!(offset <= data.len() as u64);
    let Ok(mut writer) = SegmentWriter::open(folder.0.clone(), 1 << 30, None) else {
        return;
    };
    assert_eq!(
        length(&path),
        Some(offset),
        "cut behind the last whole record"
    );
    let appended = writer.append([&[b"more".as_slice()]]);
    assert!(writer.sync().is_ok());
    let Ok([place]) = appended else {
        unreachable!("there is room for four bytes");
    };
    assert_eq!((place.segment, place.offset), (2, 0));
    assert_eq!(length(&path), Some(offset), "left alone");
    let read = SegmentReader::new(&folder.0).read(place);
    assert!(read.is_ok_and(|payload| payload == b"more"));
}

fn length(path: &Utf8Path) -> Option<u64> {
    Some(path.metadata().ok()?.len())
}

/// A folder of this thread's own that is empty.
struct Folder(Utf8PathBuf);

impl Folder {
    fn new() -> Option<Self> {
        let name = format!("osmosis-segments-{}", std::process::id());
        let folder = Utf8PathBuf::from_path_buf(std::env::temp_dir().join(name)).ok()?;
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).ok()?;
        Some(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
