//! `builtin/tiny`: what is promised of it in `builtin/README.md`.

#![expect(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

#[path = "../../examples/make_tiny/conversation.rs"]
mod conversation;
#[path = "../../examples/make_tiny/dataset.rs"]
#[expect(dead_code, reason = "no test writes rows to the disk")]
mod dataset;
#[path = "../../examples/make_tiny/drawn.rs"]
mod drawn;
#[path = "../../examples/make_tiny/environment.rs"]
mod environment;
#[path = "../../examples/make_tiny/inputs.rs"]
mod inputs;
#[path = "../../examples/make_tiny/model.rs"]
#[expect(dead_code, reason = "the shape is read from the shipped file")]
mod model;
#[path = "../../examples/make_tiny/questions.rs"]
mod questions;
#[path = "../../examples/make_tiny/scores.rs"]
mod scores;
#[path = "../../examples/make_tiny/settings.rs"]
mod settings;
#[path = "../../examples/make_tiny/tokenizer.rs"]
#[expect(dead_code, reason = "the tokenizer is read from the shipped file")]
mod tokenizer;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use osmosis_core::PolicyVersion;
use osmosis_policy::{EmbeddedModel, PolicyErrorKind, Sampler, SamplerOptions};
use osmosis_tokens::{CallTree, Origin};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use conversation::{answered, asked, tools};
use dataset::Dataset;
use environment::{Episode, play};
use questions::{EXPRESSIONS, Exercise, FRAMES, Operation, Phrasing, Question, Reserved};
use scores::Scores;
use settings::Settings;

const CALCULATOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/calculator");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin/tiny.safetensors");
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
    let phrasing = Phrasing {
        frame: 0,
        expression: 0,
    };
    Question::with_numbers(phrasing, 17, 5)
}

#[test]
fn tiny_is_one_file_under_three_megabytes() {
    assert!(std::fs::metadata(FILE).unwrap().len() < 3_000_000);
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
    // Every operation is tried often enough for training to find the right one.
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
fn the_most_likely_operation_is_wrong_before_training() {
    let model = tiny();
    let sampler = sampler(&model);
    let held_out = Dataset::draw().held_out;
    let mut sampled = 0.0;
    for seed in 1..=SEEDS {
        let (scores, _) = Scores::measure(&sampler, &model.chat, &held_out, (seed, 0)).unwrap();
        sampled += scores.sampled / SEEDS as f32;
        assert!(scores.greedy <= 0.1, "{scores}");
        assert!(scores.unseen_greedy <= 0.1, "{scores}");
        assert!(scores.right_mode <= 0.1, "{scores}");
    }
    sampler.shut_down();
    assert!((0.03..=0.2).contains(&sampled), "{sampled}");
}

#[test]
fn the_right_answer_is_never_a_coincidence() {
    let Dataset {
        training,
        tuning,
        held_out,
    } = Dataset::draw();
    for question in [training, tuning, held_out].concat() {
        let (a, b, right) = (question.a, question.b, question.operation());
        assert!(right.is_the_only_one_for(a, b), "{}", question.text);
        assert_eq!(
            right.apply(a, b),
            Some(question.answer),
            "{}",
            question.text
        );
        assert_ne!(question.phrasing.expression().decoy, right);
    }
    assert!(!Operation::Subtract.is_the_only_one_for(15, 10), "15 % 10");
    assert!(!Operation::Divide.is_the_only_one_for(25, 5), "the smaller");
}

#[test]
fn held_out_and_tuning_rows_have_exercises_and_phrasings_of_their_own() {
    let dataset = Dataset::draw();
    let exercises = |rows: &[Question]| rows.iter().map(Question::exercise).collect();
    let training: HashSet<Exercise> = exercises(&dataset.training);
    let tuning: HashSet<Exercise> = exercises(&dataset.tuning);
    let held_out: HashSet<Exercise> = exercises(&dataset.held_out);
    assert!(training.is_disjoint(&tuning));
    assert!(training.is_disjoint(&held_out));
    assert!(tuning.is_disjoint(&held_out));
    // `3 + 4` is the same exercise as `4 + 3`.
    let forwards = Question::with_numbers(question().phrasing, 3, 4);
    let backwards = Question::with_numbers(question().phrasing, 4, 3);
    assert_eq!(forwards.exercise(), backwards.exercise());

    let phrasings = |rows: &[Question]| -> BTreeSet<(usize, usize)> {
        rows.iter()
            .map(|row| (row.phrasing.frame, row.phrasing.expression))
            .collect()
    };
    let trained = phrasings(&dataset.training);
    for (rows, other, reserved) in [
        (&dataset.tuning, &dataset.held_out, Reserved::Tuning),
        (&dataset.held_out, &dataset.tuning, Reserved::HeldOut),
    ] {
        let unseen: Vec<Question> = rows
            .iter()
            .filter(|row| row.is_unseen_phrasing())
            .cloned()
            .collect();
        assert_eq!(unseen.len() * 2, rows.len());
        assert!(unseen.iter().all(|row| row.phrasing.reserved() == reserved));
        let unseen = phrasings(&unseen);
        assert_eq!(unseen.len(), EXPRESSIONS.len());
        assert!(unseen.is_disjoint(&trained));
        assert!(unseen.is_disjoint(&phrasings(other)));
    }
    // Every frame and every expression is trained on, each with several of the others.
    for frame in 0..FRAMES.len() {
        assert!(trained.iter().filter(|one| one.0 == frame).count() >= 8);
    }
    for expression in 0..EXPRESSIONS.len() {
        assert_eq!(
            trained.iter().filter(|one| one.1 == expression).count(),
            FRAMES.len() - 2
        );
    }
}

#[test]
fn the_example_has_the_rows_and_the_instructions_that_tiny_was_made_for() {
    let dataset = Dataset::draw();
    for (name, made) in dataset.files() {
        let there = std::fs::read_to_string(format!("{CALCULATOR}/data/{name}.jsonl")).unwrap();
        assert!(
            made == there,
            "{name}.jsonl is not what make_tiny makes: run `cargo xtask tiny`"
        );
        let marked = there
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|row| row["metadata"] == json!({"unseen_phrasing": true}))
            .count();
        assert_eq!(marked, if name == "train" { 0 } else { 64 }, "{name}");
    }
    let agent =
        std::fs::read_to_string(format!("{CALCULATOR}/rollouts/calculator/main.py")).unwrap();
    assert!(agent.contains(&format!("instructions=\"{}\"", conversation::INSTRUCTIONS)));
}

#[test]
fn the_warm_start_sees_no_exercise_and_no_phrasing_that_is_held_out() {
    let dataset = Dataset::draw();
    let kept_out = dataset.kept_out();
    let settings = Settings::default();
    let mut conversations =
        drawn::Conversations::new(&settings, &kept_out, drawn::Purpose::Conversations);
    let hidden: HashSet<&str> = [&dataset.tuning, &dataset.held_out]
        .into_iter()
        .flatten()
        .map(|question| question.text.as_str())
        .collect();
    // Texts without their numbers are phrasings.
    let without_numbers = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
    let reserved: HashSet<String> = [&dataset.tuning, &dataset.held_out]
        .into_iter()
        .flatten()
        .filter(|question| question.is_unseen_phrasing())
        .map(|question| without_numbers(&question.text))
        .collect();
    assert_eq!(reserved.len(), 32);
    for _ in 0..10_000 {
        let messages = conversations.draw().messages;
        let text = messages[1]["content"].as_str().unwrap();
        assert!(!hidden.contains(text), "{text}");
        assert!(!reserved.contains(&without_numbers(text)), "{text}");
    }
}

#[test]
fn the_shipped_weights_carry_the_digest_of_what_make_tiny_would_make_them_from() {
    let file = std::fs::read(FILE).unwrap();
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    let notes: BTreeMap<String, String> = header.metadata().clone().unwrap().into_iter().collect();
    let here = inputs::made_from(&Settings::default(), &Dataset::draw(), &tiny().config).unwrap();
    let there: Value = serde_json::from_str(&notes[inputs::MADE_FROM]).unwrap();
    let changed: Vec<&String> = here
        .as_object()
        .unwrap()
        .iter()
        .filter(|(key, value)| there.get(key.as_str()) != Some(*value))
        .map(|(key, _)| key)
        .collect();
    assert!(
        changed.is_empty(),
        "builtin/tiny was made from other {changed:?}: run `cargo xtask tiny`"
    );
    assert_eq!(notes[inputs::MADE_FROM_SHA256], inputs::digest(&here));
    assert!(notes.contains_key(inputs::MADE_ON));

    // A setting that changes, changes the digest.
    let other = Settings {
        right_order: 0.5,
        ..Settings::default()
    };
    let other = inputs::made_from(&other, &Dataset::draw(), &tiny().config).unwrap();
    assert_ne!(inputs::digest(&other), inputs::digest(&here));
}
