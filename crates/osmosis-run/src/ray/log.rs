//! What nodes print, in the folder of the run.

use std::fs::File;
use std::io::Write as _;

use camino::Utf8Path;

use super::event::OfNode;
use crate::{RunError, io_error};

const FILE: &str = "nodes.log";
/// Then the rest is left to the logs of the nodes themselves.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// `nodes.log`: each line with the machine that it came from.
#[derive(Debug)]
pub(super) struct NodesLog {
    file: File,
    written: u64,
}

impl NodesLog {
    pub(super) fn open(folder: &Utf8Path) -> Result<Self, RunError> {
        let path = folder.join(FILE);
        let open = || {
            let file = File::options().append(true).create(true).open(&path)?;
            let written = file.metadata()?.len();
            Ok(Self { file, written })
        };
        open().map_err(|error| io_error(&path, &error))
    }

    /// A full disk is noticed where results are written.
    pub(super) fn add(&mut self, said: &OfNode) {
        if self.written > MOST_BYTES {
            return;
        }
        let line = format!("{}: {}\n", said.name(), said.line);
        self.written += line.len() as u64;
        if self.written > MOST_BYTES {
            let _ = writeln!(self.file, "{FILE} has {MOST_BYTES} bytes: no more is kept");
        } else {
            let _ = self.file.write_all(line.as_bytes());
        }
    }
}
