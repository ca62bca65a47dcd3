//! Files that were made to hurt whoever reads them.

use std::io::Read;
use std::time::Instant;

use flate2::Compression as Level;
use flate2::write::GzEncoder;
use insta::assert_snapshot;
use osmosis_core::{JsonText, Redactor, RolloutId, RunName, Sample, SampleId};
use osmosis_data::conversation::Conversation;
use osmosis_data::export::{
    Export, ExportFormat, ExportRecord, RunFacts, SampleTalk, SftFilter, TalkExport, TalkFormat,
};
use osmosis_data::{Dataset, Taking};

use crate::compressed::zstd;
use crate::{error_of, file, problems};

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// A row of which this is a field of its metadata.
fn row(field: &str) -> String {
    format!("{{\"user_prompt\":\"p\",\"label\":\"l\",\"metadata\":{{\"a\":{field}}}}}\n")
}

#[test]
fn rows_that_are_nested_too_deeply_are_refused() {
    // The row and its metadata are two levels.
    assert_eq!(problems("d.jsonl", row(&nested(98)).as_bytes()), "");
    assert_snapshot!(problems("d.jsonl", row(&nested(99)).as_bytes()), @r"
    d.jsonl:1: the row is nested deeper than 100 levels
      hint: write what is deeper as JSON in a string
    ");
    assert_eq!(
        problems("d.jsonl", row(&nested(100_000)).as_bytes()),
        problems("d.jsonl", row(&nested(99)).as_bytes())
    );
    let text = format!("{{\"a\":{}}}", nested(200));
    let text = text.replace('"', "\\\"");
    let held = format!("{{\"user_prompt\":\"p\",\"label\":\"l\",\"metadata\":\"{text}\"}}\n");
    assert_snapshot!(problems("d.jsonl", held.as_bytes()), @r"
    d.jsonl:1: the JSON in `metadata` is nested deeper than 100 levels
      hint: write what is deeper as JSON in a string
    ");
    let cell = format!(
        "user_prompt,label,metadata\np,l,\"{{\"\"a\"\":{}}}\"\n",
        nested(200)
    );
    assert_snapshot!(problems("d.csv", cell.as_bytes()), @r"
    d.csv:2: the JSON in `metadata` is nested deeper than 100 levels
      hint: write what is deeper as JSON in a string
    ");
}

#[test]
fn rows_with_a_field_twice_are_refused() {
    let rows = [
        r#"{"user_prompt":"p","ground_truth":"1","ground_truth":"2"}"#,
        r#"{"user_prompt":"p","label":"l","metadata":{"a":{"x":1,"x":2}}}"#,
        r#"{"user_prompt":"p","label":"l","metadata":"{\"a\":1,\"a\":2}"}"#,
    ]
    .join("\n");
    assert_snapshot!(problems("d.jsonl", rows.as_bytes()), @r"
    d.jsonl:1: the row has the field `ground_truth` twice
      hint: keep one of the two
    d.jsonl:2: the row has the field `x` twice
      hint: keep one of the two
    d.jsonl:3: the JSON in `metadata` has the field `a` twice
      hint: keep one of the two
    ");
    let cell = "user_prompt,label,metadata\np,l,\"{\"\"a\"\":1,\"\"a\"\":2}\"\n";
    assert_snapshot!(problems("d.csv", cell.as_bytes()), @r"
    d.csv:2: the JSON in `metadata` has the field `a` twice
      hint: keep one of the two
    ");
}

#[test]
fn rows_that_no_program_could_read_are_refused() {
    let rows = format!("{}{}", row("1e999"), row(r#""\ud800""#));
    let problems = problems("d.jsonl", rows.as_bytes());
    assert!(
        problems.contains("d.jsonl:1: not JSON: number out of range"),
        "{problems}"
    );
    assert!(problems.contains("d.jsonl:2: not JSON: "), "{problems}");
}

#[test]
fn whole_rows_are_held_to_the_same_depth() {
    let (_folder, path) = file("d.jsonl", format!("{{\"x\":{}}}\n", nested(300)).as_bytes());
    let dataset = Dataset::open(&path).unwrap().with(Taking::WholeRows);
    assert_eq!(dataset.validate().unwrap().error_count, 1);
}

/// A line, and 1,280 MiB of line ends in a megabyte.
fn bomb(first: &[u8]) -> Vec<u8> {
    let compressed = |mut text: &mut dyn Read| {
        let mut encoder = GzEncoder::new(Vec::new(), Level::default());
        std::io::copy(&mut text, &mut encoder).unwrap();
        encoder.finish().unwrap()
    };
    let mut bomb = compressed(&mut &*first);
    let blank = compressed(&mut std::io::repeat(b'\n').take(20 << 20));
    for _ in 0..64 {
        bomb.extend_from_slice(&blank);
    }
    bomb
}

#[test]
fn a_file_of_blank_lines_is_given_up_early() {
    let jsonl = bomb(b"{\"user_prompt\":\"p\",\"label\":\"l\"}\n");
    let began = Instant::now();
    assert_snapshot!(error_of("d.jsonl.gz", &jsonl), @"`d.jsonl.gz` can't be read: more than 33554432 bytes of blank lines and spaces in a row");
    let took = began.elapsed();
    let csv = error_of("d.csv.gz", &bomb(b"user_prompt,label\n"));
    assert!(csv.contains("bytes of blank lines"), "{csv}");
    let spaces = zstd(&b"        \n".repeat(5 << 20));
    let spaces = error_of("d.jsonl.zst", &spaces);
    assert!(spaces.contains("bytes of blank lines"), "{spaces}");
    // Reading all of it takes 40 times as long as what is read of it; generous for a busy machine.
    assert!(took.as_secs() < 30, "{took:?}");
}

#[test]
fn blank_lines_between_rows_are_fine_however_many_they_are_together() {
    let row = "{\"user_prompt\":\"p\",\"label\":\"l\"}\n";
    let text = [row, &"\n".repeat(20 << 20)].concat().repeat(2);
    assert_eq!(problems("d.jsonl", text.as_bytes()), "");
}

#[test]
fn too_many_cells_are_called_that() {
    let many = format!("user_prompt,label\n{}\n", ",".repeat(100_000));
    assert_snapshot!(problems("d.csv", many.as_bytes()), @"d.csv:2: the row has more than 100000 cells");
    let header = format!("{}\np,l\n", ",".repeat(100_000));
    assert_snapshot!(error_of("d.csv", header.as_bytes()), @"`d.csv`: the header has more than 100000 cells");
}

/// A rollout as older versions recorded it, with everything as deep as they let pass.
fn deep_record() -> (ExportRecord, Vec<SampleTalk>) {
    let deep = JsonText::parse(format!("{{\"a\":{}}}", nested(5000))).unwrap();
    let mut record = ExportRecord::new(
        RunName::new("t").unwrap(),
        RolloutId::of(0, 0),
        0,
        0,
        deep.clone(),
    );
    record.metadata = Some(deep.clone());
    record.metrics = Some(deep.clone());
    record.samples = vec![Sample {
        id: SampleId::main(),
        messages: JsonText::parse(nested(5000)).unwrap(),
        reward: None,
        remove_sample: false,
        metrics: Some(deep.clone()),
        extra_fields: Some(deep),
    }];
    let talk = SampleTalk {
        id: SampleId::main(),
        reward: Some(1.0),
        removed: false,
        conversations: vec![Conversation::default()],
        main: 0,
    };
    (record, vec![talk])
}

#[test]
fn exports_write_whatever_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(folder.path()).unwrap();
    let (record, talks) = deep_record();
    let facts = RunFacts {
        name: record.run_name.clone(),
        rollout: "r".to_owned(),
        model: "m".to_owned(),
        dataset: "d".to_owned(),
        n: 1,
        finished: true,
        created_at_ms: 0,
        finished_at_ms: None,
        version: "0".to_owned(),
    };
    for format in [
        TalkFormat::Messages,
        TalkFormat::Sft,
        TalkFormat::Atif,
        TalkFormat::Inspect,
    ] {
        let path = folder.join(format.suffix());
        let filter = SftFilter::default();
        let redactor = Redactor::new(["hunter2-hunter2".to_owned()]);
        let mut export = TalkExport::create(format, &path, filter, &facts, redactor).unwrap();
        export.write(&facts, &record, &talks).unwrap();
        export.finish(&facts).unwrap();
    }
    for format in ExportFormat::ALL {
        let path = folder.join(format.as_str());
        let mut export = Export::create(format, &path, Redactor::default()).unwrap();
        export.write(&record).unwrap();
        export.finish().unwrap();
    }
    let messages = std::fs::read_to_string(folder.join("messages.jsonl")).unwrap();
    let line: serde_json::Value = serde_json::from_str(&messages).unwrap();
    let metadata = line["metadata"].as_str().unwrap();
    assert_eq!(metadata, record.metadata.unwrap().as_str());
}
