//! Exports for trainers: AReaL, verl, slime.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use insta::assert_snapshot;
use osmosis_core::{JsonText, PolicyVersion, Redactor, RolloutId, RunName, SampleId};
use osmosis_data::conversation::{CallTokens, Conversation, RecordedCall, Usage};
use osmosis_data::export::{
    ExportRecord, RunFacts, SampleTalk, TokenExport, TokenFormat, TokenRow,
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::printer::print_schema;
use serde_json::{Value, json};
use tempfile::TempDir;

const SECRET: &str = "hunter2-hunter2";

fn run() -> RunFacts {
    RunFacts {
        name: RunName::new("try-1").unwrap(),
        rollout: "multiply".to_owned(),
        model: "builtin/tiny".to_owned(),
        dataset: "products".to_owned(),
        n: 2,
        finished: true,
        created_at_ms: 0,
        finished_at_ms: None,
        version: "0.1.0".to_owned(),
    }
}

fn record(row: u64, run: u32) -> ExportRecord {
    let body = json!({"system_prompt": "be brief", "user_prompt": format!("6 * 7? {SECRET}"),
        "ground_truth": "42"});
    let mut record = ExportRecord::new(
        RunName::new("try-1").unwrap(),
        RolloutId::of(row, run),
        row,
        run,
        JsonText::of(&body).unwrap(),
    );
    record.label = Some("42".to_owned());
    record
}

/// A question (1 2), a call (3 4), the tool's result (5 6) and an answer (7).
fn row() -> TokenRow {
    let version = |number| Some(PolicyVersion(number));
    TokenRow {
        sample: SampleId::main(),
        visit: 0,
        turn: 0,
        reward: 0.5,
        calls: 2,
        ids: vec![1, 2, 3, 4, 5, 6, 7],
        loss_mask: vec![false, false, true, true, false, false, true],
        logprobs: vec![0.0, 0.0, -0.5, -0.25, 0.0, 0.0, -0.125],
        versions: vec![None, None, version(3), version(3), None, None, version(4)],
        temperatures: vec![1.0, 1.0, 0.7, 0.7, 1.0, 1.0, 0.7],
    }
}

/// What was said in these tokens.
fn talks(finish: &str) -> Vec<SampleTalk> {
    let asked = json!([{"role": "system", "content": "be brief"},
        {"role": "user", "content": format!("6 * 7? {SECRET}")}]);
    let called = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c",
        "type": "function", "function": {"name": "multiply", "arguments": "{\"a\":6}"}}]});
    let mut then = asked.as_array().unwrap().clone();
    then.push(called.clone());
    then.push(json!({"role": "tool", "tool_call_id": "c", "content": "42"}));
    let answer = json!({"role": "assistant", "content": "it is 42"});
    let bytes = |value: Value| value.to_string().into_bytes();
    let exchange = |messages: Value, reply: &Value, finish: &str| {
        let reply = json!({"choices": [{"message": reply, "finish_reason": finish}]});
        (bytes(json!({"messages": messages})), bytes(reply))
    };
    let first = exchange(asked, &called, "tool_calls");
    let second = exchange(json!(then), &answer, finish);
    let tokens = |prompt: &[u32], sampled: &[u32]| CallTokens {
        prompt: prompt.to_vec(),
        sampled: sampled.to_vec(),
        logprobs: vec![],
    };
    let tokens = [
        [tokens(&[1, 2], &[3, 4])],
        [tokens(&[1, 2, 3, 4, 5, 6], &[7])],
    ];
    let calls = [(0, first), (1, second)];
    let calls = calls
        .iter()
        .zip(&tokens)
        .map(|((id, (request, response)), tokens)| RecordedCall {
            call_id: *id,
            dialect: "chat_completions",
            model: "builtin/tiny",
            status: 200,
            error: None,
            request,
            response,
            usage: Usage::default(),
            queued_at_ms: 0,
            first_byte_at_ms: None,
            done_at_ms: 1,
            tokens,
        });
    vec![SampleTalk {
        id: SampleId::main(),
        reward: Some(0.5),
        removed: false,
        conversations: Conversation::of_sample(calls, &[]),
        main: 0,
    }]
}

type Rollout = (ExportRecord, Vec<TokenRow>, Vec<SampleTalk>);

fn export(format: TokenFormat, rollouts: &[Rollout]) -> (TempDir, Utf8PathBuf) {
    let guard = TempDir::new().unwrap();
    let path = Utf8Path::from_path(guard.path())
        .unwrap()
        .join(format.suffix());
    let redactor = Redactor::new([SECRET.to_owned()]);
    let mut export = TokenExport::create(format, &path, redactor).unwrap();
    for (record, rows, talks) in rollouts {
        export.write(&run(), record, rows, talks).unwrap();
    }
    let rows: usize = rollouts.iter().map(|(_, rows, _)| rows.len()).sum();
    assert_eq!(export.rows(), rows as u64);
    assert_eq!(export.finish().unwrap(), rows as u64);
    (guard, path)
}

/// The rows of a parquet file as the library's own reader of rows sees them.
fn parquet_rows(path: &Utf8Path) -> Vec<String> {
    let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().to_string()).collect()
}

fn lines(path: &Utf8Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn areal_gets_whole_sequences_with_minus_one_where_nothing_was_sampled() {
    let (_guard, path) = export(TokenFormat::Areal, &[(record(3, 1), vec![row()], vec![])]);
    assert_snapshot!(parquet_rows(&path).join("\n"));
}

#[test]
fn verl_gets_the_response_from_the_first_token_that_is_trained_on() {
    let rollouts = [(record(3, 1), vec![row()], talks("stop"))];
    let (_guard, path) = export(TokenFormat::Verl, &rollouts);
    assert_snapshot!(parquet_rows(&path).join("\n"));
}

#[test]
fn slime_gets_samples_whose_mask_has_the_length_of_the_response() {
    let rollouts = [(record(3, 1), vec![row()], talks("length"))];
    let (_guard, path) = export(TokenFormat::Slime, &rollouts);
    let line = &lines(&path)[0];
    assert_eq!(line["tokens"], json!([1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(line["response_length"], 5);
    assert_eq!(line["loss_mask"], json!([1, 1, 0, 0, 1]));
    assert_eq!(
        line["rollout_log_probs"],
        json!([-0.5, -0.25, 0.0, 0.0, -0.125])
    );
    assert_eq!(line["weight_versions"], json!(["3", "4"]));
    assert_eq!(line["status"], "truncated");
    assert_eq!(line["reward"], 0.5);
    assert_eq!(line["label"], "42");
    assert_eq!(
        line["prompt"],
        json!([{"role": "system", "content": "be brief"},
            {"role": "user", "content": "6 * 7? [redacted]"}])
    );
    assert_eq!(line["response"], "multiply({\"a\":6})\n42\nit is 42");
    assert_eq!(line["metadata"]["temperature"], 0.7);
    assert_eq!(line["metadata"]["rollout_id"], "r3-1");
}

#[test]
fn a_row_of_a_later_turn_has_the_earlier_ones_in_its_prompt() {
    let mut later = row();
    later.turn = 1;
    later.loss_mask[2] = false;
    later.loss_mask[3] = false;
    let rollouts = [(record(0, 0), vec![later], talks("stop"))];
    let (_guard, path) = export(TokenFormat::Slime, &rollouts);
    let line = &lines(&path)[0];
    assert_eq!(line["response_length"], 1);
    assert_eq!(line["response"], "it is 42");
    let roles: Vec<&Value> = line["prompt"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| &message["role"])
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    assert_eq!(line["status"], "completed");
}

#[test]
fn tokens_that_no_call_has_are_told_by_what_the_dataset_asks() {
    let mut made = row();
    made.ids[6] = 9;
    let rollouts = [(record(0, 0), vec![made], talks("length"))];
    let (_guard, path) = export(TokenFormat::Slime, &rollouts);
    let line = &lines(&path)[0];
    assert_eq!(line["prompt"][1]["content"], "6 * 7? [redacted]");
    assert_eq!(line["response"], "");
    assert_eq!(line["status"], "completed");
}

#[test]
fn groups_are_rows_of_the_same_prompt_visit_sample_and_turn() {
    let with = |visit, turn| TokenRow {
        visit,
        turn,
        ..row()
    };
    let rollouts = [
        (record(0, 0), vec![with(0, 0), with(0, 1)], vec![]),
        (record(0, 1), vec![with(0, 0), with(0, 1)], vec![]),
        (record(0, 2), vec![with(1, 0)], vec![]),
        (record(1, 0), vec![with(0, 0)], vec![]),
    ];
    let (_guard, path) = export(TokenFormat::Slime, &rollouts);
    let found = lines(&path);
    let groups: Vec<&Value> = found.iter().map(|line| &line["group_index"]).collect();
    assert_eq!(groups, [0, 1, 0, 1, 2, 3]);
    let indices: Vec<&Value> = found.iter().map(|line| &line["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_token_id_that_trainers_have_no_room_for_is_refused() {
    let mut large = row();
    large.ids[0] = u32::MAX;
    let guard = TempDir::new().unwrap();
    let path = Utf8Path::from_path(guard.path()).unwrap().join("out");
    let mut export = TokenExport::create(TokenFormat::Areal, &path, Redactor::default()).unwrap();
    let error = export
        .write(&run(), &record(0, 0), &[large], &[])
        .unwrap_err();
    assert!(error.to_string().contains("4294967295"), "{error}");
    drop(export);
    assert!(!path.exists());
}

#[test]
fn the_columns_are_the_documented_ones() {
    let docs = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/export.md");
    let docs = fs::read_to_string(docs).unwrap();
    let documented = |name: &str| assert!(docs.contains(&format!("`{name}`")), "{name}");
    for format in [TokenFormat::Areal, TokenFormat::Verl] {
        let (_guard, path) = export(format, &[(record(0, 0), vec![row()], vec![])]);
        let reader = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
        let schema = reader.metadata().file_metadata().schema();
        let mut printed = Vec::new();
        print_schema(&mut printed, schema);
        assert_snapshot!(
            format!("{format:?}_schema").to_lowercase(),
            String::from_utf8(printed).unwrap()
        );
        for field in schema.get_fields() {
            documented(field.name());
        }
    }
    let (_guard, path) = export(TokenFormat::Slime, &[(record(0, 0), vec![row()], vec![])]);
    for name in lines(&path)[0].as_object().unwrap().keys() {
        documented(name);
    }
}
