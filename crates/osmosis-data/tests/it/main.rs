//! Tests of `osmosis-data` from outside.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that can't go on has failed; clippy only knows this of `#[test]` functions"
)]

mod bad_rows;
mod good_rows;
mod resolving;
mod streaming;

use camino::Utf8PathBuf;
use tempfile::TempDir;

/// A folder with one file in it.
fn file(name: &str, contents: &[u8]) -> (TempDir, Utf8PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().join(name)).unwrap();
    std::fs::write(&path, contents).unwrap();
    (folder, path)
}
