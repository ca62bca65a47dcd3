use std::fs;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use camino::{Utf8Path, Utf8PathBuf};
use insta::assert_snapshot;
use osmosis_core::{
    Durations, ErrorCategory, Failure, JsonText, Outcome, OutcomeKind, Phase, Redactor, Reward,
    RolloutId, RunName, Sample, SampleId,
};
use osmosis_data::export::{
    Export, ExportError, ExportFormat, ExportRecord, JsonlExport, ParquetExport, SCHEMA_VERSION,
};
use osmosis_data::{DataErrorKind, Dataset};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::printer::print_schema;
use tempfile::TempDir;

const KEY: &str = "osm-0123456789abcdefghijklmnopqrstuv";

fn json(text: &str) -> JsonText {
    JsonText::parse(text).unwrap()
}

fn sample(id: &str) -> Sample {
    Sample {
        id: SampleId::new(id).unwrap(),
        messages: json(r#"[{"role": "user", "content": "6 * 7?"}]"#),
        reward: None,
        remove_sample: false,
        metrics: None,
        extra_fields: None,
    }
}

fn bare() -> ExportRecord {
    ExportRecord::new(
        RunName::new("try-1").unwrap(),
        RolloutId::of(3, 1),
        3,
        1,
        json(r#"{"user_prompt": "6 * 7?", "label": 1.50}"#),
    )
}

/// A record with something in every field.
fn full() -> ExportRecord {
    let outcome = Outcome::Scored {
        reward: Reward::new(0.5).unwrap(),
        passed: true,
    };
    let mut record = bare().ended(&outcome);
    record.attempts = 2;
    record.label = Some("1.50".to_owned());
    record.metadata = Some(json(r#"{"level": 1}"#));
    record.metrics = Some(json(r#"{"turns": 2}"#));
    record.samples = vec![
        Sample {
            reward: Some(Reward::new(0.5).unwrap()),
            metrics: Some(json(r#"{"n": 1}"#)),
            extra_fields: Some(json("{\n  \"x\": [1, 2]\n}")),
            ..sample("main")
        },
        Sample {
            remove_sample: true,
            ..sample("other")
        },
    ];
    record.model_calls = 3;
    record.prompt_tokens = 100;
    record.completion_tokens = 20;
    record.durations = Durations {
        queue: 1.0,
        agent: 20.5,
        model: 10.25,
        grade: 3.0,
    };
    record.started_at_ms = Some(1_704_067_200_120);
    record.finished_at_ms = Some(1_704_067_201_000);
    record
}

/// One that failed, without samples.
fn failed(message: &str) -> ExportRecord {
    let failure = Failure::new(ErrorCategory::AgentError, "ValueError", message);
    bare().ended(&Outcome::AgentFailed { failure })
}

fn folder() -> (TempDir, Utf8PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    (folder, path)
}

/// A place that somebody else can look into.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(buffer)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn jsonl(records: &[ExportRecord], redactor: Redactor) -> String {
    let out = Shared::default();
    let mut export = JsonlExport::to(out.clone(), redactor);
    for record in records {
        export.write(record).unwrap();
    }
    assert_eq!(export.finish().unwrap(), records.len() as u64);
    let bytes = out.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// The rows of a parquet file as the library's own reader of rows sees them.
fn parquet_rows(path: &Utf8Path) -> Vec<String> {
    let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().to_string()).collect()
}

fn parquet(records: &[ExportRecord], redactor: Redactor) -> (TempDir, Utf8PathBuf) {
    let (guard, folder) = folder();
    let path = folder.join("out.parquet");
    let mut export = ParquetExport::create(&path, redactor).unwrap();
    for record in records {
        export.write(record).unwrap();
    }
    assert_eq!(export.finish().unwrap(), records.len() as u64);
    (guard, path)
}

#[test]
fn jsonl_is_one_object_on_each_line() {
    let text = jsonl(&[full(), bare()], Redactor::default());
    assert_eq!(text.lines().count(), 2);
    assert_snapshot!(text, @r#"
    {"schema_version":1,"run_name":"try-1","rollout_id":"r3-1","row_index":3,"run_index":1,"outcome":"scored","reward":0.5,"passed":true,"error":null,"attempts":2,"row":{"user_prompt": "6 * 7?", "label": 1.50},"label":"1.50","metadata":{"level": 1},"metrics":{"turns": 2},"samples":[{"id":"main","reward":0.5,"remove_sample":false,"messages":[{"role": "user", "content": "6 * 7?"}],"metrics":{"n": 1},"extra_fields":{   "x": [1, 2] }},{"id":"other","reward":null,"remove_sample":true,"messages":[{"role": "user", "content": "6 * 7?"}],"metrics":null,"extra_fields":null}],"model_calls":3,"prompt_tokens":100,"completion_tokens":20,"durations":{"queue_ms":1.0,"agent_ms":20.5,"model_ms":10.25,"grade_ms":3.0},"started_at":"2024-01-01T00:00:00.120Z","finished_at":"2024-01-01T00:00:01.000Z"}
    {"schema_version":1,"run_name":"try-1","rollout_id":"r3-1","row_index":3,"run_index":1,"outcome":null,"reward":null,"passed":false,"error":null,"attempts":0,"row":{"user_prompt": "6 * 7?", "label": 1.50},"label":null,"metadata":null,"metrics":null,"samples":[],"model_calls":0,"prompt_tokens":0,"completion_tokens":0,"durations":{"queue_ms":0.0,"agent_ms":0.0,"model_ms":0.0,"grade_ms":0.0},"started_at":null,"finished_at":null}
    "#);
}

#[test]
fn parquet_holds_the_same_in_columns() {
    let (_guard, path) = parquet(&[full(), bare(), failed("no")], Redactor::default());
    assert_snapshot!(parquet_rows(&path).join("\n"), @r#"
    {schema_version: 1, run_name: "try-1", rollout_id: "r3-1", row_index: 3, run_index: 1, outcome: "scored", reward: 0.5, passed: true, error: null, attempts: 2, row: "{"user_prompt": "6 * 7?", "label": 1.50}", label: "1.50", metadata: "{"level": 1}", metrics: "{"turns": 2}", samples: [{id: "main", reward: 0.5, remove_sample: false, messages: "[{"role": "user", "content": "6 * 7?"}]", metrics: "{"n": 1}", extra_fields: "{   "x": [1, 2] }"}, {id: "other", reward: null, remove_sample: true, messages: "[{"role": "user", "content": "6 * 7?"}]", metrics: null, extra_fields: null}], model_calls: 3, prompt_tokens: 100, completion_tokens: 20, durations: {queue_ms: 1.0, agent_ms: 20.5, model_ms: 10.25, grade_ms: 3.0}, started_at: "2024-01-01T00:00:00.120Z", finished_at: "2024-01-01T00:00:01.000Z"}
    {schema_version: 1, run_name: "try-1", rollout_id: "r3-1", row_index: 3, run_index: 1, outcome: null, reward: null, passed: false, error: null, attempts: 0, row: "{"user_prompt": "6 * 7?", "label": 1.50}", label: null, metadata: null, metrics: null, samples: [], model_calls: 0, prompt_tokens: 0, completion_tokens: 0, durations: {queue_ms: 0E0, agent_ms: 0E0, model_ms: 0E0, grade_ms: 0E0}, started_at: null, finished_at: null}
    {schema_version: 1, run_name: "try-1", rollout_id: "r3-1", row_index: 3, run_index: 1, outcome: "agent_failed", reward: null, passed: false, error: {kind: "ValueError", message: "no"}, attempts: 0, row: "{"user_prompt": "6 * 7?", "label": 1.50}", label: null, metadata: null, metrics: null, samples: [], model_calls: 0, prompt_tokens: 0, completion_tokens: 0, durations: {queue_ms: 0E0, agent_ms: 0E0, model_ms: 0E0, grade_ms: 0E0}, started_at: null, finished_at: null}
    "#);
}

#[test]
fn the_schema_of_parquet_is_the_documented_one() {
    let (_guard, path) = parquet(&[], Redactor::default());
    let reader = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
    let mut schema = Vec::new();
    print_schema(&mut schema, reader.metadata().file_metadata().schema());
    let schema = String::from_utf8(schema).unwrap();
    assert_snapshot!(schema);
    // Each column is described.
    let docs = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/export.md");
    let docs = fs::read_to_string(docs).unwrap();
    for field in reader.metadata().file_metadata().schema().get_fields() {
        let name = format!("`{}`", field.name());
        assert!(docs.contains(&name), "docs/export.md lacks {name}");
    }
    assert!(docs.contains(&format!("now {SCHEMA_VERSION}")));
}

#[test]
fn both_formats_have_the_same_fields() {
    let line: serde_json::Value =
        serde_json::from_str(&jsonl(&[full()], Redactor::default())).unwrap();
    let names: Vec<&String> = line.as_object().unwrap().keys().collect();
    let (_guard, path) = parquet(&[full()], Redactor::default());
    let reader = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
    let fields = reader.metadata().file_metadata().schema().get_fields();
    let columns: Vec<&str> = fields.iter().map(|field| field.name()).collect();
    assert_eq!(names, columns);
}

#[test]
fn many_records_come_back_in_order() {
    let mut records = Vec::new();
    for index in 0..3000_u64 {
        let mut record = full();
        record.row_index = index;
        // Enough for several row groups.
        record.row = json(&format!(r#"{{"user_prompt": "{}"}}"#, "x".repeat(10_000)));
        record.samples = (0..index % 4).map(|n| sample(&format!("s{n}"))).collect();
        records.push(record);
    }
    let (_guard, path) = parquet(&records, Redactor::default());
    let reader = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
    assert!(reader.num_row_groups() > 2);
    let rows = parquet_rows(&path);
    assert_eq!(rows.len(), records.len());
    for (index, row) in rows.iter().enumerate() {
        assert!(row.contains(&format!("row_index: {index},")));
        assert_eq!(row.matches("remove_sample").count(), index % 4);
    }
}

#[test]
fn an_export_is_read_by_our_own_reader_too() {
    // It is no dataset, but every line of it is a row like any other: it has `metadata`.
    let (_guard, path) = parquet(&[full()], Redactor::default());
    let row = Dataset::open(&path)
        .unwrap()
        .rows()
        .next()
        .unwrap()
        .unwrap();
    let body: serde_json::Value = row.body.read().unwrap();
    assert_eq!(body["samples"][1]["id"], "other");
    assert_eq!(body["samples"][1]["reward"], serde_json::Value::Null);
    assert_eq!(body["durations"]["agent_ms"], 20.5);
    assert_eq!(body["error"], serde_json::Value::Null);
    assert_eq!(body["label"], "1.50");
}

#[test]
fn no_secret_and_no_key_gets_out() {
    let secret = "p\"ss\nword";
    let spelled = "p\\\"ss\\nword";
    let mut record = failed(&format!("{secret} and {KEY}"));
    record.run_name = RunName::new("hunter2222").unwrap();
    record.row = json(&format!(r#"{{"user_prompt": "{spelled}"}}"#));
    record.label = Some(format!("a {secret}"));
    record.metadata = Some(json(&format!(
        r#"{{"{spelled}": "{KEY}", "pin": 12345678}}"#
    )));
    record.metrics = Some(json(r#"{"hunter2222": 1}"#));
    record.error = Some(ExportError {
        kind: "hunter2222".to_owned(),
        message: secret.to_owned(),
    });
    record.samples = vec![Sample {
        messages: json(&format!(r#"[{{"content": "x {spelled} {KEY}"}}]"#)),
        metrics: Some(json(r#"{"a": "hunter2222"}"#)),
        extra_fields: Some(json(r#"{"a": "hunter2222"}"#)),
        ..sample("hunter2222")
    }];
    let secrets = [secret, "hunter2222", "12345678"].map(str::to_owned);
    let redactor = Redactor::new(secrets);
    let text = jsonl(std::slice::from_ref(&record), redactor.clone());
    let (_guard, path) = parquet(&[record], redactor);
    let rows = parquet_rows(&path).join("\n");
    for (what, text) in [("jsonl", text), ("parquet", rows)] {
        for hidden in [secret, spelled, "hunter2222", "12345678", KEY] {
            assert!(!text.contains(hidden), "{what}: {hidden:?} in {text}");
        }
        assert_eq!(text.matches("[redacted]").count(), 14, "{what}: {text}");
    }
}

#[test]
fn errors_of_every_outcome_are_told() {
    let failure = Failure::new(ErrorCategory::HttpError, "upstream", "gone");
    let check = |outcome: &Outcome, expected: Option<(&str, &str)>| {
        let found = ExportError::of(outcome);
        let found = found
            .as_ref()
            .map(|error| (error.kind.as_str(), error.message.as_str()));
        assert_eq!(found, expected);
    };
    check(&Outcome::Cancelled, None);
    check(
        &Outcome::Ungraded {
            failure: failure.clone(),
        },
        Some(("upstream", "gone")),
    );
    check(
        &Outcome::InfrastructureFailed { failure },
        Some(("upstream", "gone")),
    );
    check(
        &Outcome::Rejected {
            reason: "why".to_owned(),
        },
        Some(("rejected", "why")),
    );
    let timeout = Outcome::TimedOut {
        phase: Phase::Grade,
        limit_ms: 1500,
    };
    check(
        &timeout,
        Some(("grade_timeout", "grade phase passed its deadline of 1.5 s")),
    );
    assert_eq!(bare().ended(&timeout).outcome, Some(OutcomeKind::TimedOut));
}

#[test]
fn a_file_has_its_name_only_when_it_is_whole() {
    for format in ExportFormat::ALL {
        let (_guard, folder) = folder();
        let path = folder.join(format!("out.{}", format.as_str()));
        fs::write(&path, "old").unwrap();
        let mut export = Export::create(format, &path, Redactor::default()).unwrap();
        export.write(&full()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        // Given up: the old file stays, and nothing else does.
        drop(export);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(folder.read_dir_utf8().unwrap().count(), 1);
        let mut export = Export::create(format, &path, Redactor::default()).unwrap();
        export.write(&full()).unwrap();
        assert_eq!(export.finish().unwrap(), 1);
        assert_ne!(fs::read(&path).unwrap(), b"old");
        assert_eq!(folder.read_dir_utf8().unwrap().count(), 1);
    }
}

#[cfg(unix)]
#[test]
fn a_new_file_has_the_permissions_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_guard, folder) = folder();
    let path = folder.join("out.jsonl");
    JsonlExport::create(&path, Redactor::default())
        .unwrap()
        .finish()
        .unwrap();
    fs::write(folder.join("other"), "").unwrap();
    let mode = |name: &str| folder.join(name).metadata().unwrap().permissions().mode();
    assert_eq!(mode("out.jsonl"), mode("other"));
}

#[cfg(unix)]
#[test]
fn links_and_devices_are_written_through() {
    let (_guard, folder) = folder();
    fs::write(folder.join("real.jsonl"), "old").unwrap();
    let link = folder.join("link.jsonl");
    std::os::unix::fs::symlink("real.jsonl", &link).unwrap();
    let mut export = JsonlExport::create(&link, Redactor::default()).unwrap();
    export.write(&bare()).unwrap();
    export.finish().unwrap();
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert!(
        fs::read_to_string(folder.join("real.jsonl"))
            .unwrap()
            .starts_with('{')
    );
    let device = Utf8Path::new("/dev/null");
    let mut export = ParquetExport::create(device, Redactor::default()).unwrap();
    export.write(&bare()).unwrap();
    export.finish().unwrap();
    assert!(!device.metadata().unwrap().is_file());
}

#[test]
fn places_that_can_not_be_written_are_named() {
    let (_guard, folder) = folder();
    for format in ExportFormat::ALL {
        for path in [folder.clone(), folder.join("missing/out")] {
            let error = Export::create(format, &path, Redactor::default()).unwrap_err();
            assert_eq!(error.kind(), DataErrorKind::Unwritable);
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("`{path}` can't be written: ")),
                "{error}"
            );
        }
    }
}

/// Somebody who has read enough.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn a_reader_that_went_away_is_told_apart() {
    let mut export = JsonlExport::to(Closed, Redactor::default());
    export.write(&bare()).unwrap();
    assert_eq!(
        export.finish().unwrap_err().kind(),
        DataErrorKind::OutputClosed
    );
    let mut export = ParquetExport::to(Closed, Redactor::default()).unwrap();
    export.write(&bare()).unwrap();
    assert_eq!(
        export.finish().unwrap_err().kind(),
        DataErrorKind::OutputClosed
    );
}

#[test]
fn formats_have_names() {
    assert_eq!(ExportFormat::parse("parquet"), Some(ExportFormat::Parquet));
    assert_eq!(
        ExportFormat::of(Utf8Path::new("a/b.jsonl")),
        Some(ExportFormat::Jsonl)
    );
    assert_eq!(ExportFormat::of(Utf8Path::new("a/b")), None);
}
