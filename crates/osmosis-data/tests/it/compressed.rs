use std::io::Write as _;

use flate2::Compression as Level;
use flate2::write::GzEncoder;
use insta::assert_snapshot;
use osmosis_data::{Compression, Dataset, Format, validate};

use crate::{error_of, file, problems};

const JSONL: &[u8] =
    b"{\"user_prompt\":\"a\",\"label\":\"1\"}\n\n{\"user_prompt\":\"b\",\"label\":\"2\"}\n";
const CSV: &[u8] = b"user_prompt,label\na,1\n\nb,2\n";

pub(crate) fn gzip(contents: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::default());
    encoder.write_all(contents).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(contents: &[u8]) -> Vec<u8> {
    zstd::encode_all(contents, 3).unwrap()
}

#[test]
fn a_compressed_file_has_the_rows_of_the_plain_one() {
    for (name, contents) in [
        ("d.jsonl.gz", gzip(JSONL)),
        ("d.ndjson.GZ", gzip(JSONL)),
        ("d.jsonl.zst", zstd(JSONL)),
        ("d.csv.gz", gzip(CSV)),
        ("d.csv.zst", zstd(CSV)),
    ] {
        let (_folder, path) = file(name, &contents);
        let rows: Vec<_> = Dataset::open(&path)
            .unwrap()
            .rows()
            .map(Result::unwrap)
            .collect();
        assert_eq!(rows.len(), 2, "{name}");
        assert_eq!(rows[1].label.as_deref(), Some("2"));
        assert_eq!(rows[1].line, if name.contains("csv") { 4 } else { 3 });
    }
}

#[test]
fn files_that_were_put_together_are_read_to_the_end() {
    for (name, contents) in [
        ("d.jsonl.gz", [gzip(JSONL), gzip(b""), gzip(JSONL)].concat()),
        (
            "d.jsonl.zst",
            [zstd(JSONL), zstd(b""), zstd(JSONL)].concat(),
        ),
    ] {
        let (_folder, path) = file(name, &contents);
        assert_eq!(validate(&path).unwrap().rows, 4, "{name}");
    }
}

#[test]
fn the_report_is_of_the_file_as_it_is_on_disk() {
    let contents = gzip(JSONL);
    let (_folder, path) = file("d.jsonl.gz", &contents);
    let report = validate(&path).unwrap();
    assert_eq!(report.bytes, contents.len() as u64);
    assert_eq!(report.format, Format::Jsonl);
    assert_eq!(report.compression, Some(Compression::Gzip));
    let (_folder, copy) = file("copy.jsonl", &contents);
    assert_eq!(report.sha256, validate(&copy).unwrap().sha256);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        (&json["format"], &json["compression"]),
        (&"jsonl".into(), &"gzip".into())
    );
}

#[test]
fn bad_rows_have_the_lines_of_the_plain_file() {
    assert_snapshot!(problems("d.jsonl.gz", &gzip(b"\n7\n")), @r#"
    d.jsonl.gz:2:1: a row must be a JSON object, found a number
      hint: each line is one JSON object, such as {"user_prompt": "...", "ground_truth": "..."}
    "#);
}

#[test]
fn a_file_that_is_cut_short_is_refused_wherever_it_was_cut() {
    for (name, contents) in [
        ("d.jsonl.gz", gzip(JSONL)),
        ("d.jsonl.zst", zstd(JSONL)),
        ("d.csv.gz", gzip(CSV)),
        ("d.csv.zst", zstd(CSV)),
    ] {
        for end in 1..contents.len() {
            let (_folder, path) = file(name, &contents[..end]);
            let error = validate(&path).expect_err(name);
            let shown = error.to_string();
            assert!(shown.contains("data is"), "{name} cut at {end}: {shown}");
            assert!(shown.contains(path.as_str()), "{shown}");
        }
    }
    let cut = gzip(JSONL);
    assert_snapshot!(error_of("d.jsonl.gz", &cut[..cut.len() - 9]), @"`d.jsonl.gz` can't be read: the gzip data is cut short");
    let cut = zstd(JSONL);
    assert_snapshot!(error_of("d.jsonl.zst", &cut[..cut.len() - 9]), @"`d.jsonl.zst` can't be read: the zstd data is cut short");
}

#[test]
fn what_is_not_compressed_as_its_name_says_is_refused() {
    assert_snapshot!(error_of("d.jsonl.gz", JSONL), @"`d.jsonl.gz` can't be read: the gzip data is damaged: invalid gzip header");
    assert_snapshot!(error_of("d.jsonl.zst", JSONL), @"`d.jsonl.zst` can't be read: the zstd data is damaged: Unknown frame descriptor");
    assert_snapshot!(error_of("d.jsonl.gz", &[gzip(JSONL), b"not gzip, and long enough".to_vec()].concat()), @"`d.jsonl.gz` can't be read: the gzip data is damaged: invalid gzip header");
}

#[test]
fn an_empty_file_has_no_rows() {
    for (name, contents) in [("d.jsonl.gz", gzip(b"")), ("d.csv.zst", zstd(b""))] {
        let shown = error_of(name, &contents);
        assert!(shown.contains("has no rows"), "{name}: {shown}");
    }
}
