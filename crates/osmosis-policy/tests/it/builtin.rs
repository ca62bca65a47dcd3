//! `builtin/tiny`: what is promised of it in `builtin/README.md`.

#![expect(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

#[path = "../../examples/make_tiny/conversation.rs"]
mod conversation;
#[path = "../../examples/make_tiny/dataset.rs"]
mod dataset;
#[path = "../../examples/make_tiny/environment.rs"]
mod environment;
#[path = "../../examples/make_tiny/questions.rs"]
mod questions;

use osmosis_core::PolicyVersion;
use osmosis_policy::{EmbeddedModel, PolicyErrorKind, Sampler, SamplerOptions};
use osmosis_tokens::{CallTree, Origin};
use serde_json::{Map, Value, json};

use conversation::{answered, asked, tools};
use dataset::Dataset;
use environment::{Episode, play};
use questions::{Operation, Question};

const CALCULATOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/calculator");
const SEEDS: u64 = 5;

fn tiny() -> EmbeddedModel {
    EmbeddedModel::builtin("tiny").unwrap()
}

fn sampler(model: &EmbeddedModel) -> Sampler {
    let options = SamplerOptions {
        max_batch: 128,
        threads: 0,
        cache_bytes: 1 << 28,
    };
    Sampler::start(model, PolicyVersion(0), options).unwrap()
}

fn question() -> Question {
    Question {
        text: "What is 17 plus 5?".to_owned(),
        operation: Operation::Add,
        a: 17,
        b: 5,
        answer: 22,
    }
}

#[test]
fn tiny_is_one_file_under_three_megabytes() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin/tiny.safetensors");
    assert!(std::fs::metadata(file).unwrap().len() < 3_000_000);
    let model = tiny();
    assert_eq!(model.name, "builtin/tiny");
    assert!((300_000..500_000).contains(&model.config.parameters()));
    assert_eq!(model.config.vocabulary, model.chat.vocabulary_size());
}

#[test]
fn an_unknown_built_in_model_is_refused_with_those_there_are() {
    let error = EmbeddedModel::builtin("huge").unwrap_err();
    assert_eq!(error.kind(), PolicyErrorKind::Invalid);
    let told = format!("{error} {}", error.hint().unwrap_or_default());
    assert!(
        told.contains("builtin/huge") && told.contains("builtin/tiny"),
        "{told}"
    );
}

#[test]
fn every_text_survives_the_tokenizer() {
    let chat = tiny().chat;
    for text in [
        "",
        "What is 17 plus 5?",
        "  two  spaces\n\n\ttab ",
        "äß漢字🦀",
        "\u{0}\u{7f}",
        "a1b22c",
    ] {
        let ids = chat.encode(text).unwrap();
        assert_eq!(chat.decode(&ids, false).unwrap(), text);
    }
}

#[test]
fn a_number_has_one_token_for_each_digit_wherever_it_stands() {
    let chat = tiny().chat;
    let alone = chat.encode("1234").unwrap();
    assert_eq!(alone.len(), 4);
    let inside = chat.encode(r#"{"a": 1234}"#).unwrap();
    assert!(inside.windows(4).any(|window| window == alone));
}

#[test]
fn a_conversation_with_tools_reads_like_chatml() {
    let chat = tiny().chat;
    let messages = answered(&question(), Operation::Add, 17, 5);
    let text = chat
        .render(&messages, Some(&tools()), false, &Map::new())
        .unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nUse the tool, then answer with the number alone.\n\
         Tools: calculate(a, operation, b)<|im_end|>\n\
         <|im_start|>user\nWhat is 17 plus 5?<|im_end|>\n\
         <|im_start|>assistant\n<tool_call>{\"name\": \"calculate\", \"arguments\": \
         {\"a\": 17, \"operation\": \"add\", \"b\": 5}}</tool_call><|im_end|>\n\
         <|im_start|>tool\n<tool_response>22</tool_response><|im_end|>\n\
         <|im_start|>assistant\n22<|im_end|>\n"
    );
}

#[test]
fn messages_without_system_or_tools_render_too() {
    let chat = tiny().chat;
    let messages = [json!({"role": "user", "content": "Hello"})];
    assert_eq!(
        chat.render(&messages, None, true, &Map::new()).unwrap(),
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    );
    let nothing = json!({"type": "object", "properties": {}});
    let tool = [json!({"type": "function", "function": {"name": "now", "parameters": nothing}})];
    assert_eq!(
        chat.render(&messages, Some(&tool), true, &Map::new())
            .unwrap(),
        "<|im_start|>system\nTools: now()<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn a_turn_after_tool_calls_continues_the_ids_of_the_turn_before() {
    let chat = tiny().chat;
    let tools = tools();
    let whole = answered(&question(), Operation::Add, 17, 5);
    let mut messages: Vec<Value> = asked(&question());
    let mut tree = CallTree::default();
    let mut seen = Vec::new();
    for (call, turn) in [(0, &whole[2..4]), (1, &whole[2..4]), (2, &whole[4..5])] {
        let planned = tree
            .plan(&chat, &messages, Some(&tools), &Map::new())
            .unwrap();
        if call > 0 {
            assert!(
                matches!(planned.origin, Origin::Continues { .. }),
                "{:?}",
                planned.origin
            );
            assert!(planned.ids.starts_with(&seen));
        }
        let rendered = chat
            .render(&messages, Some(&tools), true, &Map::new())
            .unwrap();
        assert_eq!(chat.decode(&planned.ids, false).unwrap(), rendered);
        messages.push(turn[0].clone());
        let said = chat
            .render(&messages, Some(&tools), false, &Map::new())
            .unwrap();
        let sampled = chat.encode(said[rendered.len()..].trim_end()).unwrap();
        seen.clone_from(&planned.ids);
        seen.extend(&sampled);
        let count = sampled.len();
        tree.finished(
            planned,
            sampled,
            vec![0.0; count],
            vec![PolicyVersion(0); count],
            1.0,
            Some(&turn[0]),
        );
        messages.extend(turn[1..].iter().cloned());
    }
}

#[test]
fn tool_calls_at_temperature_one_are_well_formed_and_copy_the_numbers() {
    let model = tiny();
    let sampler = sampler(&model);
    let held_out = Dataset::draw().held_out;
    let episodes = play(&sampler, &model.chat, &held_out, 1.0, (7, 0)).unwrap();
    sampler.shut_down();
    let share = |fits: fn(&Episode) -> bool| {
        episodes.iter().filter(|episode| fits(episode)).count() as f64 / episodes.len() as f64
    };
    assert!(share(|episode| episode.well_formed) > 0.95);
    assert!(share(|episode| episode.copied_numbers) > 0.9);
    assert!(share(|episode| episode.copied_result != Some(false)) > 0.9);
    assert!(
        episodes
            .iter()
            .all(|episode| episode.continued && episode.rows.len() == 1)
    );
    for operation in Operation::ALL {
        let called = episodes
            .iter()
            .filter(|episode| episode.operation == Some(operation))
            .count();
        assert!(
            called > episodes.len() / 20,
            "{} was tried {called} times",
            operation.name()
        );
    }
}

#[test]
fn tiny_does_not_know_which_operation_a_question_wants() {
    let model = tiny();
    let sampler = sampler(&model);
    let held_out = Dataset::draw().held_out;
    let mut rewards = Vec::new();
    for seed in 1..=SEEDS {
        let episodes = play(&sampler, &model.chat, &held_out, 1.0, (seed, 0)).unwrap();
        rewards.extend(episodes.iter().map(|episode| episode.reward));
    }
    let mean = rewards.iter().sum::<f32>() / rewards.len() as f32;
    assert!((0.05..=0.28).contains(&mean), "{mean}");
    sampler.shut_down();
}

#[test]
fn the_example_has_the_rows_and_the_instructions_that_tiny_was_made_for() {
    let folder = tempfile::tempdir().unwrap();
    Dataset::draw().write(folder.path()).unwrap();
    for name in ["train.jsonl", "held_out.jsonl"] {
        let made = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let there = std::fs::read_to_string(format!("{CALCULATOR}/data/{name}")).unwrap();
        assert!(made == there, "{name} is not what make_tiny makes");
    }
    let agent =
        std::fs::read_to_string(format!("{CALCULATOR}/rollouts/calculator/main.py")).unwrap();
    assert!(agent.contains(&format!("instructions=\"{}\"", conversation::INSTRUCTIONS)));
    let held_out = Dataset::draw().held_out_texts();
    assert!(
        Dataset::draw()
            .training
            .iter()
            .all(|question| !held_out.contains(&question.text))
    );
}
