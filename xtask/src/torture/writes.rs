//! What a disk holds after a power cut, from a trace of the writes before it.
//!
//! A write that was followed by a sync of its file is there. Of the others anything may be: none, all, the
//! first of them with the last one torn, or some blocks and not others. Names of files are as they were.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result};
use camino::{Utf8Path, Utf8PathBuf};
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::invariants::files_below;

/// Arguments that make `strace` log what is read here; the log file comes next.
pub(super) const STRACE: [&str; 10] = [
    "-f",
    "--seccomp-bpf",
    "-y",
    "-xx",
    "-qq",
    "-s",
    "67108864",
    "-e",
    "trace=openat,write,pwrite64,fsync,fdatasync,ftruncate,rename,renameat,renameat2,unlink,unlinkat",
    "-o",
];

const BLOCK: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Truncate(usize),
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(bytes);
            }
            Self::Truncate(length) => content.resize(*length, 0),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct FileState {
    synced: Vec<u8>,
    pending: Vec<Change>,
    /// With everything that is pending.
    length: usize,
}

impl FileState {
    fn change(&mut self, change: Change) {
        self.length = match &change {
            Change::Write { offset, bytes } => self.length.max(offset + bytes.len()),
            Change::Truncate(length) => *length,
        };
        self.pending.push(change);
    }

    fn sync(&mut self, first: usize) {
        let first = first.min(self.pending.len());
        for change in self.pending.drain(..first) {
            change.apply(&mut self.synced);
        }
    }

    /// What is found after the cut; and how many changes are not wholly there.
    fn after_cut(&self, random: &mut StdRng) -> (Vec<u8>, usize) {
        let mut content = self.synced.clone();
        let mut lost = 0;
        let (kept, torn) = match random.random_range(0..4) {
            // Nothing that was not synced.
            0 => (0, false),
            1 => (random.random_range(0..=self.pending.len()), true),
            // Blocks in any order.
            2 => {
                for change in &self.pending {
                    lost += usize::from(!some_blocks(change, &mut content, random));
                }
                return (content, lost);
            }
            _ => (self.pending.len(), false),
        };
        for change in &self.pending[..kept] {
            change.apply(&mut content);
        }
        lost += self.pending.len() - kept;
        if torn && let Some(Change::Write { offset, bytes }) = self.pending.get(kept) {
            let length = random.random_range(0..bytes.len().max(1));
            let bytes = bytes[..length].to_vec();
            Change::Write {
                offset: *offset,
                bytes,
            }
            .apply(&mut content);
        }
        (content, lost)
    }
}

/// Applies some blocks of a change; `true` when it was all of them.
fn some_blocks(change: &Change, content: &mut Vec<u8>, random: &mut StdRng) -> bool {
    match change {
        Change::Truncate(_) => {
            let kept = random.random_bool(0.5);
            if kept {
                change.apply(content);
            }
            kept
        }
        Change::Write { offset, bytes } => {
            let mut all = true;
            let mut at = 0;
            while at < bytes.len() {
                // Up to the next block of the file.
                let end = (at + BLOCK - (offset + at) % BLOCK).min(bytes.len());
                if random.random_bool(0.5) {
                    let piece = Change::Write {
                        offset: offset + at,
                        bytes: bytes[at..end].to_vec(),
                    };
                    piece.apply(content);
                } else {
                    all = false;
                }
                at = end;
            }
            all
        }
    }
}

/// The files below a folder, as a trace tells of them.
#[derive(Debug)]
pub(super) struct Disk {
    folder: Utf8PathBuf,
    files: BTreeMap<Utf8PathBuf, FileState>,
    /// Calls that have begun, by thread: what was said of them, and what a sync will cover.
    begun: HashMap<String, (String, usize)>,
}

impl Disk {
    /// The folder as it is now, all of it on the disk.
    pub(super) fn of(folder: &Utf8Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for path in files_below(folder)? {
            let synced = std::fs::read(&path)?;
            let length = synced.len();
            let state = FileState {
                synced,
                pending: vec![],
                length,
            };
            files.insert(path, state);
        }
        Ok(Self {
            folder: folder.to_owned(),
            files,
            begun: HashMap::new(),
        })
    }

    pub(super) fn read(&mut self, log: &Utf8Path) -> Result<()> {
        let text = std::fs::read(log).with_context(|| log.to_string())?;
        for line in String::from_utf8_lossy(&text).lines() {
            self.line(line);
        }
        Ok(())
    }

    /// Makes the folder what it is after the cut; returns how many writes are lost or torn.
    pub(super) fn cut(&self, random: &mut StdRng) -> Result<usize> {
        let mut lost = 0;
        for (path, state) in &self.files {
            // Rebuilt from the log of the database, and of no use without the processes that share it.
            if path.as_str().ends_with("-shm") {
                let _ = std::fs::remove_file(path);
                continue;
            }
            if state.pending.is_empty() || !path.exists() {
                continue;
            }
            let (content, of_file) = state.after_cut(random);
            lost += of_file;
            std::fs::write(path, content)?;
        }
        Ok(lost)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (thread, call) = line.split_once(' ')?;
        let call = call.trim_start();
        if let Some(begun) = call.strip_suffix(" <unfinished ...>") {
            let covered = self.covered(begun);
            if begun.starts_with("pwrite64(") || begun.starts_with("write(") {
                // All is known of it. Whether it was done before the cut, nobody can tell.
                self.call(&format!("{begun}) = 0"), usize::MAX);
            } else {
                self.begun
                    .insert(thread.to_owned(), (begun.to_owned(), covered));
            }
        } else if let Some(rest) = call.strip_prefix("<... ") {
            let (_, rest) = rest.split_once(" resumed>")?;
            let (begun, covered) = self.begun.remove(thread)?;
            self.call(&format!("{begun}{rest}"), covered);
        } else {
            self.call(call, usize::MAX);
        }
        Some(())
    }

    /// Changes of its file that a sync that begins now will cover.
    fn covered(&self, call: &str) -> usize {
        let path = call
            .split_once('(')
            .and_then(|(_, rest)| of_descriptor(rest));
        let state = path.and_then(|path| self.files.get(&path));
        state.map_or(0, |state| state.pending.len())
    }

    fn call(&mut self, call: &str, covered: usize) -> Option<()> {
        let (name, rest) = call.split_once('(')?;
        let (arguments, result) = rest.rsplit_once(" = ")?;
        let arguments = arguments.trim_end().strip_suffix(')')?;
        if result.trim_start().starts_with('-') {
            return None;
        }
        match name {
            "openat" => {
                let path = self.inside(of_descriptor(result)?)?;
                let flags = arguments.rsplit_once('"')?.1;
                if flags.contains("O_CREAT") && !self.files.contains_key(&path) {
                    self.files.insert(path.clone(), FileState::default());
                }
                if flags.contains("O_TRUNC") {
                    self.files.get_mut(&path)?.change(Change::Truncate(0));
                }
            }
            "write" | "pwrite64" => {
                let path = self.inside(of_descriptor(arguments)?)?;
                let bytes = unescaped(arguments.split('"').nth(1)?);
                let state = self.files.entry(path).or_default();
                let offset = if name == "write" {
                    // Such files are only appended to, or written anew from the start.
                    state.length
                } else {
                    arguments.rsplit(", ").next()?.parse().ok()?
                };
                state.change(Change::Write { offset, bytes });
            }
            "ftruncate" => {
                let path = self.inside(of_descriptor(arguments)?)?;
                let length = arguments.rsplit(", ").next()?.parse().ok()?;
                let state = self.files.entry(path).or_default();
                state.change(Change::Truncate(length));
            }
            "fsync" | "fdatasync" => {
                let path = of_descriptor(arguments)?;
                self.files.get_mut(&path)?.sync(covered);
            }
            "rename" | "renameat" | "renameat2" => {
                let mut paths = quoted(arguments);
                let (from, to) = (paths.next()?, paths.next()?);
                let state = self.files.remove(&from)?;
                self.files.insert(to, state);
            }
            "unlink" | "unlinkat" => {
                let path = quoted(arguments).next()?;
                self.files.remove(&path);
            }
            _ => {}
        }
        Some(())
    }

    fn inside(&self, path: Utf8PathBuf) -> Option<Utf8PathBuf> {
        path.starts_with(&self.folder).then_some(path)
    }
}

/// The path in `3<PATH>`.
fn of_descriptor(text: &str) -> Option<Utf8PathBuf> {
    let (number, rest) = text.trim_start().split_once('<')?;
    number.parse::<i32>().ok()?;
    let (path, _) = rest.split_once('>')?;
    path_of(path)
}

/// Paths in quotation marks; the program names its files from the root on.
fn quoted(arguments: &str) -> impl Iterator<Item = Utf8PathBuf> {
    let quoted = arguments.split('"').skip(1).step_by(2);
    quoted.filter_map(path_of)
}

fn path_of(escaped: &str) -> Option<Utf8PathBuf> {
    String::from_utf8(unescaped(escaped))
        .ok()
        .map(Utf8PathBuf::from)
}

/// The bytes of `\x41\x42`.
fn unescaped(text: &str) -> Vec<u8> {
    let pieces = text.split("\\x").skip(1);
    pieces
        .filter_map(|piece| u8::from_str_radix(piece.get(..2)?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use rand::SeedableRng as _;

    use super::*;

    fn hex(text: &str) -> String {
        text.bytes().fold(String::new(), |mut all, byte| {
            let _ = write!(all, "\\x{byte:02x}");
            all
        })
    }

    fn disk() -> Disk {
        Disk {
            folder: "/run".into(),
            files: BTreeMap::new(),
            begun: HashMap::new(),
        }
    }

    fn state<'a>(disk: &'a Disk, path: &str) -> &'a FileState {
        &disk.files[Utf8Path::new(path)]
    }

    #[test]
    fn what_was_synced_stays_and_the_rest_is_pending() {
        let mut disk = disk();
        let file = format!("3<{}>", hex("/run/a"));
        let new = hex("/run/.a");
        for line in [
            format!(
                "7  openat(AT_FDCWD<{}>, \"{}\", O_WRONLY|O_CREAT|O_TRUNC, 0644) = {file}",
                hex("/"),
                hex("/run/a")
            ),
            format!("7  write({file}, \"{}\", 2) = 2", hex("ab")),
            format!("7  pwrite64({file}, \"{}\", 2, 4) = 2", hex("xy")),
            format!("7  fdatasync({file} <unfinished ...>"),
            format!("8  write({file}, \"{}\", 1) = 1", hex("z")),
            "7  <... fdatasync resumed>) = 0".to_owned(),
            format!(
                "8  pwrite64({file}, \"{}\", 1, 0 <unfinished ...>",
                hex("Q")
            ),
            format!(
                "9  write(1<{}>, \"{}\", 1) = 1",
                hex("/elsewhere"),
                hex("n")
            ),
        ] {
            disk.line(&line);
        }
        let found = state(&disk, "/run/a");
        assert_eq!(found.synced, b"ab\0\0xy");
        let pending = [
            Change::Write {
                offset: 6,
                bytes: b"z".to_vec(),
            },
            Change::Write {
                offset: 0,
                bytes: b"Q".to_vec(),
            },
        ];
        assert_eq!(found.pending, pending);
        assert_eq!(disk.files.len(), 1);
        disk.line(&format!("7  rename(\"{}\", \"{new}\") = 0", hex("/run/a")));
        assert_eq!(state(&disk, "/run/.a").pending.len(), 2);
        disk.line(&format!(
            "7  unlink(\"{new}\") = -1 ENOENT (No such file or directory)"
        ));
        assert_eq!(disk.files.len(), 1);
        disk.line(&format!("7  unlink(\"{new}\") = 0"));
        assert!(disk.files.is_empty());
    }

    #[test]
    fn a_cut_never_touches_what_was_synced_unless_it_was_being_overwritten() {
        let mut random = StdRng::seed_from_u64(3);
        let mut found = std::collections::BTreeSet::new();
        let mut state = FileState {
            synced: b"old".to_vec(),
            pending: vec![],
            length: 3,
        };
        state.change(Change::Write {
            offset: 3,
            bytes: b"new".to_vec(),
        });
        for _ in 0..200 {
            let (content, lost) = state.after_cut(&mut random);
            assert!(content.starts_with(b"old"));
            assert_eq!(lost == 0, content == b"oldnew");
            found.insert(content.len());
        }
        assert_eq!(found, (3..=6).collect());
    }
}
