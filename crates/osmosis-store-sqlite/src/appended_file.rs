//! A file that is only appended to: bytes are gathered, and written in large steps.
//!
//! Whole blocks of a large step go past the page cache where the file system allows it. Copying them there
//! and writing them out from it again costs the processor four times as much, and what is written in large
//! steps is too much to stay there for long. The bytes before and after the blocks, and small steps, take the
//! ordinary way: they are likely to be read soon.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use camino::Utf8PathBuf;

/// What file systems and disks align to: a multiple of the blocks of nearly all of them.
const BLOCK: usize = 4096;
const STEP_BYTES: usize = 1024 * 1024;
/// So much must come at once to go past the page cache. Below it, waiting for the disk costs more than a copy.
const DIRECT_BYTES: usize = 128 * 1024;

#[derive(Debug)]
pub(super) struct AppendedFile {
    pub(super) path: Utf8PathBuf,
    file: File,
    /// The same file, opened to go past the page cache; `None` where that can't be done.
    direct: Option<File>,
    gathered: Gathered,
    /// Bytes that are known to be on the disk.
    synced: u64,
    /// Bytes that were given to the file.
    written: u64,
    /// How many of them went past the page cache.
    #[cfg(test)]
    written_direct: u64,
}

impl AppendedFile {
    /// Goes on from `length`, which is all of the file, and on the disk.
    pub(super) fn new(path: Utf8PathBuf, file: File, length: u64) -> Self {
        let direct = open_direct(&path)
            .inspect_err(|error| tracing::debug!(%path, %error, "writing through the page cache"))
            .ok();
        Self {
            path,
            file,
            direct,
            gathered: Gathered::new(length),
            synced: length,
            written: length,
            #[cfg(test)]
            written_direct: 0,
        }
    }

    /// Its length, when everything will have been written.
    pub(super) fn length(&self) -> u64 {
        self.written + self.gathered.place.len() as u64
    }

    /// After an error, here or in [`Self::flush`], there is only [`Self::discard_unsynced`].
    pub(super) fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = self.gathered.take(bytes);
            bytes = &bytes[taken..];
            if self.gathered.is_full() {
                self.write_blocks()?;
            }
        }
        Ok(())
    }

    /// Gives everything appended so far to the file.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.write_blocks()?;
        self.write_all()
    }

    /// Puts what was flushed on the disk. After an error nobody knows what is there.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.synced < self.written {
            self.file.sync_data()?;
            self.synced = self.written;
        }
        Ok(())
    }

    /// Takes back what was appended after the last sync.
    pub(super) fn discard_unsynced(&mut self) -> io::Result<()> {
        self.file.set_len(self.synced)?;
        self.written = self.synced;
        self.gathered.clear(self.written);
        Ok(())
    }

    /// Writes whole blocks past the page cache, if they are many. A full step is written in any case.
    fn write_blocks(&mut self) -> io::Result<()> {
        let blocks = self.gathered.blocks();
        if self.direct.is_some() && blocks.len() >= DIRECT_BYTES {
            self.write(self.gathered.place.start..blocks.start)?;
            self.write_direct(blocks.clone())?;
            self.gathered.drop_until(blocks.end);
        } else if self.gathered.is_full() {
            self.write_all()?;
        }
        Ok(())
    }

    fn write_direct(&mut self, blocks: Range<usize>) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            let bytes = self.gathered.bytes(&blocks);
            match direct.write_all_at(bytes, self.written) {
                Ok(()) => {
                    self.written += bytes.len() as u64;
                    #[cfg(test)]
                    {
                        self.written_direct += bytes.len() as u64;
                    }
                    return Ok(());
                }
                // Its blocks are larger than ours, or it can't after all.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    tracing::debug!(path = %self.path, %error, "writing through the page cache");
                    self.direct = None;
                }
                Err(error) => return Err(error),
            }
        }
        self.write(blocks)
    }

    fn write_all(&mut self) -> io::Result<()> {
        let place = self.gathered.place.clone();
        let end = place.end;
        self.write(place)?;
        self.gathered.drop_until(end);
        Ok(())
    }

    fn write(&mut self, place: Range<usize>) -> io::Result<()> {
        let bytes = self.gathered.bytes(&place);
        self.file.write_all_at(bytes, self.written)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// As if the disk behind it were another.
    #[cfg(all(test, target_os = "linux"))]
    pub(super) fn is_really(&mut self, file: File) {
        self.file = file;
        self.direct = None;
    }
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Utf8PathBuf) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;

    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(path)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Utf8PathBuf) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Bytes on their way to a file. Each lies as far from the beginning of a block here as it will there.
#[derive(Debug)]
struct Gathered {
    memory: Vec<u8>,
    /// Where the first block begins in `memory`.
    aligned: usize,
    /// Where the bytes are, counted from there.
    place: Range<usize>,
}

impl Gathered {
    fn new(written: u64) -> Self {
        // Nothing of it is touched, and so none of it is taken, before it is needed.
        let memory = vec![0; STEP_BYTES + BLOCK];
        let aligned = memory.as_ptr().align_offset(BLOCK);
        let mut gathered = Self {
            memory,
            aligned,
            place: 0..0,
        };
        gathered.clear(written);
        gathered
    }

    fn bytes(&self, place: &Range<usize>) -> &[u8] {
        &self.memory[self.aligned..][place.clone()]
    }

    /// Takes as much as there is room for, and says how much that was.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let room = &mut self.memory[self.aligned..][self.place.end..STEP_BYTES];
        let taken = room.len().min(bytes.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.place.end += taken;
        taken
    }

    fn is_full(&self) -> bool {
        self.place.end == STEP_BYTES
    }

    /// Where the whole blocks are.
    fn blocks(&self) -> Range<usize> {
        let begin = self.place.start.next_multiple_of(BLOCK);
        begin..(self.place.end / BLOCK * BLOCK).max(begin)
    }

    /// Lets go of the bytes before `end`, and moves the rest to the beginning.
    fn drop_until(&mut self, end: usize) {
        let begin = end % BLOCK;
        let left = self.place.end - end;
        let rest = self.aligned + end..self.aligned + self.place.end;
        self.memory.copy_within(rest, self.aligned + begin);
        self.place = begin..begin + left;
    }

    /// Lets go of everything; what comes next follows `written` bytes.
    fn clear(&mut self, written: u64) {
        // A remainder of a division by 4,096 fits.
        let begin = usize::try_from(written % BLOCK as u64).unwrap_or(0);
        self.place = begin..begin;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn create(folder: &tempfile::TempDir) -> AppendedFile {
        let path = Utf8PathBuf::try_from(folder.path().join("file")).unwrap();
        let file = File::create_new(&path).unwrap();
        AppendedFile::new(path, file, 0)
    }

    /// A step with an edge on each side of what decides about it.
    fn sizes() -> impl Strategy<Value = usize> {
        prop_oneof![
            0..3 * BLOCK,
            DIRECT_BYTES - 2..DIRECT_BYTES + 2 * BLOCK,
            STEP_BYTES - BLOCK - 2..STEP_BYTES + 2,
            Just(2 * STEP_BYTES + 1),
        ]
    }

    #[derive(Debug, Clone)]
    enum Move {
        Append(usize),
        Sync,
        TakeBack,
        Reopen,
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            6 => sizes().prop_map(Move::Append),
            3 => Just(Move::Sync),
            1 => Just(Move::TakeBack),
            1 => Just(Move::Reopen),
        ];
        prop::collection::vec(one, 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_file_is_what_was_appended(moves in moves(), through_the_cache in any::<bool>()) {
            let folder = tempfile::tempdir().unwrap();
            let mut file = create(&folder);
            let (mut synced, mut appended) = (Vec::new(), Vec::new());
            let mut number = 0_u32;
            for next in moves {
                if through_the_cache {
                    file.direct = None;
                }
                match next {
                    Move::Append(size) => {
                        number += 1;
                        let bytes: Vec<u8> =
                            number.to_le_bytes().into_iter().cycle().take(size).collect();
                        file.append(&bytes).unwrap();
                        appended.extend(bytes);
                        prop_assert_eq!(file.length(), appended.len() as u64);
                    }
                    Move::Sync => {
                        file.flush().unwrap();
                        file.sync().unwrap();
                        synced.clone_from(&appended);
                        prop_assert!(fs::read(&file.path).unwrap() == synced);
                    }
                    Move::TakeBack => {
                        file.discard_unsynced().unwrap();
                        appended.clone_from(&synced);
                        prop_assert!(fs::read(&file.path).unwrap() == synced);
                    }
                    Move::Reopen => {
                        file.flush().unwrap();
                        file.sync().unwrap();
                        synced.clone_from(&appended);
                        let again = OpenOptions::new().write(true).open(&file.path).unwrap();
                        file = AppendedFile::new(file.path, again, synced.len() as u64);
                    }
                }
            }
            file.flush().unwrap();
                        file.sync().unwrap();
            prop_assert!(fs::read(&file.path).unwrap() == appended);
        }
    }

    #[test]
    fn blocks_that_the_disk_refuses_take_the_ordinary_way() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = create(&folder);
        file.gathered.aligned = (file.gathered.aligned + 1) % BLOCK;
        let bytes: Vec<u8> = (0..=250).cycle().take(2 * STEP_BYTES + 5).collect();
        file.append(&bytes).unwrap();
        file.flush().unwrap();
        assert!(fs::read(&file.path).unwrap() == bytes);
    }

    proptest! {
        /// What `O_DIRECT` asks for, checked without a disk: address, length and place in the file are
        /// multiples of a block.
        #[test]
        fn blocks_lie_as_any_disk_wants_them(
            written in 0..3 * BLOCK as u64,
            sizes in prop::collection::vec(sizes(), 1..12),
        ) {
            let mut gathered = Gathered::new(written);
            let mut written = written;
            for size in sizes {
                let mut left = size;
                while left > 0 {
                    left -= gathered.take(&vec![1; left]);
                    let blocks = gathered.blocks();
                    let before = (blocks.start - gathered.place.start) as u64;
                    if blocks.is_empty() {
                        prop_assert!(!gathered.is_full(), "a full step has no whole block");
                        continue;
                    }
                    let bytes = gathered.bytes(&blocks);
                    prop_assert_eq!(bytes.as_ptr().align_offset(BLOCK), 0);
                    prop_assert_eq!(bytes.len() % BLOCK, 0);
                    prop_assert_eq!((written + before) % BLOCK as u64, 0);
                    written += before + bytes.len() as u64;
                    gathered.drop_until(blocks.end);
                }
            }
        }
    }

    /// Set where no file system at hand has `O_DIRECT`: the tests of it then say so instead of failing.
    #[cfg(target_os = "linux")]
    const WITHOUT_DIRECT: &str = "OSMOSIS_TEST_WITHOUT_O_DIRECT";

    /// A file on the first file system at hand that has `O_DIRECT`. `None` only where the environment says
    /// that there is none.
    #[cfg(target_os = "linux")]
    fn create_direct() -> Option<(tempfile::TempDir, AppendedFile)> {
        let folders = [
            std::env::temp_dir(),
            "/var/tmp".into(),
            env!("CARGO_MANIFEST_DIR").into(),
        ];
        for folder in &folders {
            let Ok(folder) = tempfile::tempdir_in(folder) else {
                continue;
            };
            let file = create(&folder);
            if file.direct.is_some() {
                return Some((folder, file));
            }
        }
        assert!(
            std::env::var_os(WITHOUT_DIRECT).is_some(),
            "no file system with O_DIRECT in {folders:?}: set TMPDIR to a folder on one (ext4, xfs, btrfs), \
             or {WITHOUT_DIRECT}=1 to go without this test"
        );
        eprintln!("NOT RUN: no file system with O_DIRECT in {folders:?}");
        None
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn blocks_lie_as_the_disk_wants_them() {
        let Some((_folder, mut file)) = create_direct() else {
            return;
        };
        for size in [5, DIRECT_BYTES + 3 * BLOCK, 1, 3 * STEP_BYTES + 77] {
            file.append(&vec![1; size]).unwrap();
            file.flush().unwrap();
            file.sync().unwrap();
        }
        assert!(file.direct.is_some(), "the file system refused");
        // All but the edges of each large step.
        assert!(
            file.written_direct >= (DIRECT_BYTES + 3 * STEP_BYTES) as u64,
            "{} of {} bytes went past the page cache",
            file.written_direct,
            file.written
        );
    }
}
