//! Rendering compared with what `transformers` gave (`fixtures/record.py`).

use camino::Utf8Path;
use osmosis_testkit::published_models::PublishedTokenizer;
use osmosis_tokens::{TokensError, TokensErrorKind};
use serde_json::{Map, Value, json};

use crate::published::format;

fn fixture(name: &str) -> Map<String, Value> {
    let path = Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn check(family: PublishedTokenizer) {
    let format = format(family);
    let recorded = fixture(&format!("{}.json", family.name()));
    let cases = fixture("cases.json");
    assert_eq!(
        recorded.keys().collect::<Vec<_>>(),
        cases.keys().collect::<Vec<_>>(),
        "run fixtures/record.py"
    );
    let mut differences = Vec::new();
    for (name, case) in &cases {
        let messages = case["messages"].as_array().unwrap();
        let tools = case.get("tools").map(|tools| tools.as_array().unwrap());
        let extra = case
            .get("extra")
            .map_or_else(Map::new, |extra| extra.as_object().unwrap().clone());
        for (prompt, add_generation_prompt) in [("on", true), ("off", false)] {
            let rendered = format.render(
                messages,
                tools.map(Vec::as_slice),
                add_generation_prompt,
                &extra,
            );
            let expected = &recorded[name];
            match (expected.get("raises"), rendered) {
                (Some(message), Err(TokensError::TemplateRaised { message: ours })) => {
                    assert_eq!(message, &ours);
                }
                (None, Ok(text)) => {
                    let ids: Vec<u32> = serde_json::from_value(expected[prompt].clone()).unwrap();
                    if format.encode(&text).unwrap() != ids {
                        let theirs = format.decode(&ids, false).unwrap();
                        differences.push(format!(
                            "{name}, {prompt}\n ours: {text:?}\n theirs: {theirs:?}"
                        ));
                    }
                }
                (_, ours) => differences.push(format!("{name}: {ours:?}, expected {expected}")),
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn qwen3_renders_as_in_transformers() {
    check(PublishedTokenizer::Qwen3);
}

#[test]
fn qwen2_5_renders_as_in_transformers() {
    check(PublishedTokenizer::Qwen25);
}

#[test]
fn llama3_renders_as_in_transformers() {
    check(PublishedTokenizer::Llama3);
}

#[test]
fn deepseek_v3_renders_as_in_transformers() {
    check(PublishedTokenizer::DeepSeekV3);
}

#[test]
fn mistral_nemo_renders_as_in_transformers() {
    check(PublishedTokenizer::MistralNemo);
}

#[test]
fn the_end_of_a_turn_is_what_the_template_writes_and_then_what_the_files_name() {
    for (family, expected) in [
        (PublishedTokenizer::Qwen3, vec!["<|im_end|>"]),
        (PublishedTokenizer::Qwen25, vec!["<|im_end|>"]),
        (
            PublishedTokenizer::Llama3,
            vec!["<|eot_id|>", "<|end_of_text|>"],
        ),
        (
            PublishedTokenizer::DeepSeekV3,
            vec!["<｜end▁of▁sentence｜>"],
        ),
        (PublishedTokenizer::MistralNemo, vec!["</s>"]),
    ] {
        let format = format(family);
        let ends: Vec<String> = format
            .end_of_turn()
            .iter()
            .map(|id| format.token_text(*id).unwrap())
            .collect();
        assert_eq!(ends, expected, "{}", family.name());
    }
}

#[test]
fn decoding_brings_the_text_back() {
    let text = "<|im_start|>user\nGrüße 👩‍👩‍👧 12345\n\n  don't<|im_end|>\n";
    let format = format(PublishedTokenizer::Qwen25);
    let ids = format.encode(text).unwrap();
    assert_eq!(format.decode(&ids, false).unwrap(), text);
    assert_eq!(
        format.decode(&ids, true).unwrap(),
        text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    );
    assert_eq!(
        format.vocabulary_size(),
        151_665,
        "ids up to the last added token"
    );
    assert_eq!(format.token_text(151_665), None);
}

#[test]
fn what_only_a_text_model_can_not_take_is_refused_with_the_message_named() {
    let format = format(PublishedTokenizer::Qwen25);
    let messages = [
        json!({"role": "user", "content": "look"}),
        json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
    ];
    let error = format
        .render(&messages, None, true, &Map::new())
        .unwrap_err();
    assert_eq!(error.kind(), TokensErrorKind::Messages);
    assert_eq!(
        error.to_string(),
        "message 1: a content part of type `image_url` can't be given to this model, which takes text only"
    );
}
