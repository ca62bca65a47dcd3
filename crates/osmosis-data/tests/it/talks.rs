//! Exports of conversations: messages, SFT, ATIF, Inspect.

use std::fs;
use std::io::Read as _;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{
    ErrorCategory, Failure, JsonText, Outcome, Redactor, Reward, RolloutId, RunName, SampleId,
};
use osmosis_data::conversation::{CallTokens, Conversation, RecordedCall, Usage};
use osmosis_data::export::{ExportRecord, RunFacts, SampleTalk, SftFilter, TalkExport, TalkFormat};
use serde_json::{Value, json};
use tempfile::TempDir;

const SECRET: &str = "hunter2-\"quoted\"";

fn run() -> RunFacts {
    RunFacts {
        name: RunName::new("try-1").unwrap(),
        rollout: "multiply".to_owned(),
        model: "openai/gpt".to_owned(),
        dataset: "multiply".to_owned(),
        n: 2,
        finished: true,
        created_at_ms: 1_700_000_000_000,
        finished_at_ms: Some(1_700_000_009_000),
        version: "0.1.0".to_owned(),
    }
}

fn record(row: u64, outcome: &Outcome) -> ExportRecord {
    let body = json!({"user_prompt": "6 * 7?", "ground_truth": "42", "note": SECRET});
    let mut record = ExportRecord::new(
        RunName::new("try-1").unwrap(),
        RolloutId::of(row, 0),
        row,
        0,
        JsonText::of(&body).unwrap(),
    )
    .ended(outcome);
    record.label = Some("42".to_owned());
    record.started_at_ms = Some(1_700_000_001_000);
    record.finished_at_ms = Some(1_700_000_003_000);
    record
}

fn scored(reward: f64, passed: bool) -> Outcome {
    Outcome::Scored {
        reward: Reward::new(reward).unwrap(),
        passed,
    }
}

fn failed() -> Outcome {
    Outcome::AgentFailed {
        failure: Failure {
            category: ErrorCategory::AgentError,
            kind: "ValueError".to_owned(),
            message: format!("bad key {SECRET}"),
            traceback: None,
        },
    }
}

/// A call of Chat Completions, the `number`th of its sample.
fn call(number: u64, messages: &Value, reply: &Value, finish: &str) -> (Vec<u8>, Vec<u8>, u64) {
    let tools = json!([{"type": "function", "function": {"name": "multiply",
        "description": "times", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]);
    let request = json!({"messages": messages, "tools": tools});
    let response = json!({"choices": [{"message": reply, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4}}});
    let bytes = |value: Value| value.to_string().into_bytes();
    (bytes(request), bytes(response), number)
}

fn conversations(calls: &[(Vec<u8>, Vec<u8>, u64)], messages: &[Value]) -> Vec<Conversation> {
    let tokens = [CallTokens {
        prompt: vec![1, 2, 3],
        sampled: vec![4, 5],
        logprobs: vec![-0.5, -0.25],
    }];
    let calls = calls.iter().map(|(request, response, number)| {
        let begin = 1_700_000_001_000 + i64::try_from(*number).unwrap() * 500;
        RecordedCall {
            call_id: *number,
            dialect: "chat_completions",
            model: "openai/gpt",
            status: 200,
            error: None,
            request,
            response,
            usage: Usage::default(),
            queued_at_ms: begin,
            first_byte_at_ms: Some(begin + 50),
            done_at_ms: begin + 100,
            tokens: &tokens,
        }
    });
    Conversation::of_sample(calls, messages)
}

/// A tool is called, with a secret in the prompt, in the tool's result and in the reply.
fn tool_talk() -> Vec<Conversation> {
    let asked = json!([{"role": "system", "content": "be brief"},
        {"role": "user", "content": format!("6 * 7? key {SECRET}")}]);
    let called = json!({"role": "assistant", "content": null, "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "multiply",
            "arguments": json!({"a": 6, "key": SECRET}).to_string()}}]});
    let mut then = asked.as_array().unwrap().clone();
    then.push(called.clone());
    then.push(json!({"role": "tool", "tool_call_id": "c", "content": format!("42 {SECRET}")}));
    let answer = json!({"role": "assistant", "content": format!("42, and {SECRET}")});
    conversations(
        &[
            call(1, &asked, &called, "tool_calls"),
            call(2, &json!(then), &answer, "stop"),
        ],
        &[],
    )
}

fn talk(reward: Option<f64>, conversations: Vec<Conversation>) -> SampleTalk {
    SampleTalk {
        id: SampleId::new("main").unwrap(),
        reward,
        removed: false,
        main: conversations.len().saturating_sub(1),
        conversations,
    }
}

fn folder() -> (TempDir, Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    (folder, path)
}

fn export(
    format: TalkFormat,
    path: &Utf8Path,
    filter: SftFilter,
    rollouts: &[(ExportRecord, Vec<SampleTalk>)],
) -> u64 {
    let redactor = Redactor::new([SECRET.to_owned()]);
    let mut export = TalkExport::create(format, path, filter, &run(), redactor).unwrap();
    for (record, samples) in rollouts {
        export.write(&run(), record, samples).unwrap();
    }
    assert!(!path.is_file(), "a name never stands for half an export");
    export.finish(&run()).unwrap()
}

fn lines(
    format: TalkFormat,
    filter: SftFilter,
    rollouts: &[(ExportRecord, Vec<SampleTalk>)],
) -> Vec<Value> {
    let (_folder, path) = folder();
    let file = path.join("out");
    let count = export(format, &file, filter, rollouts);
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len() as u64, count);
    lines
}

/// The entries of a zip archive, by what its directory says.
fn unzip(bytes: &[u8]) -> Vec<(String, String)> {
    let two = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let eight = |at: usize| {
        let number = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        usize::try_from(number).unwrap()
    };
    // The 64-bit end stands before its locator (20 bytes) and the old end (22 bytes).
    let locator = bytes.len() - 42;
    let end = eight(locator + 8);
    assert_eq!(&bytes[end..end + 4], b"PK\x06\x06");
    let (count, mut at) = (eight(end + 24), eight(end + 48));
    let mut entries = Vec::new();
    for _ in 0..count {
        assert_eq!(&bytes[at..at + 4], b"PK\x01\x02");
        let (name_length, extra_length) = (two(at + 28), two(at + 30));
        let name = String::from_utf8(bytes[at + 46..at + 46 + name_length].to_vec()).unwrap();
        let extra = at + 46 + name_length + 4;
        let (size, packed, offset) = (eight(extra), eight(extra + 8), eight(extra + 16));
        let body = offset + 30 + two(offset + 26) + two(offset + 28);
        let mut text = String::new();
        let mut reader = flate2::read::DeflateDecoder::new(&bytes[body..body + packed]);
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.len(), size);
        let mut crc = flate2::Crc::new();
        crc.update(text.as_bytes());
        assert_eq!(crc.sum().to_le_bytes(), bytes[at + 16..at + 20]);
        entries.push((name, text));
        at += 46 + name_length + extra_length;
    }
    entries
}

fn inspect(rollouts: &[(ExportRecord, Vec<SampleTalk>)]) -> Vec<(String, Value)> {
    let (_folder, path) = folder();
    let file = path.join("out.eval");
    export(TalkFormat::Inspect, &file, SftFilter::default(), rollouts);
    let entries = unzip(&fs::read(file).unwrap()).into_iter();
    entries
        .map(|(name, text)| (name, serde_json::from_str(&text).unwrap()))
        .collect()
}

#[test]
fn no_format_tells_a_secret() {
    let rollouts = [
        (
            record(0, &scored(1.0, true)),
            vec![talk(Some(1.0), tool_talk())],
        ),
        (record(1, &failed()), vec![talk(None, tool_talk())]),
    ];
    let everything = SftFilter::default();
    let mut texts: Vec<String> = Vec::new();
    for format in [TalkFormat::Messages, TalkFormat::Sft, TalkFormat::Atif] {
        texts.push(json!(lines(format, everything, &rollouts)).to_string());
    }
    texts.push(json!(inspect(&rollouts)).to_string());
    for text in texts {
        assert!(text.contains("[redacted]"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn messages_are_told_in_the_shape_of_chat_completions() {
    let found = lines(
        TalkFormat::Messages,
        SftFilter::default(),
        &[
            (
                record(0, &scored(0.5, false)),
                vec![talk(Some(0.5), tool_talk())],
            ),
            (record(1, &failed()), vec![]),
        ],
    );
    assert_eq!(found.len(), 1, "who said nothing has no line");
    let line = &found[0];
    assert_eq!(
        (&line["outcome"], &line["reward"]),
        (&json!("scored"), &json!(0.5))
    );
    assert_eq!(line["main"], true);
    let roles: Vec<&Value> = line["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["role"])
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    assert_eq!(line["messages"][2]["tool_calls"][0]["id"], "c");
    assert_eq!(line["messages"][2]["reasoning_content"], "hm");
    assert_eq!(line["tools"][0]["function"]["name"], "multiply");
    assert_eq!(
        [
            &line["prompt_tokens"],
            &line["completion_tokens"],
            &line["cached_tokens"]
        ],
        [20, 6, 8]
    );
}

#[test]
fn fine_tuning_gets_what_ended_well_and_nothing_else() {
    let cut_off = conversations(
        &[call(
            1,
            &json!([{"role": "user", "content": "q"}]),
            &json!({"content": "and th"}),
            "length",
        )],
        &[],
    );
    let mut removed = talk(Some(1.0), tool_talk());
    removed.removed = true;
    let rollouts = [
        (
            record(0, &scored(1.0, true)),
            vec![talk(Some(1.0), tool_talk())],
        ),
        (
            record(1, &scored(0.5, false)),
            vec![talk(Some(0.5), tool_talk())],
        ),
        (record(2, &failed()), vec![talk(None, tool_talk())]),
        (
            record(3, &scored(1.0, true)),
            vec![talk(Some(1.0), cut_off), removed],
        ),
    ];
    let rows = |min_reward, passed| {
        let rows = lines(TalkFormat::Sft, SftFilter { min_reward, passed }, &rollouts);
        rows.iter()
            .map(|row| row["rollout_id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(None, false), ["r0-0", "r1-0"]);
    assert_eq!(rows(None, true), ["r0-0"]);
    assert_eq!(rows(Some(0.5), false), ["r0-0", "r1-0"]);
    assert_eq!(rows(Some(0.6), false), ["r0-0"]);
    let all = lines(TalkFormat::Sft, SftFilter::default(), &rollouts);
    assert_eq!(
        all[0]["messages"].as_array().unwrap().last().unwrap()["role"],
        "assistant"
    );
    assert_eq!(all[0]["tools"][0]["function"]["name"], "multiply");
}

/// The rules of ATIF 1.7, as its RFC and its published validator (harbor 0.25) state them.
fn check_atif(trajectory: &Value) {
    let only = |object: &Value, allowed: &[&str]| {
        for name in object.as_object().unwrap().keys() {
            assert!(allowed.contains(&name.as_str()), "`{name}` in {object}");
        }
    };
    only(
        trajectory,
        &[
            "schema_version",
            "session_id",
            "trajectory_id",
            "agent",
            "steps",
            "notes",
            "final_metrics",
            "continued_trajectory_ref",
            "extra",
            "subagent_trajectories",
        ],
    );
    assert_eq!(trajectory["schema_version"], "ATIF-v1.7");
    only(
        &trajectory["agent"],
        &["name", "version", "model_name", "tool_definitions", "extra"],
    );
    assert!(trajectory["agent"]["name"].is_string() && trajectory["agent"]["version"].is_string());
    only(
        &trajectory["final_metrics"],
        &[
            "total_prompt_tokens",
            "total_completion_tokens",
            "total_cached_tokens",
            "total_cost_usd",
            "total_steps",
            "extra",
        ],
    );
    let steps = trajectory["steps"].as_array().unwrap();
    assert!(!steps.is_empty());
    assert_eq!(trajectory["final_metrics"]["total_steps"], steps.len());
    for (step, id) in steps.iter().zip(1..) {
        only(
            step,
            &[
                "step_id",
                "timestamp",
                "source",
                "model_name",
                "reasoning_effort",
                "message",
                "reasoning_content",
                "tool_calls",
                "observation",
                "metrics",
                "is_copied_context",
                "llm_call_count",
                "extra",
            ],
        );
        assert_eq!(step["step_id"], id);
        assert!(step["message"].is_string() || step["message"].is_array());
        let source = step["source"].as_str().unwrap();
        assert!(["system", "user", "agent"].contains(&source));
        if source != "agent" {
            for name in ["model_name", "reasoning_content", "tool_calls", "metrics"] {
                assert!(step.get(name).is_none(), "{step}");
            }
        }
        if let Some(metrics) = step.get("metrics") {
            only(
                metrics,
                &[
                    "prompt_tokens",
                    "completion_tokens",
                    "cached_tokens",
                    "cost_usd",
                    "prompt_token_ids",
                    "completion_token_ids",
                    "logprobs",
                    "extra",
                ],
            );
        }
        let mut ids = Vec::new();
        for call in step["tool_calls"].as_array().into_iter().flatten() {
            only(
                call,
                &["tool_call_id", "function_name", "arguments", "extra"],
            );
            assert!(call["arguments"].is_object() && call["function_name"].is_string());
            ids.push(&call["tool_call_id"]);
        }
        assert!(
            ids.iter()
                .all(|id| id.as_str().is_some_and(|id| !id.is_empty()))
        );
        for result in step["observation"]["results"]
            .as_array()
            .into_iter()
            .flatten()
        {
            only(
                result,
                &[
                    "source_call_id",
                    "content",
                    "subagent_trajectory_ref",
                    "extra",
                ],
            );
            if let Some(id) = result.get("source_call_id") {
                assert!(ids.contains(&id), "{step}");
            }
        }
    }
}

#[test]
fn trajectories_follow_the_rules_of_atif() {
    let odd = |messages: Value| vec![Conversation::of_messages(messages.as_array().unwrap())];
    let rollouts: Vec<_> = [
        tool_talk(),
        // Ids that are missing, or there twice; results that nobody asked for, or that came first.
        odd(json!([{"role": "tool", "tool_call_id": "x", "content": "first"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "no json"}},
                {"id": "c", "function": {"name": "g", "arguments": "[1]"}}]},
            {"role": "tool", "content": "of f"}, {"role": "tool", "tool_call_id": "c", "content": "of g"},
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "g"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "of g again"},
            {"role": "tool", "tool_call_id": "z", "content": "of nobody"}])),
        odd(json!([{"role": "user", "content": [{"type": "text", "text": "what?"},
            {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}])),
        vec![Conversation::default()],
    ]
    .into_iter()
    .zip(0..)
    .map(|(conversations, row)| (record(row, &scored(1.0, true)), vec![talk(Some(1.0), conversations)]))
    .collect();
    let found = lines(TalkFormat::Atif, SftFilter::default(), &rollouts);
    assert_eq!(
        found.len(),
        3,
        "a conversation without a word has no trajectory"
    );
    found.iter().for_each(check_atif);

    let steps = &found[0]["steps"];
    assert_eq!(steps.as_array().unwrap().len(), 4);
    assert_eq!(steps[2]["observation"]["results"][0]["source_call_id"], "c");
    assert_eq!(steps[2]["metrics"]["completion_token_ids"], json!([4, 5]));
    assert_eq!(steps[2]["metrics"]["logprobs"], json!([-0.5, -0.25]));
    assert_eq!(steps[2]["metrics"]["cached_tokens"], 4);
    assert_eq!(steps[2]["timestamp"], "2023-11-14T22:13:21.600Z");
    assert_eq!(found[0]["final_metrics"]["total_prompt_tokens"], 20);
    let results = &found[1]["steps"][1]["observation"]["results"];
    assert_eq!(results[0]["content"], "of f");
    assert_eq!(results[1]["source_call_id"], "c");
    assert_eq!(
        found[2]["steps"][0]["message"][1]["source"]["path"],
        "https://x.org/a.png"
    );
}

#[test]
fn replies_that_were_given_as_examples_are_marked() {
    let examples = json!([{"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"}, {"role": "user", "content": "6 * 7?"}]);
    let talked = conversations(
        &[call(1, &examples, &json!({"content": "42"}), "stop")],
        &[],
    );
    let rollouts = [(record(0, &scored(1.0, true)), vec![talk(Some(1.0), talked)])];
    let found = lines(TalkFormat::Atif, SftFilter::default(), &rollouts);
    check_atif(&found[0]);
    let steps = &found[0]["steps"];
    assert_eq!(steps[1]["is_copied_context"], true);
    assert!(steps[3].get("is_copied_context").is_none());
    assert_eq!(steps[3]["llm_call_count"], 1);
}

#[test]
fn a_folder_gets_a_file_for_each_trajectory() {
    let (_folder, path) = folder();
    let to = Utf8PathBuf::from(format!("{path}/new/"));
    let rollouts = [(
        record(0, &scored(1.0, true)),
        vec![talk(Some(1.0), tool_talk())],
    )];
    assert_eq!(
        export(TalkFormat::Atif, &to, SftFilter::default(), &rollouts),
        1
    );
    let text = fs::read_to_string(to.join("r0-0.main.0.json")).unwrap();
    check_atif(&serde_json::from_str(&text).unwrap());
}

#[test]
fn an_inspect_log_has_an_entry_for_each_rollout() {
    let entries = inspect(&[
        (
            record(0, &scored(1.0, true)),
            vec![talk(Some(1.0), tool_talk())],
        ),
        (record(1, &failed()), vec![]),
    ]);
    let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "_journal/start.json",
            "samples/0_epoch_1.json",
            "samples/1_epoch_1.json",
            "summaries.json",
            "header.json"
        ]
    );
    let header = &entries[4].1;
    assert_eq!(header["results"]["total_samples"], 2);
    assert_eq!(
        header["results"]["scores"][0]["metrics"]["pass_rate"]["value"],
        0.5
    );
    assert_eq!(
        header["results"]["scores"][1]["metrics"]["mean"]["value"],
        1.0
    );
    assert_eq!(
        header["stats"]["model_usage"]["openai/gpt"],
        json!({"input_tokens": 12, "output_tokens": 6, "total_tokens": 26,
            "input_tokens_cache_read": 8})
    );
    let sample = &entries[1].1;
    let events: Vec<&Value> = sample["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["event"])
        .collect();
    assert_eq!(events, ["model", "tool", "model", "score", "score"]);
    assert_eq!(sample["events"][2]["input_refs"], json!([[0, 4]]));
    assert_eq!(
        sample["events_data"]["messages"].as_array().unwrap().len(),
        5
    );
    assert_eq!(
        entries[2].1["error"]["message"],
        "ValueError: bad key [redacted]"
    );
    assert_eq!(entries[3].1.as_array().unwrap().len(), 2);
}

#[test]
fn an_empty_run_is_an_empty_log() {
    let entries = inspect(&[]);
    assert_eq!(entries[1], ("summaries.json".to_owned(), json!([])));
}
