//! A small byte-level format, so that trees can be tested without a download.

use osmosis_tokens::{ChatFormat, ChatSettings, GgufVocabulary};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// ChatML, as Qwen2.5 has it.
pub(crate) const CHATML: &str = "\
{%- if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Like ChatML, but an assistant's turn is upper case once a user has spoken after it.
pub(crate) const REWRITING: &str = "\
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- set content = message.content or '' %}
{%- if message.role == 'assistant' and loop.index0 < ns.last_user %}{% set content = content | upper %}{% endif %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Turns that no special token ends.
pub(crate) const OPEN_TURNS: &str = "\
{%- for message in messages %}{{ message.role + ': ' + (message.content or '') + '\n\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

/// Bytes 0 to 255 in some order, five merges, three special tokens.
pub(crate) fn format(template: &str) -> ChatFormat {
    format_with(template, &[])
}

/// With more special tokens.
pub(crate) fn format_with(template: &str, more: &[&str]) -> ChatFormat {
    format_of(template, more, &ChatSettings::default())
}

/// Talked to in another way.
pub(crate) fn format_of(template: &str, more: &[&str], settings: &ChatSettings) -> ChatFormat {
    let mut tokens: Vec<String> = ByteLevel::alphabet().iter().map(char::to_string).collect();
    tokens.sort();
    let merges = ["a b", "ab c", "i m", "Ġ a", "e n"];
    tokens.extend(merges.map(|merge| merge.replace(' ', "")));
    let mut token_types = vec![1; tokens.len()];
    tokens.extend(["<|im_start|>", "<|im_end|>", "<|endoftext|>"].map(str::to_owned));
    let eos = u32::try_from(tokens.len()).unwrap() - 1;
    tokens.extend(more.iter().map(|token| (*token).to_owned()));
    token_types.resize(tokens.len(), 3);
    let vocabulary = GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens,
        token_types,
        merges: merges.map(str::to_owned).to_vec(),
        bos: None,
        eos: Some(eos),
        unknown: None,
        add_bos: false,
        chat_template: Some(template.to_owned()),
    };
    ChatFormat::from_gguf_with(vocabulary, settings).unwrap()
}

/// An id of ordinary text.
pub(crate) fn ordinary(format: &ChatFormat, number: usize) -> u32 {
    u32::try_from(number % (format.vocabulary_size() - 3)).unwrap()
}

pub(crate) fn special(format: &ChatFormat, token: &str) -> u32 {
    format.encode(token).unwrap()[0]
}
