//! Tests of `osmosis-data` from outside.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that can't go on has failed; clippy only knows this of `#[test]` functions"
)]

mod arrow;
mod bad_rows;
mod column_names;
mod compressed;
mod csv;
mod damaged;
mod export;
mod good_rows;
mod hostile;
mod memory;
mod parquet;
mod resolving;
mod several_files;
mod streaming;
mod talks;
mod tokens;
mod whole_rows;

use camino::Utf8PathBuf;
use osmosis_data::validate;
use tempfile::TempDir;

/// A folder with one file in it.
fn file(name: &str, contents: &[u8]) -> (TempDir, Utf8PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().join(name)).unwrap();
    std::fs::write(&path, contents).unwrap();
    (folder, path)
}

/// The rendered bad rows of a file.
fn problems(name: &str, contents: &[u8]) -> String {
    let (folder, path) = file(name, contents);
    let report = validate(&path).unwrap();
    assert_eq!(report.errors.len() as u64, report.error_count);
    report
        .render_errors()
        .replace(&format!("{}/", folder.path().to_str().unwrap()), "")
}

/// The error of a file that is no dataset, and its hint.
fn error_of(name: &str, contents: &[u8]) -> String {
    let (folder, path) = file(name, contents);
    let error = validate(&path)
        .and_then(|report| report.check())
        .expect_err("the dataset was accepted");
    let shown = match error.hint() {
        Some(hint) => format!("{error}\n  hint: {hint}"),
        None => error.to_string(),
    };
    shown.replace(&format!("{}/", folder.path().to_str().unwrap()), "")
}
