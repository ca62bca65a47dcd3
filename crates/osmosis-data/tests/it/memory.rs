//! Files many times larger than the memory it takes to read or write them. Each measurement is a
//! process of its own: this binary, asked for the one test that is ignored otherwise.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::process::Command;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use flate2::write::GzEncoder;
use osmosis_core::{JsonText, Redactor, RolloutId, RunName, Sample, SampleId};
use osmosis_data::export::{Export, ExportFormat, ExportRecord};
use osmosis_data::validate;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::TempDir;

/// What is read or written.
const FILE_BYTES: usize = 100 << 20;

/// What it may take beyond what the process had before.
const BOUND_KIB: u64 = 40 << 10;

const ROW_BYTES: usize = 10_000;
const ROWS: usize = FILE_BYTES / ROW_BYTES;

/// Text of a row that no compression makes much smaller than half.
fn text(row: usize) -> String {
    let mut state = row as u64 + 1;
    let mut text = String::with_capacity(ROW_BYTES + 16);
    while text.len() < ROW_BYTES {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        write!(text, "{:016x}", state.rotate_left(29) ^ state).unwrap();
    }
    text
}

fn folder() -> (TempDir, Utf8PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    (folder, path)
}

/// Does `job` on `path` in a process of its own, and returns by how much its memory grew.
fn growth_kib(job: &str, path: &Utf8Path) -> u64 {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::measured", "--ignored", "--nocapture"])
        .env("MEASURED_JOB", job)
        .env("MEASURED_PATH", path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let (_, rest) = text.split_once("growth_kib=").expect("it measured");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

fn check(job: &str, path: &Utf8Path) {
    let growth = growth_kib(job, path);
    assert!(growth < BOUND_KIB, "{job} {path} took {growth} KiB");
}

#[test]
#[ignore = "the other tests run it in a process of its own"]
fn measured() {
    let Ok(job) = std::env::var("MEASURED_JOB") else {
        return;
    };
    let path = Utf8PathBuf::from(std::env::var("MEASURED_PATH").unwrap());
    let before = memory_kib("VmRSS:");
    if let Some(format) = ExportFormat::parse(&job) {
        export(format, &path);
    } else {
        let report = validate(&path).unwrap();
        report.check().unwrap();
        assert_eq!(report.rows, ROWS as u64);
    }
    println!("growth_kib={}", memory_kib("VmHWM:").saturating_sub(before));
}

fn memory_kib(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn export(format: ExportFormat, path: &Utf8Path) {
    let mut export = Export::create(format, path, Redactor::default()).unwrap();
    let row = JsonText::parse(r#"{"user_prompt":"x","label":"1"}"#).unwrap();
    for index in 0..ROWS {
        let index = index as u64;
        let run = RunName::new("run").unwrap();
        let mut record = ExportRecord::new(run, RolloutId::of(index, 0), index, 0, row.clone());
        record.samples.push(Sample {
            id: SampleId::new("main").unwrap(),
            messages: JsonText::of(&[text(record.row_index.try_into().unwrap())]).unwrap(),
            reward: None,
            remove_sample: false,
            metrics: None,
            extra_fields: None,
        });
        export.write(&record).unwrap();
    }
    assert_eq!(export.finish().unwrap(), ROWS as u64);
}

#[test]
fn lines_take_the_memory_of_one_line() {
    let (_folder, folder) = folder();
    let plain = folder.join("d.jsonl");
    let packed = folder.join("d.jsonl.gz");
    let mut file = BufWriter::new(File::create(&plain).unwrap());
    let gzip = GzEncoder::new(File::create(&packed).unwrap(), flate2::Compression::fast());
    let mut gzip = BufWriter::new(gzip);
    for row in 0..ROWS {
        let line = format!("{{\"user_prompt\":\"{}\",\"label\":\"1\"}}\n", text(row));
        file.write_all(line.as_bytes()).unwrap();
        gzip.write_all(line.as_bytes()).unwrap();
    }
    file.into_inner().unwrap();
    gzip.into_inner().unwrap().finish().unwrap();
    check("read", &plain);
    check("read", &packed);
}

#[test]
fn records_of_csv_take_the_memory_of_one_record() {
    let (_folder, folder) = folder();
    let path = folder.join("d.csv.zst");
    let file = File::create(&path).unwrap();
    let mut file = zstd::Encoder::new(file, 1).unwrap();
    file.write_all(b"user_prompt,label\n").unwrap();
    for row in 0..ROWS {
        file.write_all(format!("\"{}\",1\n", text(row)).as_bytes())
            .unwrap();
    }
    file.finish().unwrap();
    check("read", &path);
}

#[test]
fn a_row_group_of_the_whole_file_takes_the_memory_of_a_few_rows() {
    let (_folder, folder) = folder();
    let path = folder.join("d.parquet");
    let schema = "message m { required binary user_prompt (UTF8); required binary label (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .build();
    let file = File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    for row in 0..ROWS {
        let value = ByteArray::from(text(row).into_bytes());
        column
            .typed::<ByteArrayType>()
            .write_batch(&[value], None, None)
            .unwrap();
    }
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values = vec![ByteArray::from("1"); ROWS];
    column
        .typed::<ByteArrayType>()
        .write_batch(&values, None, None)
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    assert!(path.metadata().unwrap().len() > 90 << 20);
    check("read", &path);
}

#[test]
fn an_export_takes_the_memory_of_a_part_of_it() {
    let (_folder, folder) = folder();
    check("jsonl", &folder.join("out.jsonl"));
    check("parquet", &folder.join("out.parquet"));
    for name in ["out.jsonl", "out.parquet"] {
        assert!(folder.join(name).metadata().unwrap().len() > 45 << 20);
    }
}
