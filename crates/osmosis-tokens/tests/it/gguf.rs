//! Tokenizers from GGUF metadata, compared with the ones that were published.

use osmosis_testkit::published_models::{PublishedTokenizer, smollm2_gguf};
use osmosis_tokens::{ChatFormat, GgufVocabulary, TokensErrorKind};
use serde_json::{Map, Value, json};

use crate::gguf_metadata;
use crate::published::format;

const TEXT: &str = "<|im_start|>user\nIt's 1234567 o'clock, DON'T panic…  世界 👩‍👩‍👧 e\u{301}\r\n\n\tx = [1, 22, 333]\n\n\n   <|im_end|><|eot_id|><|begin_of_text|> trailing  ";

/// What a conversion to GGUF makes of a `tokenizer.json`.
fn vocabulary(format: &ChatFormat, pre: &str) -> GgufVocabulary {
    let json: Value = serde_json::from_str(&format.parts().tokenizer).unwrap();
    let size = format.vocabulary_size();
    let mut tokens: Vec<String> = (0..size).map(|id| format!("[PAD{id}]")).collect();
    let mut token_types = vec![5; size];
    for (token, id) in json["model"]["vocab"].as_object().unwrap() {
        let id = usize::try_from(id.as_u64().unwrap()).unwrap();
        tokens[id].clone_from(token);
        token_types[id] = 1;
    }
    for token in json["added_tokens"].as_array().unwrap() {
        let id = usize::try_from(token["id"].as_u64().unwrap()).unwrap();
        token["content"]
            .as_str()
            .unwrap()
            .clone_into(&mut tokens[id]);
        token_types[id] = if token["special"] == true { 3 } else { 4 };
    }
    let merges = json["model"]["merges"].as_array().unwrap().iter();
    GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens,
        token_types,
        merges: merges
            .map(|merge| match merge {
                Value::String(text) => text.clone(),
                pair => format!(
                    "{} {}",
                    pair[0].as_str().unwrap(),
                    pair[1].as_str().unwrap()
                ),
            })
            .collect(),
        bos: None,
        eos: Some(format.end_of_turn()[0]),
        unknown: None,
        add_bos: false,
        chat_template: Some("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}".to_owned()),
    }
}

#[test]
fn a_gguf_vocabulary_gives_the_ids_of_the_published_tokenizer() {
    for (family, pre) in [
        (PublishedTokenizer::Qwen25, "qwen2"),
        (PublishedTokenizer::Llama3, "llama-bpe"),
    ] {
        let published = format(family);
        let ours = ChatFormat::from_gguf(vocabulary(&published, pre)).unwrap();
        assert_eq!(
            ours.encode(TEXT).unwrap(),
            published.encode(TEXT).unwrap(),
            "{pre}"
        );
        assert_eq!(ours.end_of_turn()[0], published.end_of_turn()[0]);
    }
}

#[test]
fn a_format_from_gguf_comes_back_from_a_checkpoint_folder() {
    let published = format(PublishedTokenizer::Qwen25);
    let ours = ChatFormat::from_gguf(vocabulary(&published, "smollm")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(folder.path()).unwrap();
    ours.save(folder).unwrap();
    let loaded = ChatFormat::load(folder).unwrap();
    assert_eq!(loaded.parts(), ours.parts());
    assert_eq!(loaded.encode(TEXT).unwrap(), ours.encode(TEXT).unwrap());
    assert_eq!(loaded.end_of_turn(), ours.end_of_turn());
}

type Change = fn(&mut GgufVocabulary);

#[test]
fn vocabularies_that_are_not_understood_are_refused_by_name() {
    let good = GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("smollm".to_owned()),
        tokens: vec!["a".to_owned(), "b".to_owned(), "<end>".to_owned()],
        token_types: vec![1, 1, 3],
        merges: vec![],
        bos: None,
        eos: Some(2),
        unknown: None,
        add_bos: false,
        chat_template: None,
    };
    let format = ChatFormat::from_gguf(good.clone()).unwrap();
    assert_eq!(format.encode("ab<end>").unwrap(), [0, 1, 2]);

    let cases: [(Change, &str); 7] = [
        (|v| v.model = "llama".to_owned(), "tokenizer model `llama`"),
        (
            |v| v.pre = Some("tekken".to_owned()),
            "splitting rules `tekken`",
        ),
        (|v| v.pre = None, "tokenizer.ggml.pre"),
        (|v| v.token_types.truncate(1), "3 tokens have 1 types"),
        (|v| v.tokens[1] = "a".to_owned(), "`a` stands there twice"),
        (|v| v.merges.push("ab".to_owned()), "merge `ab`"),
        (|v| v.eos = Some(9), "`eos_token` is 9"),
    ];
    for (change, message) in cases {
        let mut bad = good.clone();
        change(&mut bad);
        let error = ChatFormat::from_gguf(bad).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.kind(), TokensErrorKind::Checkpoint);
        assert!(error.hint().is_some());
    }
}

#[test]
fn smollm2_is_understood_from_its_gguf_file() {
    let metadata = gguf_metadata::read(&smollm2_gguf());
    let entry = |name: &str| metadata[&format!("tokenizer.{name}")].clone();
    let format = ChatFormat::from_gguf(GgufVocabulary {
        model: entry("ggml.model").as_str().unwrap().to_owned(),
        pre: entry("ggml.pre").as_str().map(str::to_owned),
        tokens: serde_json::from_value(entry("ggml.tokens")).unwrap(),
        token_types: serde_json::from_value(entry("ggml.token_type")).unwrap(),
        merges: serde_json::from_value(entry("ggml.merges")).unwrap(),
        bos: serde_json::from_value(entry("ggml.bos_token_id")).unwrap(),
        eos: serde_json::from_value(entry("ggml.eos_token_id")).unwrap(),
        unknown: serde_json::from_value(entry("ggml.unknown_token_id")).unwrap(),
        add_bos: false,
        chat_template: entry("chat_template").as_str().map(str::to_owned),
    })
    .unwrap();
    assert_eq!(format.vocabulary_size(), 49152);
    assert_eq!(format.end_of_turn(), [2]);
    assert_eq!(format.token_text(2).as_deref(), Some("<|im_end|>"));
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "What is 123 plus 4?"}),
    ];
    let text = format.render(&messages, None, true, &Map::new()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 123 plus 4?<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = format.encode(&text).unwrap();
    assert_eq!(format.decode(&ids, false).unwrap(), text);
    assert_eq!(ids[0], 1, "<|im_start|>");
    assert_eq!(
        format.encode("123").unwrap().len(),
        3,
        "each digit is a token"
    );
}
