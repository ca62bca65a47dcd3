use std::fmt::Write as _;

use insta::assert_snapshot;
use osmosis_data::{DataError, DataErrorKind, Dataset, MAX_SHOWN_ERRORS, validate};

use crate::{error_of, file};

/// The rendered problems of a file called `d.jsonl`.
fn problems(contents: impl AsRef<[u8]>) -> String {
    crate::problems("d.jsonl", contents.as_ref())
}

#[test]
fn every_bad_row_is_reported_with_its_line() {
    assert_snapshot!(problems(r#"{"user_prompt": "fine", "ground_truth": "1"}

{"user_prompt": "no label"}
{"ground_truth": "no prompt"}
{"user_prompt": " ", "ground_truth": "1"}
{"user_prompt": null, "ground_truth": "1"}
["not", "an", "object"]
"text"
null
{"user_prompt": "é", "ground_truth": }
{"user_prompt": "cut
{"user_prompt": "a", "ground_truth": "1"} trailing
  not a row
"#), @r#"
    d.jsonl:3: missing column `ground_truth`
      hint: add `ground_truth` (or `label`); it is optional only in rows with `metadata`
    d.jsonl:4: missing column `user_prompt`
      hint: add it; it is optional only in rows with `metadata`
    d.jsonl:5:17: `user_prompt` must not be empty
      hint: write a prompt
    d.jsonl:6: missing column `user_prompt`
      hint: add it; it is optional only in rows with `metadata`
    d.jsonl:7:1: a row must be a JSON object, found an array
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    d.jsonl:8:1: a row must be a JSON object, found a string
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    d.jsonl:9:1: a row must be a JSON object, found null
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    d.jsonl:10:38: not JSON: expected value
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    d.jsonl:11:20: not JSON: EOF while parsing a string
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    d.jsonl:12:43: not JSON: trailing characters
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    d.jsonl:13:3: not JSON: it starts with `not`
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    "#);
}

#[test]
fn wrong_types_are_named_with_their_column() {
    assert_snapshot!(problems(r#"{"user_prompt": [{"role": "user", "content": "x"}], "ground_truth": "1"}
{"user_prompt": "é", "ground_truth": ["1"]}
{"user_prompt": "x", "label": true}
   {"user_prompt": "x", "label": {"a": 1}}
{"user_prompt": 3, "label": "x"}
{"user_prompt": "x", "system_prompt": {}, "label": "x"}
{"user_prompt": "x", "ground_truth": "1", "label": "2"}
{"user_prompt": "\ud800", "ground_truth": "1"}
"#), @r#"
    d.jsonl:1:17: `user_prompt` must be a string, found an array
      hint: chat messages can't stand here: write `system_prompt` and `user_prompt`, or put the messages into `metadata`
    d.jsonl:2:38: `ground_truth` must be a string or a number, found an array
      hint: write it as text; structured labels go into `metadata`
    d.jsonl:3:31: `label` must be a string or a number, found a boolean
      hint: write it as text; structured labels go into `metadata`
    d.jsonl:4:34: `label` must be a string or a number, found an object
      hint: write it as text; structured labels go into `metadata`
    d.jsonl:5:17: `user_prompt` must be a string, found a number
    d.jsonl:6:39: `system_prompt` must be a string, found an object
    d.jsonl:7:52: `ground_truth` and `label` say different things
      hint: keep one of the two
    d.jsonl:8:17: not JSON: unexpected end of hex escape
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    "#);
}

#[test]
fn metadata_must_be_an_object_or_text_of_one() {
    assert_snapshot!(problems(r#"{"metadata": {}}
{"metadata": null, "label": "x"}
{"metadata": [1], "user_prompt": "x"}
{"metadata": 3}
{"metadata": "not json"}
{"metadata": "[1]"}
{"metadata": "{\"a\": }"}
{"metadata": {"a": 1}, "user_prompt": 3}
{"metadata": {"a": 1}, "label": []}
"#), @r#"
    d.jsonl:1: neither `user_prompt` nor `metadata` says anything
      hint: add a `user_prompt`, or put something into `metadata`
    d.jsonl:2: neither `user_prompt` nor `metadata` says anything
      hint: add a `user_prompt`, or put something into `metadata`
    d.jsonl:3:14: `metadata` must be an object or a string that holds one, found an array
    d.jsonl:4:14: `metadata` must be an object or a string that holds one, found a number
    d.jsonl:5:14: `metadata` is a string that holds no JSON object: expected ident
      hint: write the object itself, or a string such as "{\"a\": 1}"
    d.jsonl:6:14: `metadata` is a string that holds no JSON object: found an array
      hint: write the object itself, or a string such as "{\"a\": 1}"
    d.jsonl:7:14: `metadata` is a string that holds no JSON object: expected value
      hint: write the object itself, or a string such as "{\"a\": 1}"
    d.jsonl:8:39: `user_prompt` must be a string, found a number
    d.jsonl:9:33: `label` must be a string or a number, found an array
      hint: write it as text; structured labels go into `metadata`
    "#);
}

#[test]
fn bytes_that_are_no_text_are_reported_and_the_rest_is_read() {
    let mut contents = b"{\"user_prompt\": \"\xc3\xa9\xff\", \"label\": \"1\"}\n".to_vec();
    contents.extend_from_slice(b"{\"user_prompt\": \"x\", \"label\": \"1\"}\n{}");
    assert_snapshot!(problems(&contents), @r"
    d.jsonl:1:19: not UTF-8
      hint: save the file as UTF-8
    d.jsonl:3: missing column `user_prompt`
      hint: add it; it is optional only in rows with `metadata`
    ");
}

#[test]
fn bad_rows_keep_the_index_of_the_good_ones() {
    let (_folder, path) = file(
        "d.jsonl",
        b"{}\n\n{\"user_prompt\":\"x\",\"label\":\"1\"}\n",
    );
    let rows: Vec<_> = Dataset::open(&path).unwrap().rows().collect();
    let bad = rows[0].as_ref().unwrap_err();
    assert_eq!((bad.index, bad.line), (0, 1));
    let good = rows[1].as_ref().unwrap();
    assert_eq!((good.index, good.line), (1, 3));
}

#[test]
fn only_the_first_bad_rows_are_shown_and_all_are_counted() {
    let mut contents = String::new();
    for _ in 0..MAX_SHOWN_ERRORS + 7 {
        writeln!(contents, "7").unwrap();
    }
    let (_folder, path) = file("d.jsonl", contents.as_bytes());
    let report = validate(&path).unwrap();
    assert_eq!(report.errors.len(), MAX_SHOWN_ERRORS);
    assert_eq!(report.error_count, MAX_SHOWN_ERRORS as u64 + 7);
    assert!(report.render_errors().ends_with("and 7 more\n"));
    let error = report.check().unwrap_err();
    assert_eq!(error.kind(), DataErrorKind::Invalid);
    assert_eq!(error.details(), Some(report.render_errors()));
}

#[test]
fn files_that_are_no_dataset_say_why() {
    let row = b"{\"user_prompt\":\"x\",\"label\":\"1\"}";
    assert_snapshot!(error_of("d.jsonl", b""), @r"
    `d.jsonl` has no rows
      hint: write one JSON object on each line
    ");
    assert_snapshot!(error_of("d.jsonl", b"\n \n"), @r"
    `d.jsonl` has no rows
      hint: write one JSON object on each line
    ");
    assert_snapshot!(error_of("d.json", row), @r"
    `d.json` is not a dataset: unknown extension
      hint: datasets are `.jsonl`, `.csv`, `.parquet` and `.arrow` files, and the first two also with `.gz` or `.zst` behind
    ");
    assert_snapshot!(error_of("d.parquet.gz", row), @r"
    `d.parquet.gz` is not a dataset: unknown extension
      hint: parquet files are compressed inside: name the `.parquet` file itself
    ");
    assert_snapshot!(error_of("d.gz", row), @r"
    `d.gz` is not a dataset: unknown extension
      hint: datasets are `.jsonl`, `.csv`, `.parquet` and `.arrow` files, and the first two also with `.gz` or `.zst` behind
    ");
    assert_snapshot!(error_of("d", row), @r"
    `d` is not a dataset: unknown extension
      hint: datasets are `.jsonl`, `.csv`, `.parquet` and `.arrow` files, and the first two also with `.gz` or `.zst` behind
    ");
    assert_snapshot!(error_of("d.jsonl", b"{}\n7"), @r"
    `d.jsonl` has 2 bad rows
      hint: `osmosis dataset validate d.jsonl` shows them
    ");
}

#[test]
fn a_folder_and_a_missing_file_are_told_apart() {
    let (folder, path) = file("d.jsonl", b"");
    let missing = path.with_file_name("other.jsonl");
    assert!(matches!(
        Dataset::open(&missing),
        Err(DataError::NotFound { .. })
    ));
    let sub = folder.path().join("sub.jsonl");
    std::fs::create_dir(&sub).unwrap();
    let sub = path.with_file_name("sub.jsonl");
    assert!(matches!(
        Dataset::open(&sub),
        Err(DataError::NotAFile { .. })
    ));
}

#[test]
fn a_file_that_vanishes_is_an_error_in_place_of_its_rows() {
    let (_folder, path) = file("d.jsonl", b"{}");
    let dataset = Dataset::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let rows: Vec<_> = dataset.rows().collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].as_ref().unwrap_err().problem.code(), "unreadable");
}

#[test]
fn a_report_serialises_its_errors_for_programs() {
    let (_folder, path) = file("d.jsonl", b"{\"user_prompt\": 3, \"label\": \"x\"}");
    let report = validate(&path).unwrap();
    assert_snapshot!(serde_json::to_string(&report.errors).unwrap(), @r#"[{"row_index":0,"line":1,"column":17,"code":"wrong_type","message":"`user_prompt` must be a string, found a number","hint":null}]"#);
}
