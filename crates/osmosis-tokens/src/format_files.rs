//! What the files of a checkpoint say about its format.

use osmosis_core::config::ToolFormat;
use osmosis_core::panics::guarded;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use crate::template::Template;
use crate::{ChatFormatParts, TokensError, trial};

pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";

/// What the tokenizer's configuration may name; templates read them as variables.
const SPECIAL_TOKENS: [&str; 8] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
];

/// Where the tool format that a model was trained with is kept. Other programs read over it.
const TOOL_FORMAT: &str = "osmosis_tool_format";

/// A model's templates; the second is for requests with tools.
#[derive(Debug)]
pub(crate) struct Templates {
    pub default: Option<Template>,
    pub tool_use: Option<Template>,
}

pub(crate) fn parse<T: serde::de::DeserializeOwned>(
    file: &'static str,
    text: &str,
) -> Result<T, TokensError> {
    serde_json::from_str(text).map_err(|error| TokensError::Unreadable {
        file,
        message: error.to_string(),
    })
}

pub(crate) fn tokenizer(text: &str, config: &Map<String, Value>) -> Result<Tokenizer, TokensError> {
    let unreadable = |message: String| TokensError::Unreadable {
        file: TOKENIZER,
        message,
    };
    let mut tokenizer: Tokenizer = guarded(|| text.parse())
        .map_err(|panic| unreadable(panic.to_string()))?
        .map_err(|error: tokenizers::Error| unreadable(error.to_string()))?;
    // Both would change ids silently; transformers turns them off for templates as well.
    tokenizer.with_padding(None);
    tokenizer
        .with_truncation(None)
        .map_err(|error| unreadable(error.to_string()))?;

    // Tokens that only the configuration names, in order of their ids.
    let Some(Value::Object(declared)) = config.get("added_tokens_decoder") else {
        return Ok(tokenizer);
    };
    let mut missing: Vec<(u32, AddedToken)> = declared
        .iter()
        .filter_map(|(id, token)| {
            let content = token["content"].as_str()?;
            let flag = |name: &str| token[name].as_bool().unwrap_or(false);
            tokenizer.token_to_id(content).is_none().then_some(())?;
            let added = AddedToken::from(content, flag("special"))
                .lstrip(flag("lstrip"))
                .rstrip(flag("rstrip"))
                .single_word(flag("single_word"))
                .normalized(flag("normalized"));
            Some((id.parse().ok()?, added))
        })
        .collect();
    missing.sort_by_key(|(id, _)| *id);
    for (id, token) in missing {
        let content = token.content.clone();
        guarded(|| tokenizer.add_tokens([token]))
            .map_err(|panic| unreadable(panic.to_string()))?
            .map_err(|error| unreadable(error.to_string()))?;
        let given = tokenizer.token_to_id(&content);
        if given != Some(id) {
            return Err(TokensError::Unreadable {
                file: TOKENIZER_CONFIG,
                message: format!(
                    "`added_tokens_decoder` gives `{content}` the id {id}, but it does not follow the ids of `{TOKENIZER}`"
                ),
            });
        }
    }
    Ok(tokenizer)
}

/// The special tokens of the configuration, each as its text.
pub(crate) fn special_tokens(config: &Map<String, Value>) -> Vec<(String, Value)> {
    let text = |value: &Value| match value {
        Value::String(_) => Some(value.clone()),
        Value::Object(fields) => fields.get("content").filter(|c| c.is_string()).cloned(),
        _ => None,
    };
    SPECIAL_TOKENS
        .iter()
        .filter_map(|name| {
            let value = match config.get(*name)? {
                Value::Array(tokens) => Value::Array(tokens.iter().filter_map(text).collect()),
                token => text(token)?,
            };
            Some(((*name).to_owned(), value))
        })
        .collect()
}

pub(crate) fn templates(
    parts: &ChatFormatParts,
    config: &Map<String, Value>,
    special_tokens: &[(String, Value)],
) -> Result<Templates, TokensError> {
    let compile = |source: &str| {
        trial::passed(source, special_tokens)?;
        Template::new(source, special_tokens).map(Some)
    };
    let mut templates = Templates {
        default: None,
        tool_use: None,
    };
    if let Some(source) = &parts.chat_template {
        templates.default = compile(source)?;
        return Ok(templates);
    }
    match config.get("chat_template") {
        None | Some(Value::Null) => {}
        Some(Value::String(source)) => templates.default = compile(source)?,
        Some(Value::Array(named)) => {
            for entry in named {
                match (entry["name"].as_str(), entry["template"].as_str()) {
                    (Some("default"), Some(source)) => templates.default = compile(source)?,
                    (Some("tool_use"), Some(source)) => templates.tool_use = compile(source)?,
                    (_, Some(_)) => {}
                    (_, None) => return Err(bad_template()),
                }
            }
        }
        Some(_) => return Err(bad_template()),
    }
    Ok(templates)
}

/// The tool format that is part of the model.
pub(crate) fn kept_tool_format(
    config: &Map<String, Value>,
) -> Result<Option<ToolFormat>, TokensError> {
    let Some(kept) = config.get(TOOL_FORMAT) else {
        return Ok(None);
    };
    let mut known = ToolFormat::NAMED.iter();
    let known = known.find(|(word, _)| kept == word);
    known
        .map(|(_, format)| Some(*format))
        .ok_or_else(|| TokensError::Unreadable {
            file: TOKENIZER_CONFIG,
            message: format!("`{TOOL_FORMAT}` is {kept}, which this version does not have"),
        })
}

/// The text of a configuration that keeps this tool format.
pub(crate) fn with_tool_format(
    config: &str,
    format: Option<ToolFormat>,
) -> Result<String, TokensError> {
    let mut fields: Map<String, Value> = parse(TOKENIZER_CONFIG, config)?;
    let wanted = format.map(|format| Value::from(format.as_str()));
    if fields.get(TOOL_FORMAT) == wanted.as_ref() {
        return Ok(config.to_owned());
    }
    match wanted {
        Some(format) => fields.insert(TOOL_FORMAT.to_owned(), format),
        None => fields.remove(TOOL_FORMAT),
    };
    Ok(format!("{:#}\n", Value::Object(fields)))
}

fn bad_template() -> TokensError {
    TokensError::Unreadable {
        file: TOKENIZER_CONFIG,
        message: "`chat_template` is neither a text nor a list of `{name, template}`".to_owned(),
    }
}
