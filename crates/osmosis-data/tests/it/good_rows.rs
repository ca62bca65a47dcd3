use osmosis_core::JsonText;
use osmosis_data::{Dataset, JsonlRows, ReportMode, Row, RowMode, validate};

use crate::file;

fn rows(text: &str) -> Vec<Row> {
    JsonlRows::new(text.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

/// Prompt, label and metadata of one row, as JSON.
fn check(row: &str, prompt: &str, label: Option<&str>, metadata: Option<&str>) {
    let row = &rows(row)[0];
    assert_eq!(row.prompt_json().unwrap().as_str(), prompt);
    assert_eq!(row.label.as_deref(), label);
    assert_eq!(row.metadata.as_ref().map(JsonText::as_str), metadata);
}

#[test]
fn a_prompt_row_becomes_messages_and_a_label() {
    check(
        r#"{"user_prompt": "6 × 7?", "ground_truth": "42"}"#,
        r#"[{"role":"user","content":"6 × 7?"}]"#,
        Some("42"),
        None,
    );
    check(
        r#"{"label": "42", "system_prompt": "Be brief.", "user_prompt": " 6 * 7? \n"}"#,
        r#"[{"role":"system","content":"Be brief."},{"role":"user","content":" 6 * 7? \n"}]"#,
        Some("42"),
        None,
    );
}

#[test]
fn a_number_as_label_is_the_text_it_was_written_as() {
    for label in ["42", "1.50", "-0", "1e400", "12345678901234567890123"] {
        let row = format!(r#"{{"user_prompt": "x", "ground_truth": {label}}}"#);
        assert_eq!(rows(&row)[0].label.as_deref(), Some(label));
    }
}

#[test]
fn an_empty_label_is_a_label() {
    check(
        r#"{"user_prompt": "x", "ground_truth": ""}"#,
        r#"[{"role":"user","content":"x"}]"#,
        Some(""),
        None,
    );
}

#[test]
fn two_labels_that_agree_are_one() {
    let row = &rows(r#"{"user_prompt": "x", "ground_truth": "4", "label": 4}"#)[0];
    assert_eq!(row.label.as_deref(), Some("4"));
    let row = &rows(r#"{"user_prompt": "x", "ground_truth": null, "label": "4"}"#)[0];
    assert_eq!(row.label.as_deref(), Some("4"));
}

#[test]
fn metadata_makes_prompt_and_label_optional() {
    check(
        r#"{"metadata": {"a": 1.50}}"#,
        "[]",
        None,
        Some(r#"{"a": 1.50}"#),
    );
    check(
        r#"{"metadata": "{\"a\": [1, 2]}"}"#,
        "[]",
        None,
        Some(r#"{"a": [1, 2]}"#),
    );
    check(
        r#"{"metadata": {"a": 1}, "user_prompt": "", "system_prompt": "s", "label": "l"}"#,
        r#"[{"role":"system","content":"s"}]"#,
        Some("l"),
        Some(r#"{"a": 1}"#),
    );
}

#[test]
fn empty_metadata_is_none() {
    for metadata in [
        "{}",
        "null",
        r#""""#,
        r#""  ""#,
        r#""{}""#,
        r#""null""#,
        "{ }",
    ] {
        check(
            &format!(r#"{{"metadata": {metadata}, "user_prompt": "x"}}"#),
            r#"[{"role":"user","content":"x"}]"#,
            None,
            None,
        );
    }
}

#[test]
fn the_body_is_the_row_as_it_was_and_can_be_read_again() {
    let text = r#"{"user_prompt": "x",  "label": 1.50, "extra": {"b": 1, "a": [1e2]}}"#;
    let row = &rows(&format!("  {text} \r\n"))[0];
    assert_eq!(row.body.as_str(), text);
    assert_eq!(&Row::from_body(0, 1, &row.body).unwrap(), row);
}

#[test]
fn blank_lines_count_as_lines_and_not_as_rows() {
    let text = "\u{feff}{\"user_prompt\":\"a\",\"label\":\"1\"}\r\n\r\n   \n{\"user_prompt\":\"b\",\"label\":\"2\"}";
    let places: Vec<_> = rows(text).iter().map(|row| (row.index, row.line)).collect();
    assert_eq!(places, [(0, 1), (1, 4)]);
}

#[test]
fn a_report_says_what_the_file_holds() {
    let text = "{\"user_prompt\":\"a\",\"label\":\"1\"}\n{\"metadata\":{\"k\":1},\"x\":2}\n";
    let (_folder, path) = file("d.jsonl", text.as_bytes());
    let report = validate(&path).unwrap();
    report.check().unwrap();
    assert_eq!((report.rows, report.error_count), (2, 0));
    assert_eq!(report.mode, Some(ReportMode::Mixed));
    assert_eq!(report.bytes, text.len() as u64);
    assert_eq!(report.render_errors(), "");
    let columns: Vec<_> = report
        .columns
        .iter()
        .map(|(name, count)| (name.as_str(), *count))
        .collect();
    assert_eq!(
        columns,
        [("label", 1), ("metadata", 1), ("user_prompt", 1), ("x", 1)]
    );
    let modes: Vec<_> = Dataset::open(&path)
        .unwrap()
        .rows()
        .map(|row| row.unwrap().mode)
        .collect();
    assert_eq!(modes, [RowMode::Prompt, RowMode::Metadata]);
}

#[test]
fn the_digest_is_that_of_the_files_bytes() {
    // The digest of "abc", from FIPS 180-2.
    let (_folder, path) = file("d.jsonl", b"abc");
    assert_eq!(
        validate(&path).unwrap().sha256,
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

#[test]
fn rows_can_be_read_more_than_once() {
    let (_folder, path) = file("d.jsonl", b"{\"user_prompt\":\"a\",\"label\":\"1\"}\n");
    let dataset = Dataset::open(&path).unwrap();
    assert_eq!(dataset.rows().count(), 1);
    assert_eq!(dataset.rows().count(), 1);
}
