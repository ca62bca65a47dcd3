use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use insta::assert_snapshot;
use osmosis_data::{Dataset, Format, RowMode, validate};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::TempDir;

use crate::{error_of, file, problems};

/// A file that another program wrote.
pub(crate) fn fixture(name: &str) -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

/// The bodies of a fixture's rows.
fn bodies(name: &str) -> String {
    let mut text = String::new();
    for (place, row) in Dataset::open(fixture(name)).unwrap().rows().enumerate() {
        let row = row.unwrap();
        assert_eq!((row.index, row.line), (place as u64, place as u64 + 1));
        text.push_str(row.body.as_str());
        text.push('\n');
    }
    text
}

/// The values of one column.
pub(crate) enum Column<'a> {
    Text(Vec<&'a [u8]>),
    /// With definition levels.
    Optional(Vec<&'a [u8]>, Vec<i16>),
    Long(Vec<i64>),
    Int(Vec<i32>),
}

/// A file of one row group.
pub(crate) fn write(schema: &str, columns: &[Column<'_>]) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
    let mut bytes = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for column in columns {
        let mut out = group.next_column().unwrap().unwrap();
        let texts = |texts: &[&[u8]]| -> Vec<ByteArray> {
            texts
                .iter()
                .map(|text| ByteArray::from(text.to_vec()))
                .collect()
        };
        match column {
            Column::Text(values) => {
                let values = texts(values);
                out.typed::<ByteArrayType>()
                    .write_batch(&values, None, None)
                    .unwrap();
            }
            Column::Optional(values, levels) => {
                let values = texts(values);
                out.typed::<ByteArrayType>()
                    .write_batch(&values, Some(levels), None)
                    .unwrap();
            }
            Column::Long(values) => {
                out.typed::<Int64Type>()
                    .write_batch(values, None, None)
                    .unwrap();
            }
            Column::Int(values) => {
                out.typed::<Int32Type>()
                    .write_batch(values, None, None)
                    .unwrap();
            }
        }
        out.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn types_of_every_kind_become_json() {
    assert_snapshot!(bodies("pyarrow.parquet"));
}

#[test]
fn a_frame_of_pandas_is_read() {
    assert_snapshot!(bodies("pandas.parquet"), @r#"
    {"system_prompt":"Be brief.","user_prompt":"6 * 7?","label":"42","metadata":"{\"level\": 1}","when":"2024-01-01T00:00:00.123456789","__index_level_0__":7}
    {"system_prompt":null,"user_prompt":"2 + 2?","label":"4","metadata":"{}","when":"1999-12-31T00:00:00","__index_level_0__":8}
    {"system_prompt":"","user_prompt":"1 + 1?","label":"2","metadata":null,"when":null,"__index_level_0__":9}
    "#);
    let report = validate(fixture("pandas.parquet")).unwrap();
    report.check().unwrap();
    assert_eq!((report.format, report.rows), (Format::Parquet, 3));
    assert_eq!(report.columns["metadata"], 3);
}

#[test]
fn a_table_of_duckdb_is_read() {
    assert_snapshot!(bodies("duckdb.parquet"), @r#"
    {"user_prompt":"row 0","ground_truth":"0.0","extra":{"level":0,"tags":["0",null]},"counts":{"k0":0},"text_id":"550e8400-e29b-41d4-a716-446655440000","id":"550e8400-e29b-41d4-a716-446655440000","at":"2024-01-01T00:00:00Z","huge":1.7014118346046923e+38,"word":"abc","document":"{\"a\": 1}"}
    {"user_prompt":"row 1","ground_truth":"1.5","extra":{"level":1,"tags":["1",null]},"counts":{"k1":1},"text_id":"550e8400-e29b-41d4-a716-446655440001","id":"550e8400-e29b-41d4-a716-446655440001","at":"2024-01-01T00:00:00Z","huge":1.7014118346046923e+38,"word":"abc","document":"{\"a\": 1}"}
    {"user_prompt":"row 2","ground_truth":"3.0","extra":{"level":2,"tags":["2",null]},"counts":{"k2":2},"text_id":"550e8400-e29b-41d4-a716-446655440002","id":"550e8400-e29b-41d4-a716-446655440002","at":"2024-01-01T00:00:00Z","huge":1.7014118346046923e+38,"word":"abc","document":"{\"a\": 1}"}
    "#);
}

#[test]
fn pages_without_values_end_nothing() {
    assert_snapshot!(bodies("empty_pages.parquet"), @r#"
    {"user_prompt":"x","label":"1","list":[1.5]}
    {"user_prompt":"y","label":"2","list":[]}
    "#);
}

#[test]
fn metadata_is_a_struct_or_a_text() {
    let rows: Vec<_> = Dataset::open(fixture("pyarrow.parquet"))
        .unwrap()
        .rows()
        .collect();
    let metadata = |place: usize| rows[place].as_ref().unwrap().metadata.clone();
    assert_eq!(metadata(0).unwrap().as_str(), r#"{"a":1,"b":["x",null]}"#);
    assert_eq!(metadata(2), None);
    let rows: Vec<_> = Dataset::open(fixture("pandas.parquet"))
        .unwrap()
        .rows()
        .collect();
    let first = rows[0].as_ref().unwrap();
    assert_eq!(first.metadata.as_ref().unwrap().as_str(), r#"{"level": 1}"#);
    let last = rows[2].as_ref().unwrap();
    assert_eq!((last.mode, &last.metadata), (RowMode::Metadata, &None));
}

#[test]
fn the_digest_is_that_of_the_files_bytes() {
    let path = fixture("duckdb.parquet");
    let bytes = std::fs::read(&path).unwrap();
    // The same bytes as lines of text have the same digest.
    let (_folder, copy) = file("copy.jsonl", &bytes);
    let report = validate(&path).unwrap();
    assert_eq!(report.sha256, validate(&copy).unwrap().sha256);
    assert_eq!(report.bytes, bytes.len() as u64);
}

#[test]
fn binary_data_is_refused_with_its_column() {
    let bytes = std::fs::read(fixture("binary.parquet")).unwrap();
    assert_snapshot!(error_of("d.parquet", &bytes), @r"
    `d.parquet`: column `picture.bytes` holds binary data
      hint: write it as text, or leave it out
    ");
}

#[test]
fn what_is_wrong_with_the_columns_is_told_once() {
    let bytes = write(
        "message m { required int64 question; required int64 user_prompt; required int64 user_prompt; required int32 label (DATE); }",
        &[
            Column::Long(vec![1, 2]),
            Column::Long(vec![1, 2]),
            Column::Long(vec![1, 2]),
            Column::Int(vec![1, 2]),
        ],
    );
    assert_snapshot!(error_of("d.parquet", &bytes), @r"
    `d.parquet`: `user_prompt` must be a string, found a number; two columns are called `user_prompt`
      hint: rename one of them, or leave it out
    ");
    let bytes = write(
        "message m { required binary question (UTF8); required int64 label (TIME_MICROS); }",
        &[Column::Text(vec![b"x"]), Column::Long(vec![1])],
    );
    assert_snapshot!(error_of("d.parquet", &bytes), @r#"
    `d.parquet`: missing column `user_prompt`
      hint: the file has `question`, `label`; name the column in the config: `[dataset.columns]` with `user_prompt = "question"`; both prompt and label are optional only in rows with `metadata`
    "#);
}

#[test]
fn every_bad_row_is_reported_with_its_number() {
    let bytes = write(
        "message m { optional binary user_prompt (UTF8); required binary label (UTF8); required int64 at (TIMESTAMP_MILLIS); }",
        &[
            Column::Optional(vec![b"a", b"b", b"\xff", b"d"], vec![1, 0, 1, 1, 1]),
            Column::Text(vec![b"1"; 5]),
            Column::Long(vec![0, 0, 0, 0, i64::MAX]),
        ],
    );
    assert_snapshot!(problems("d.parquet", &bytes), @r"
    d.parquet:2: `user_prompt` must not be empty
      hint: write a prompt
    d.parquet:4: `user_prompt` is not UTF-8
    d.parquet:5: `at` is no date or time of the years 1 to 9999
    ");
}

#[test]
fn a_file_without_rows_is_empty() {
    let bytes = write(
        "message m { required binary user_prompt (UTF8); required binary label (UTF8); }",
        &[Column::Text(vec![]), Column::Text(vec![])],
    );
    assert_snapshot!(error_of("d.parquet", &bytes), @r"
    `d.parquet` has no rows
      hint: write a row into it
    ");
}

#[test]
fn rows_can_be_read_more_than_once_and_from_another_thread() {
    let dataset = Dataset::open(fixture("duckdb.parquet")).unwrap();
    assert_eq!(dataset.rows().count(), 3);
    let rows = dataset.rows();
    assert_eq!(std::thread::spawn(move || rows.count()).join().unwrap(), 3);
}

#[test]
fn a_file_that_vanishes_is_an_error_in_place_of_its_rows() {
    let folder = TempDir::new().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().join("d.parquet")).unwrap();
    std::fs::copy(fixture("duckdb.parquet"), &path).unwrap();
    let dataset = Dataset::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let rows: Vec<_> = dataset.rows().collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].as_ref().unwrap_err().problem.code(), "unreadable");
}
