use insta::assert_snapshot;
use osmosis_core::config::DatasetColumns;
use osmosis_data::{Dataset, Format, Taking, validate};

use crate::parquet::fixture;
use crate::{error_of, file};

/// The bodies of a fixture's rows, whatever their columns.
fn bodies(name: &str) -> String {
    let dataset = Dataset::open(fixture(name))
        .unwrap()
        .with(Taking::WholeRows);
    let mut text = String::new();
    for (place, row) in dataset.rows().enumerate() {
        let row = row.unwrap();
        assert_eq!((row.index, row.line), (place as u64, place as u64 + 1));
        text.push_str(row.body.as_str());
        text.push('\n');
    }
    text
}

fn columns() -> DatasetColumns {
    let mut columns = DatasetColumns::default();
    columns.set("user_prompt", "question").unwrap();
    columns.set("ground_truth", "answer").unwrap();
    columns.set("metadata", "meta").unwrap();
    columns
}

#[test]
fn a_folder_that_datasets_saved_is_read_through_all_its_files() {
    assert_snapshot!(bodies("saved"), @r#"
    {"question":"What is 0 times 7?","answer":"0","id":0,"tags":[],"meta":{"level":0.0,"ok":true,"note":"é\n"}}
    {"question":"What is 1 times 7?","answer":"7","id":1,"tags":["math",null],"meta":{"level":0.5,"ok":false,"note":null}}
    {"question":"What is 2 times 7?","answer":"14","id":2,"tags":[],"meta":{"level":1.0,"ok":true,"note":"é\n"}}
    {"question":"What is 3 times 7?","answer":"21","id":3,"tags":["math",null],"meta":{"level":1.5,"ok":false,"note":"é\n"}}
    {"question":"What is 4 times 7?","answer":"28","id":4,"tags":[],"meta":{"level":2.0,"ok":true,"note":"é\n"}}
    "#);
    let dataset = Dataset::open(fixture("saved"))
        .unwrap()
        .with_columns(columns());
    let report = dataset.validate().unwrap();
    assert_eq!(
        (report.format, report.rows, report.error_count),
        (Format::Arrow, 5, 0)
    );
    assert_eq!(report.files.len(), 2);
    let last = dataset.rows().last().unwrap().unwrap();
    assert_eq!(last.prompt[0]["content"], "What is 4 times 7?");
    assert_eq!(last.label.as_deref(), Some("28"));
    assert_eq!(
        last.metadata.unwrap().as_str(),
        r#"{"level":2.0,"ok":true,"note":"é\n"}"#
    );
}

#[test]
fn of_a_folder_with_splits_one_must_be_named() {
    let error = Dataset::open(fixture("splits")).unwrap_err();
    let here = fixture("").to_string();
    let shown = format!("{error}\nhint: {}", error.hint().unwrap()).replace(&here, "");
    assert_snapshot!(shown, @"
    `splits` holds the splits `train`, `test`
    hint: name one of them: `splits/train`
    ");
    let test = Dataset::open(fixture("splits/test")).unwrap();
    assert_eq!(test.with_columns(columns()).validate().unwrap().rows, 1);
}

#[test]
fn every_type_becomes_what_it_is_in_json() {
    assert_snapshot!(bodies("types.arrow").replace(",\"", ",\n \""));
    let report = validate(fixture("types.arrow")).unwrap();
    assert_eq!((report.rows, report.error_count), (2, 0));
}

#[test]
fn what_json_has_no_word_for_is_named_with_its_column() {
    let binary = std::fs::read(fixture("binary.arrow")).unwrap();
    assert_snapshot!(error_of("binary.arrow", &binary), @"
    `binary.arrow`: column `image` holds binary data; column `kind` holds categories of a dictionary
      hint: write it as text, or leave it out
    ");
    let compressed = std::fs::read(fixture("compressed.arrow")).unwrap();
    assert_snapshot!(error_of("c.arrow", &compressed), @"`c.arrow` can't be read: the Arrow data can't be read: the record batches are compressed");
}

#[test]
fn a_cut_or_foreign_file_is_refused() {
    let whole = std::fs::read(fixture("types.arrow")).unwrap();
    // The end of a file is a copy of what stands before it, which is not read.
    let stream = std::fs::read(fixture("saved/data-00000-of-00002.arrow")).unwrap();
    for cut in [stream.len() - 1, stream.len() - 8, stream.len() / 2, 9] {
        let (_folder, path) = file("cut.arrow", &stream[..cut]);
        let dataset = Dataset::open(&path).unwrap().with(Taking::WholeRows);
        let error = dataset.validate().unwrap_err().to_string();
        assert!(error.contains("cut short"), "{cut}: {error}");
    }
    for foreign in [&b""[..], b"{}", b"PAR1 and more", &whole[..6]] {
        let error = error_of("foreign.arrow", foreign);
        assert!(error.contains("can't be read"), "{error}");
    }
}

/// A changed byte anywhere gives rows, bad rows or an error, and never more memory than the file needs.
#[test]
fn a_changed_byte_does_no_harm() {
    for name in ["types.arrow", "saved/data-00000-of-00002.arrow"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        let (_folder, path) = file("changed.arrow", &whole);
        for at in 0..whole.len() {
            for value in [0, 0xff, whole[at] ^ 0x80] {
                let mut changed = whole.clone();
                changed[at] = value;
                std::fs::write(&path, &changed).unwrap();
                let dataset = Dataset::open(&path).unwrap().with(Taking::WholeRows);
                let rows = dataset.rows().take(1000).count();
                assert!(
                    rows < 1000,
                    "{name}: byte {at} as {value} gives rows without end"
                );
            }
        }
    }
}
