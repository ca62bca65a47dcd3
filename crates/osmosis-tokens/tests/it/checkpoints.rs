//! Formats from checkpoint folders, good and bad.

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_tokens::{ChatFormat, ChatFormatParts, TokensErrorKind};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::toy;

fn parts() -> ChatFormatParts {
    toy::format(toy::CHATML).parts().clone()
}

fn with_config(change: impl FnOnce(&mut Value)) -> ChatFormatParts {
    let mut parts = parts();
    let mut config = serde_json::from_str(&parts.tokenizer_config).unwrap();
    change(&mut config);
    parts.tokenizer_config = config.to_string();
    parts
}

fn rendered(parts: ChatFormatParts, tools: Option<&[Value]>) -> String {
    let messages = [json!({"role": "user", "content": "hi"})];
    ChatFormat::from_parts(parts)
        .unwrap()
        .render(&messages, tools, true, &Map::new())
        .unwrap()
}

fn folder() -> (TempDir, Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(folder.path()).unwrap().to_owned();
    (folder, path)
}

#[test]
fn a_saved_format_is_loaded_as_it_was() {
    let mut parts = parts();
    parts.chat_template = Some(toy::REWRITING.to_owned());
    parts.generation_config = Some(json!({"eos_token_id": [3, 4]}).to_string());
    let format = ChatFormat::from_parts(parts.clone()).unwrap();
    let (_guard, folder) = folder();
    format.save(&folder).unwrap();
    let loaded = ChatFormat::load(&folder).unwrap();
    assert_eq!(loaded.parts(), &parts);
    assert_eq!(loaded.end_of_turn(), format.end_of_turn());
    assert_eq!(loaded.vocabulary_size(), format.vocabulary_size());
}

#[test]
fn every_file_may_name_an_end_of_turn() {
    let format = toy::format(toy::CHATML);
    let (turn, text) = (
        toy::special(&format, "<|im_end|>"),
        toy::special(&format, "<|endoftext|>"),
    );
    assert_eq!(format.end_of_turn(), [turn, text]);

    let mut parts = parts();
    parts.generation_config = Some(json!({"eos_token_id": [text, 3]}).to_string());
    let format = ChatFormat::from_parts(parts).unwrap();
    assert_eq!(format.end_of_turn(), [turn, text, 3]);

    // A template that can't be tried out is searched for the tokens that are known to end turns.
    let raising = format!("{{{{ raise_exception('no') }}}}{}", toy::CHATML);
    let format = ChatFormat::from_parts(with_config(|c| c["chat_template"] = json!(raising)));
    assert_eq!(format.unwrap().end_of_turn(), [text, turn]);
}

#[test]
fn special_tokens_are_texts_or_objects() {
    for eos in [
        json!("<|endoftext|>"),
        json!({"content": "<|endoftext|>", "special": true}),
    ] {
        let parts = with_config(|config| {
            config["eos_token"] = eos;
            config["bos_token"] = Value::Null;
            config["chat_template"] = json!("{{ bos_token }}|{{ eos_token }}");
        });
        assert_eq!(rendered(parts, None), "|<|endoftext|>");
    }
}

#[test]
fn the_template_is_picked_as_transformers_does() {
    let named = with_config(|config| {
        config["chat_template"] = json!([
            {"name": "default", "template": "default"},
            {"name": "tool_use", "template": "with tools"},
            {"name": "rag", "template": "{% broken"},
        ]);
    });
    let tools = [json!({"name": "tool"})];
    assert_eq!(rendered(named.clone(), None), "default");
    assert_eq!(rendered(named.clone(), Some(&[])), "default");
    assert_eq!(rendered(named.clone(), Some(&tools)), "with tools");
    let mut apart = named;
    apart.chat_template = Some("apart".to_owned());
    assert_eq!(rendered(apart, Some(&tools)), "apart");
}

#[test]
fn tokens_that_only_the_configuration_names_are_added() {
    let size = toy::format(toy::CHATML).vocabulary_size();
    let added = |id: usize| {
        with_config(|config| {
            config["added_tokens_decoder"] =
                json!({id.to_string(): {"content": "<|more|>", "special": true}});
        })
    };
    let format = ChatFormat::from_parts(added(size)).unwrap();
    assert_eq!(toy::special(&format, "<|more|>") as usize, size);
    assert_eq!(format.vocabulary_size(), size + 1);
    let error = ChatFormat::from_parts(added(size + 5)).unwrap_err();
    assert!(error.to_string().contains("`<|more|>`"), "{error}");
}

#[test]
fn a_vocabulary_with_holes_ends_behind_its_greatest_id() {
    let mut parts = parts();
    let size = toy::format(toy::CHATML).vocabulary_size();
    let mut tokenizer: Value = serde_json::from_str(&parts.tokenizer).unwrap();
    tokenizer["model"]["vocab"]["<|endoftext|>"] = json!(size + 9);
    for token in tokenizer["added_tokens"].as_array_mut().unwrap() {
        if token["content"] == "<|endoftext|>" {
            token["id"] = json!(size + 9);
        }
    }
    parts.tokenizer = tokenizer.to_string();
    let format = ChatFormat::from_parts(parts).unwrap();
    assert_eq!(toy::special(&format, "<|endoftext|>") as usize, size + 9);
    assert_eq!(format.vocabulary_size(), size + 10);
}

#[test]
fn an_open_think_in_the_prompt_makes_the_reply_begin_with_thoughts() {
    let template = format!("{}{{{{ '<think>\n' }}}}", toy::CHATML);
    let format = ChatFormat::from_parts(with_config(|c| c["chat_template"] = json!(template)));
    let reply = format.unwrap().parse_reply("hm\n</think>\n\n42");
    assert_eq!(reply.reasoning.as_deref(), Some("hm"));
    assert_eq!(reply.content.as_deref(), Some("42"));
}

#[test]
fn a_checkpoint_without_a_template_says_so_when_messages_come() {
    let parts = with_config(|config| {
        config.as_object_mut().unwrap().remove("chat_template");
    });
    let format = ChatFormat::from_parts(parts).unwrap();
    assert_eq!(
        format
            .decode(&format.encode("abc").unwrap(), false)
            .unwrap(),
        "abc"
    );
    let error = format.render(&[], None, true, &Map::new()).unwrap_err();
    assert_eq!(error.to_string(), "the model has no chat template");
    assert!(error.hint().unwrap().contains("chat_template.jinja"));
}

type Change = fn(&mut ChatFormatParts);

#[test]
fn bad_files_are_named() {
    let (_guard, folder) = folder();
    let error = ChatFormat::load(&folder).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    assert_eq!(error.kind(), TokensErrorKind::Checkpoint);
    assert!(error.hint().is_some());

    let cases: [(Change, &str); 5] = [
        (
            |p| p.tokenizer = "{}".to_owned(),
            "`tokenizer.json` can't be read: ",
        ),
        (
            |p| p.tokenizer_config = "[]".to_owned(),
            "`tokenizer_config.json` can't be read: ",
        ),
        (
            |p| p.tokenizer_config = "{\"chat_template\": 3}".to_owned(),
            "`tokenizer_config.json` can't be read: `chat_template` is neither",
        ),
        (
            |p| p.generation_config = Some("{".to_owned()),
            "`generation_config.json` can't be read: ",
        ),
        (
            |p| p.chat_template = Some("\n{% for %}".to_owned()),
            "the chat template is broken at line 2: ",
        ),
    ];
    for (change, message) in cases {
        let mut bad = parts();
        change(&mut bad);
        let error = ChatFormat::from_parts(bad).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(error.kind(), TokensErrorKind::Checkpoint);
    }
}

#[test]
fn a_folder_that_is_not_there_can_not_be_saved_into() {
    let (_guard, folder) = folder();
    let missing = folder.join("missing");
    let error = toy::format(toy::CHATML).save(&missing).unwrap_err();
    assert!(
        error.to_string().contains("missing/tokenizer.json"),
        "{error}"
    );
}

#[test]
fn messages_that_are_no_messages_are_refused_by_number() {
    let format = toy::format(toy::CHATML);
    for (message, expected) in [
        (
            json!("hi"),
            "message 1: a message is an object with `role` and `content`",
        ),
        (
            json!({"content": "hi"}),
            "message 1: `role` is missing or no text",
        ),
        (
            json!({"role": "user", "content": 3}),
            "message 1: `content` is neither text nor a list of parts",
        ),
        (
            json!({"role": "assistant", "tool_calls": {}}),
            "message 1: `tool_calls` is no list",
        ),
        (
            json!({"role": "assistant", "tool_calls": [1]}),
            "message 1: a tool call is no object",
        ),
        (
            json!({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}),
            "message 1: a tool call has no `function.name`",
        ),
    ] {
        let messages = [json!({"role": "user", "content": "hi"}), message];
        let error = format
            .render(&messages, None, true, &Map::new())
            .unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.kind(), TokensErrorKind::Messages);
    }
}
