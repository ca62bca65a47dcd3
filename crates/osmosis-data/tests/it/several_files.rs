use camino::Utf8PathBuf;
use insta::assert_snapshot;
use osmosis_data::{Dataset, resolve};
use tempfile::TempDir;

/// A workspace with these files below `data/`.
fn workspace(files: &[(&str, &str)]) -> (TempDir, Utf8PathBuf) {
    let folder = TempDir::new().unwrap();
    let root = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    for (name, text) in files {
        let path = root.join("data").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    (folder, root)
}

fn row(prompt: &str) -> String {
    format!("{{\"user_prompt\": \"{prompt}\", \"ground_truth\": \"1\"}}\n")
}

#[test]
fn a_pattern_is_read_in_the_order_of_its_files_and_rows_are_numbered_through() {
    let (_folder, root) = workspace(&[
        ("part-2.jsonl", &row("c")),
        ("part-1.jsonl", &format!("{}\n{}", row("a"), row("b"))),
        ("part-1.jsonl.bak", "no"),
        (".part-0.jsonl", &row("hidden")),
    ]);
    let reference = "data/part-*.jsonl".parse().unwrap();
    let dataset = Dataset::open(resolve(&reference, &root).unwrap()).unwrap();
    let rows: Vec<_> = dataset
        .rows()
        .map(|row| {
            let row = row.unwrap();
            (row.index, row.line, row.prompt[0]["content"].to_string())
        })
        .collect();
    let expected = [(0, 1, "\"a\""), (1, 2, "\"b\""), (2, 3, "\"c\"")];
    assert_eq!(
        rows,
        expected.map(|(index, line, text)| (index, line, text.to_owned()))
    );
    let report = dataset.validate().unwrap();
    assert_eq!((report.rows, report.files.len()), (3, 2));
    // The digest is of all files.
    std::fs::write(root.join("data/part-2.jsonl"), row("d")).unwrap();
    assert_ne!(dataset.validate().unwrap().sha256, report.sha256);
}

#[test]
fn a_bad_row_is_named_with_its_own_file() {
    let (_folder, root) = workspace(&[
        ("part-1.jsonl", &row("a")),
        ("part-2.jsonl", &format!("{}7\n", row("b"))),
    ]);
    let dataset = Dataset::open(root.join("data/part-?.jsonl")).unwrap();
    let report = dataset.validate().unwrap();
    let shown = report.render_errors().replace(root.as_str(), "");
    assert_snapshot!(shown, @r#"
    /data/part-2.jsonl:2:1: a row must be a JSON object, found a number
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    "#);
    assert_eq!(report.errors[0].index, 2);
    let error = dataset.rows().last().unwrap().unwrap_err();
    assert_eq!(error, report.errors[0]);
}

#[test]
fn a_pattern_without_a_file_or_with_several_formats_is_refused() {
    let (_folder, root) = workspace(&[("a.jsonl", &row("a")), ("a.csv", "x\n")]);
    let shown = |reference: &str| {
        let error = resolve(&reference.parse().unwrap(), &root)
            .and_then(Dataset::open)
            .unwrap_err();
        let hint = error.hint().unwrap();
        format!("{error}\nhint: {hint}").replace(root.as_str(), "")
    };
    assert_snapshot!(shown("data/part-*.parquet"), @"
    dataset `data/part-*.parquet` not found
    hint: looked for `data/part-*.parquet`; there is `data/a.csv`, `data/a.jsonl`
    ");
    assert_snapshot!(shown("data/a.*"), @"
    `/data/a.*` stands for files of several formats
    hint: write the ending into the pattern, such as `*.jsonl`
    ");
}

#[test]
fn a_name_may_be_a_folder_that_datasets_saved() {
    let state = r#"{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}"#;
    let (_folder, root) = workspace(&[("gsm8k/state.json", state)]);
    std::fs::copy(
        crate::parquet::fixture("types.arrow"),
        root.join("data/gsm8k/data-00000-of-00001.arrow"),
    )
    .unwrap();
    for reference in ["gsm8k", "data/gsm8k", "data/gsm8k/"] {
        let path = resolve(&reference.parse().unwrap(), &root).unwrap();
        assert_eq!(Dataset::open(path).unwrap().validate().unwrap().rows, 2);
    }
    // A description may not name files elsewhere.
    let outside = r#"{"_data_files": [{"filename": "../../etc/passwd"}]}"#;
    std::fs::write(root.join("data/gsm8k/state.json"), outside).unwrap();
    let error = Dataset::open(root.join("data/gsm8k")).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("it names a file outside of the folder")
    );
}
