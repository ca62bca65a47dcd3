use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use insta::assert_snapshot;
use osmosis_data::resolve;
use tempfile::TempDir;

fn workspace(files: &[&str]) -> (TempDir, Utf8PathBuf) {
    let folder = TempDir::new().unwrap();
    let root = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    (folder, root)
}

/// What a reference resolves to, relative to the workspace, or the error and its hint.
fn check(files: &[&str], reference: &str) -> String {
    let (_folder, root) = workspace(files);
    match resolve(&reference.parse().unwrap(), &root) {
        Ok(path) => path.strip_prefix(&root).unwrap().to_string(),
        Err(error) => format!("{error}\n  hint: {}", error.hint().unwrap_or_default()),
    }
}

#[test]
fn names_and_paths_find_their_file() {
    assert_eq!(check(&["data/a.jsonl"], "a"), "data/a.jsonl");
    assert_eq!(check(&["data/a.csv"], "a"), "data/a.csv");
    assert_eq!(check(&["data/a.parquet", "a.jsonl"], "a"), "data/a.parquet");
    assert_eq!(check(&["data/a.v2.jsonl"], "a.v2"), "data/a.v2.jsonl");
    assert_eq!(check(&["sets/a.jsonl"], "sets/a.jsonl"), "sets/a.jsonl");
    assert_eq!(check(&["a.jsonl"], "./a.jsonl"), "a.jsonl");
    for file in [
        "data/a.jsonl.gz",
        "data/a.jsonl.zst",
        "data/a.csv.gz",
        "data/a.csv.zst",
    ] {
        assert_eq!(check(&[file], "a"), file);
        assert_eq!(check(&[file], file), file);
    }
}

#[test]
fn an_absolute_path_is_taken_as_it_is() {
    let (_folder, root) = workspace(&["a.jsonl"]);
    let path = root.join("a.jsonl");
    let elsewhere = Utf8Path::new("/nowhere");
    assert_eq!(
        resolve(&path.as_str().parse().unwrap(), elsewhere).unwrap(),
        path
    );
}

#[test]
fn what_is_missing_is_told_with_what_is_there() {
    assert_snapshot!(check(&["data/multiply.jsonl", "data/zebra.csv", "data/notes.txt"], "mutliply"), @r"
    dataset `mutliply` not found
      hint: looked for `data/mutliply.jsonl`, `data/mutliply.csv`, `data/mutliply.parquet`; there is `multiply`, `zebra`
    ");
    assert_snapshot!(check(&["data/multiply.jsonl.gz", "data/x.parquet.gz"], "mutliply"), @r"
    dataset `mutliply` not found
      hint: looked for `data/mutliply.jsonl`, `data/mutliply.csv`, `data/mutliply.parquet`; there is `multiply`
    ");
    assert_snapshot!(check(&["data/multiply.jsonl"], "data/multipyl.jsonl"), @r"
    dataset `data/multipyl.jsonl` not found
      hint: looked for `data/multipyl.jsonl`; there is `data/multiply.jsonl`
    ");
    assert_snapshot!(check(&[], "multiply"), @r"
    dataset `multiply` not found
      hint: looked for `data/multiply.jsonl`, `data/multiply.csv`, `data/multiply.parquet`
    ");
    assert_snapshot!(check(&["data/a.jsonl"], "sets/a.jsonl"), @r"
    dataset `sets/a.jsonl` not found
      hint: looked for `sets/a.jsonl`; there is `data/a.jsonl`
    ");
}

#[test]
fn a_name_of_two_files_is_refused() {
    assert_snapshot!(check(&["data/a.jsonl", "data/a.csv"], "a"), @r"
    dataset `a` could be any of several files
      hint: write the path: `data/a.jsonl`, `data/a.csv`
    ");
}

#[test]
fn a_name_of_a_file_and_its_compressed_copy_is_refused() {
    assert_snapshot!(check(&["data/a.jsonl", "data/a.jsonl.gz", "data/b.csv"], "a"), @r"
    dataset `a` could be any of several files
      hint: write the path: `data/a.jsonl`, `data/a.jsonl.gz`
    ");
}

#[test]
fn a_folder_is_no_dataset() {
    assert_snapshot!(check(&["data/a.jsonl/x"], "a"), @r"
    `data/a.jsonl` is not a file
      hint: name a `.jsonl`, `.csv` or `.parquet` file, a pattern such as `data/part-*.parquet`, or a folder that `datasets.Dataset.save_to_disk` wrote
    ");
}
