//! A model that needs no weights: every byte is a token, and what is sampled was decided before.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::thread;

use osmosis_core::PolicyVersion;
use osmosis_core::config::ToolFormat;
use osmosis_core::generation::{
    GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_gateway::{TokenPolicy, TokenPolicyOptions};
use osmosis_tokens::{ChatFormat, ChatFormatParts, ChatSettings};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// The first ids after the bytes.
pub(crate) const IM_START: u32 = 256;
pub(crate) const IM_END: u32 = 257;
pub(crate) const CALL: u32 = 258;
pub(crate) const CALL_END: u32 = 259;
const ADDED: [(&str, bool); 6] = [
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<think>", false),
    ("</think>", false),
];

const TEMPLATE: &str = "{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'alien' %}{{ raise_exception('no role for an alien') }}{% endif -%}
<|im_start|>{{ message.role }}
{{ message.content if message.content }}
{%- for call in message.tool_calls %}
<tool_call>
{\"name\": {{ call.function.name | tojson }}, \"arguments\": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{{ mood if mood }}{% endif %}";

/// What byte-level tokenizers write for a byte.
fn letter_of(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if plain(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !plain(*byte)).count();
    char::from_u32(256 + u32::try_from(before).unwrap()).unwrap()
}

pub(crate) fn chat_format() -> ChatFormat {
    format_of(TEMPLATE, None)
}

pub(crate) fn format_of(template: &str, tool_format: Option<ToolFormat>) -> ChatFormat {
    let vocabulary: Map<String, Value> = (0..=255)
        .map(|byte| (letter_of(byte).to_string(), json!(byte)))
        .collect();
    let added: Vec<Value> = (256..)
        .zip(ADDED)
        .map(|(id, (content, special))| {
            json!({"id": id, "content": content, "special": special, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
        "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "post_processor": null, "added_tokens": added, "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "dropout": null,
            "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false},
    });
    let parts = ChatFormatParts {
        tokenizer: tokenizer.to_string(),
        tokenizer_config: json!({"eos_token": "<|im_end|>"}).to_string(),
        chat_template: Some(template.to_owned()),
        generation_config: None,
    };
    let settings = ChatSettings {
        chat_template: None,
        tool_format,
    };
    ChatFormat::from_parts_with(parts, &settings).unwrap()
}

/// The ids of a text, tags as one token each.
pub(crate) fn ids_of(text: &str) -> Vec<u32> {
    chat_format().encode(text).unwrap()
}

/// What the engine says next.
#[derive(Debug)]
pub(crate) enum Line {
    /// These tokens, then the end: `Stop` after an end of turn, else `Length`.
    Ids(Vec<u32>),
    /// These tokens, then an error.
    Fails(Vec<u32>, GenerationError),
    /// Tokens as they are sent; the end when the sender is dropped.
    Sent(mpsc::Receiver<u32>),
    /// The sink is dropped without a word.
    Vanishes,
}

/// What an engine was asked, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) requests: Mutex<Vec<GenerationRequest>>,
    /// How many tokens were sampled for each ended generation, and why it ended.
    pub(crate) ended: Mutex<Vec<(usize, StopReason)>>,
}

/// Says its lines, one for each generation.
#[derive(Debug)]
pub(crate) struct Engine {
    lines: Mutex<VecDeque<Line>>,
    pub(crate) log: Arc<Log>,
    pub(crate) context: usize,
}

impl Engine {
    pub(crate) fn new(lines: impl IntoIterator<Item = Line>) -> Self {
        Self {
            lines: Mutex::new(lines.into_iter().collect()),
            log: Arc::default(),
            context: 2000,
        }
    }

    /// Each text is followed by an end of turn.
    pub(crate) fn saying(texts: &[&str]) -> Self {
        Self::new(texts.iter().map(|text| {
            let mut ids = ids_of(text);
            ids.push(IM_END);
            Line::Ids(ids)
        }))
    }
}

/// What a token's logprob is said to be.
pub(crate) fn logprob_of(id: u32) -> f32 {
    -(id as f32) / 512.0
}

impl TokenEngine for Engine {
    fn context_length(&self) -> usize {
        self.context
    }

    fn version(&self) -> PolicyVersion {
        PolicyVersion(7)
    }

    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>) {
        let line = self.lines.lock().pop_front().unwrap();
        self.log.requests.lock().push(request.clone());
        let log = Arc::clone(&self.log);
        thread::spawn(move || speak(line, &request, sink, &log));
    }
}

fn speak(line: Line, request: &GenerationRequest, mut sink: Box<dyn TokenSink>, log: &Log) {
    let (ids, last): (Box<dyn Iterator<Item = u32>>, _) = match line {
        Line::Ids(ids) => (Box::new(ids.into_iter()), Ok(StopReason::Length)),
        Line::Fails(ids, error) => (Box::new(ids.into_iter()), Err(error)),
        Line::Sent(ids) => (Box::new(ids.into_iter()), Ok(StopReason::Length)),
        Line::Vanishes => return,
    };
    let mut end = last;
    let mut count = 0;
    for id in ids.take(request.max_tokens) {
        let token = SampledToken {
            id,
            logprob: logprob_of(id),
            version: PolicyVersion(7),
            alternatives: (0..request.alternatives)
                .map(|n| (97 + u32::try_from(n).unwrap(), f32::NEG_INFINITY))
                .collect(),
            allowed: None,
        };
        let wanted = sink.token(token);
        count += 1;
        if wanted == ControlFlow::Break(()) {
            end = Ok(StopReason::Cancelled);
            break;
        }
        if request.stop_ids.contains(&id) {
            end = Ok(StopReason::Stop);
            break;
        }
    }
    if let Ok(reason) = end {
        log.ended.lock().push((count, reason));
    }
    sink.end(end);
}

pub(crate) fn options() -> TokenPolicyOptions {
    TokenPolicyOptions {
        model: "toy".to_owned(),
        endpoint: "toy:bytes".to_owned(),
        chat_template: None,
        seed: 11,
        max_prompt_tokens: None,
        max_response_tokens: None,
    }
}

/// A policy, and what its engine was asked.
pub(crate) fn policy(engine: Engine) -> (TokenPolicy, Arc<Log>) {
    policy_with(engine, options())
}

pub(crate) fn policy_with(engine: Engine, options: TokenPolicyOptions) -> (TokenPolicy, Arc<Log>) {
    let log = Arc::clone(&engine.log);
    let policy = TokenPolicy::new(Arc::new(engine), Arc::new(chat_format()), options);
    (policy, log)
}
