use camino::Utf8Path;
use insta::assert_snapshot;
use osmosis_core::config::DatasetColumns;
use osmosis_data::{DataError, Dataset, Taking};

use crate::file;

fn columns(named: &[(&str, &str)]) -> DatasetColumns {
    let mut columns = DatasetColumns::default();
    for (ours, theirs) in named {
        columns.set(ours, theirs).unwrap();
    }
    columns
}

const QA: &[(&str, &str)] = &[("user_prompt", "question"), ("ground_truth", "answer")];

/// The rows as prompt and label, or why there are none.
fn read(name: &str, contents: &str, named: &[(&str, &str)]) -> String {
    let (folder, path) = file(name, contents.as_bytes());
    let shown = shown(&path, named);
    shown.replace(&format!("{}/", folder.path().to_str().unwrap()), "")
}

fn shown(path: &Utf8Path, named: &[(&str, &str)]) -> String {
    let dataset = Dataset::open(path).unwrap().with_columns(columns(named));
    let told = |error: DataError| {
        let details = error.details().unwrap_or_default();
        let hint = error.hint().map(|hint| format!("\n  hint: {hint}"));
        format!("{error}{}\n{details}", hint.unwrap_or_default())
    };
    let report = match dataset.validate() {
        Ok(report) => report,
        Err(error) => return told(error),
    };
    if report.error_count > 0 {
        return report.render_errors();
    }
    let rows = dataset.rows().map(|row| {
        let row = row.unwrap();
        let prompt = serde_json::to_string(&row.prompt).unwrap();
        format!(
            "{prompt} {:?} {}\n",
            row.label.unwrap_or_default(),
            row.body.as_str()
        )
    });
    rows.collect()
}

fn lines(count: u64, line: impl Fn(u64) -> String) -> String {
    let lines: Vec<String> = (0..count).map(line).collect();
    format!("{}\n", lines.join("\n"))
}

#[test]
fn the_config_names_the_columns_of_every_format() {
    let jsonl = r#"{"id": 1, "question": "6 * 7?", "answer": 42, "label": "other"}"#;
    assert_snapshot!(read("x.jsonl", jsonl, QA), @r#"[{"role":"user","content":"6 * 7?"}] "42" {"id":1,"user_prompt":"6 * 7?","ground_truth":42}"#);
    let csv = "id,question,answer,ground_truth\n1,6 * 7?,42,other\n";
    assert_snapshot!(read("x.csv", csv, QA), @r#"[{"role":"user","content":"6 * 7?"}] "42" {"id":"1","user_prompt":"6 * 7?","ground_truth":"42"}"#);
}

#[test]
fn a_column_that_no_row_has_is_one_line_for_the_file() {
    let rows = lines(5000, |row| {
        format!("{{\"question\": \"{row}?\", \"answer\": \"{row}\"}}")
    });
    assert_snapshot!(read("x.jsonl", &rows, &[]), @r#"
    `x.jsonl`: missing column `user_prompt`; missing column `ground_truth`
      hint: the file has `answer`, `question`; name the columns in the config: `[dataset.columns]` with `user_prompt = "question"` and `ground_truth = "answer"`; both prompt and label are optional only in rows with `metadata`
    "#);
    assert_snapshot!(read("x.csv", "prompt,ground_truth\na,b\n", &[]), @r#"
    `x.csv`: missing column `user_prompt`
      hint: the file has `prompt`, `ground_truth`; name the column in the config: `[dataset.columns]` with `user_prompt = "prompt"`; both prompt and label are optional only in rows with `metadata`
    "#);
}

#[test]
fn a_column_that_most_rows_lack_is_one_line_too() {
    let mut rows = lines(4999, |row| format!("{{\"user_prompt\": \"{row}?\"}}"));
    rows.push_str("{\"user_prompt\": \"?\", \"ground_truth\": \"1\"}\n7\n");
    assert_snapshot!(read("x.jsonl", &rows, &[]), @r#"
    x.jsonl:1: missing column `ground_truth` (and in 4998 more rows)
      hint: add `ground_truth` (or `label`); it is optional only in rows with `metadata`
    and 1 more
    "#);
}

#[test]
fn a_column_that_the_config_names_and_the_file_lacks_is_refused() {
    let rows = "{\"question\": \"?\", \"answer\": \"1\"}\n";
    let slip: &[_] = &[("user_prompt", "questoin"), ("ground_truth", "answer")];
    assert_snapshot!(read("x.jsonl", rows, slip), @r#"
    `x.jsonl`: missing column `questoin` (`user_prompt` in `[dataset.columns]`)
      hint: the file has `answer`, `question`; name the column in the config: `[dataset.columns]` with `user_prompt = "question"`
    "#);
    let optional: &[_] = &[QA[0], QA[1], ("system_prompt", "system")];
    assert_snapshot!(read("x.jsonl", rows, optional), @r#"
    `x.jsonl`: missing column `system` (`system_prompt` in `[dataset.columns]`)
      hint: the file has `answer`, `question`; name the column in the config: `[dataset.columns]` with `system_prompt = "COLUMN"`
    "#);
    assert_snapshot!(read("x.csv", "question,answer\n?,1\n", optional), @r#"
    `x.csv`: missing column `system` (`system_prompt` in `[dataset.columns]`)
      hint: the file has `question`, `answer`; name the column in the config: `[dataset.columns]` with `system_prompt = "COLUMN"`
    "#);
}

#[test]
fn parquet_columns_are_renamed_and_left_out_in_step() {
    let path = crate::parquet::fixture("pyarrow.parquet");
    let dataset = Dataset::open(&path).unwrap();
    let plain: Vec<_> = dataset.rows().map(Result::unwrap).collect();
    // Another column is read as the prompt: the file's own prompt is in no row, and the others are as they were.
    let theirs = "ground_truth";
    let named = columns(&[("user_prompt", theirs)]);
    let renamed = dataset.with_columns(named).with(Taking::WholeRows);
    for (row, plain) in renamed.rows().map(Result::unwrap).zip(plain) {
        let (mut old, new): (
            serde_json::Map<_, _>,
            serde_json::Map<String, serde_json::Value>,
        ) = (plain.body.read().unwrap(), row.body.read().unwrap());
        let value = old.remove(theirs).unwrap();
        old.insert("user_prompt".to_owned(), value);
        assert_eq!(old, new);
    }
}
