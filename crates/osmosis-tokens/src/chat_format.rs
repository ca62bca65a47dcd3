//! A tokenizer with the template that turns messages into its text.

use std::fmt;
use std::fs;
use std::sync::{Arc, OnceLock};

use camino::Utf8Path;
use jiff::civil::DateTime;
use osmosis_core::config::ToolFormat;
use osmosis_core::panics::guarded;
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use crate::format_files::{
    self, CHAT_TEMPLATE, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, Templates,
};
use crate::hermes::{self, ToolsPlace};
use crate::messages::{self, Dialect};
use crate::model_file::read_model_text;
use crate::reply::bare_json::{self, may_be_calls};
use crate::reply::{self, CallStyle, ParsedReply};
use crate::tool_support::{self, ToolSupport};
use crate::{TokenGrammars, TokensError};

/// Tokens that end a turn in families whose template could not be tried out.
const KNOWN_TURN_ENDS: [&str; 5] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
];

/// How a model is talked to: its tokenizer, its chat template, its end-of-turn tokens.
pub struct ChatFormat {
    parts: ChatFormatParts,
    tokenizer: Tokenizer,
    templates: Templates,
    end_of_turn: Vec<u32>,
    turn_end: Option<TurnEnd>,
    opens_thinking: bool,
    call_style: CallStyle,
    tool_format: Option<ToolFormat>,
    /// Where tools are written as text, when the template is not to be given them.
    tools_in_text: Option<ToolsPlace>,
    tool_support: ToolSupport,
    /// Made when they are wanted first: that takes a moment, and few need them.
    grammars: OnceLock<Result<Arc<TokenGrammars>, TokensError>>,
}

/// What is chosen for a model instead of what it brings along.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatSettings {
    /// The text of a chat template.
    pub chat_template: Option<String>,
    /// How tools are written into prompts; `None` leaves it to the template.
    pub tool_format: Option<ToolFormat>,
}

/// The texts a chat format is made of, as they stand in a checkpoint folder.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatFormatParts {
    /// `tokenizer.json`
    pub tokenizer: String,
    /// `tokenizer_config.json`, a JSON object; holds `chat_template` unless it stands apart.
    pub tokenizer_config: String,
    /// `chat_template.jinja`
    pub chat_template: Option<String>,
    /// `generation_config.json`; its `eos_token_id` may name further end-of-turn tokens.
    pub generation_config: Option<String>,
}

/// How the template closes an assistant's turn: a special token, then fixed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TurnEnd {
    pub id: u32,
    pub token: String,
    /// What stands after the token when the conversation ends there.
    pub tail: String,
}

impl fmt::Debug for ChatFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatFormat")
            .field("vocabulary_size", &self.vocabulary_size())
            .field("end_of_turn", &self.end_of_turn)
            .field("turn_end", &self.turn_end)
            .finish_non_exhaustive()
    }
}

impl ChatFormat {
    /// Reads a checkpoint folder in Hugging Face layout.
    pub fn load(folder: &Utf8Path) -> Result<Self, TokensError> {
        Self::load_with(folder, &ChatSettings::default())
    }

    pub fn load_with(folder: &Utf8Path, settings: &ChatSettings) -> Result<Self, TokensError> {
        let read = |name: &str| {
            let path = folder.join(name);
            read_model_text(&path).map_err(|error| TokensError::io(&path, &error))
        };
        let read_if_there = |name: &str| match read(name) {
            Ok(text) => Ok(Some(text)),
            Err(TokensError::Io { missing: true, .. }) => Ok(None),
            Err(error) => Err(error),
        };
        let parts = ChatFormatParts {
            tokenizer: read(TOKENIZER)?,
            tokenizer_config: read_if_there(TOKENIZER_CONFIG)?.unwrap_or_else(|| "{}".to_owned()),
            chat_template: read_if_there(CHAT_TEMPLATE)?,
            generation_config: read_if_there(GENERATION_CONFIG)?,
        };
        Self::from_parts_with(parts, settings)
    }

    pub fn from_parts(parts: ChatFormatParts) -> Result<Self, TokensError> {
        Self::from_parts_with(parts, &ChatSettings::default())
    }

    /// The same with another template or another way to write tools. Both become part of what is saved.
    pub fn from_parts_with(
        mut parts: ChatFormatParts,
        settings: &ChatSettings,
    ) -> Result<Self, TokensError> {
        if let Some(template) = &settings.chat_template {
            parts.chat_template = Some(template.clone());
        }
        let config: Map<String, Value> =
            format_files::parse(TOKENIZER_CONFIG, &parts.tokenizer_config)?;
        let tool_format = match settings {
            ChatSettings {
                tool_format: Some(format),
                ..
            } => Some(*format),
            // The template that was chosen decides how tools are written.
            ChatSettings {
                chat_template: Some(_),
                ..
            } => None,
            ChatSettings { .. } => format_files::kept_tool_format(&config)?,
        };
        let generation: Map<String, Value> = match &parts.generation_config {
            Some(text) => format_files::parse(GENERATION_CONFIG, text)?,
            None => Map::new(),
        };
        let tokenizer = format_files::tokenizer(&parts.tokenizer, &config)?;
        let special_tokens = format_files::special_tokens(&config);
        let templates = format_files::templates(&parts, &config, &special_tokens)?;

        let mut format = Self {
            parts,
            tokenizer,
            templates,
            end_of_turn: Vec::new(),
            turn_end: None,
            opens_thinking: false,
            call_style: CallStyle::Tagged,
            tool_format,
            tools_in_text: None,
            tool_support: ToolSupport::Rendered,
            grammars: OnceLock::new(),
        };
        format.turn_end = format.find_turn_end();
        format.end_of_turn = format.find_end_of_turn(&special_tokens, &generation);
        format.opens_thinking = format
            .render(&[question()], None, true, &Map::new())
            .is_ok_and(|text| text.trim_end().ends_with("<think>"));
        match tool_format {
            Some(ToolFormat::Hermes) => format.tools_in_text = Some(format.find_tools_place()),
            None => format.call_style = format.find_call_style(),
        }
        format.tool_support = tool_support::probe(&|messages, tools, extra| {
            format.render(messages, tools, true, extra)
        });
        Ok(format)
    }

    /// Writes the files that [`load`](Self::load) reads into a folder that is there.
    pub fn save(&self, folder: &Utf8Path) -> Result<(), TokensError> {
        let parts = self.saved_parts()?;
        let files = [
            (TOKENIZER, Some(&parts.tokenizer)),
            (TOKENIZER_CONFIG, Some(&parts.tokenizer_config)),
            (CHAT_TEMPLATE, parts.chat_template.as_ref()),
            (GENERATION_CONFIG, parts.generation_config.as_ref()),
        ];
        for (name, text) in files {
            if let Some(text) = text {
                let path = folder.join(name);
                fs::write(&path, text).map_err(|error| TokensError::io(&path, &error))?;
            }
        }
        Ok(())
    }

    /// The files that it was made of, with the chat template that was chosen.
    pub fn parts(&self) -> &ChatFormatParts {
        &self.parts
    }

    /// The files that bring this format back with `load`: for checkpoints. A tool format that was chosen is in
    /// `tokenizer_config.json`.
    pub fn saved_parts(&self) -> Result<ChatFormatParts, TokensError> {
        let config = &self.parts.tokenizer_config;
        Ok(ChatFormatParts {
            tokenizer_config: format_files::with_tool_format(config, self.tool_format)?,
            ..self.parts.clone()
        })
    }

    /// The same format with a fixed date for templates that ask for today's (`strftime_now`).
    #[must_use]
    pub fn at(mut self, date: DateTime) -> Self {
        let templates = [&mut self.templates.default, &mut self.templates.tool_use];
        for template in templates.into_iter().flatten() {
            template.set_date(date);
        }
        self
    }

    /// What `transformers.apply_chat_template(tokenize=False)` gives. `extra` holds further template
    /// variables (`enable_thinking`, ...).
    ///
    /// Messages come as they are on OpenAI's wire. Before the template sees them, as people who use
    /// `transformers` do it: text parts are joined; fields that are null and empty lists of tool calls
    /// are left out; the arguments of a tool call, a JSON text on the wire, become a mapping, unless the
    /// template can only take text; the content of a message that only calls tools is `none` or the
    /// empty text, whichever the template takes.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, TokensError> {
        if let Some(place) = self.tools_in_text {
            // What is wrong with a message is said of the message as it came.
            messages::prepare(messages, Dialect::ALL[0])?;
            let in_text = hermes::in_text(messages, tools, place);
            return self.render_natively(&in_text, None, add_generation_prompt, extra);
        }
        self.render_natively(messages, tools, add_generation_prompt, extra)
    }

    /// What becomes of the tools of a request in its prompt.
    pub fn tool_support(&self) -> &ToolSupport {
        &self.tool_support
    }

    fn render_natively(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, TokensError> {
        let template = match tools {
            Some([_, ..]) => self.templates.tool_use.as_ref(),
            Some([]) | None => None,
        };
        template
            .or(self.templates.default.as_ref())
            .ok_or(TokensError::NoTemplate)?
            .render(messages, tools, add_generation_prompt, extra)
    }

    /// Ids of a rendered text: special tokens are recognised, none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokensError> {
        let encoding = guarded(|| self.tokenizer.encode_fast(text, false))
            .map_err(TokensError::tokenizer)?
            .map_err(TokensError::tokenizer)?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokensError> {
        guarded(|| self.tokenizer.decode(ids, skip_special))
            .map_err(TokensError::tokenizer)?
            .map_err(TokensError::tokenizer)
    }

    /// The text of one id, special or not; for logprobs.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)?;
        self.decode(&[id], false).ok()
    }

    /// One more than the greatest id.
    pub fn vocabulary_size(&self) -> usize {
        let added = self.tokenizer.get_added_vocabulary();
        let greatest = added.get_added_tokens_decoder().keys().max();
        greatest
            .map_or(0, |id| *id as usize + 1)
            .max(self.tokenizer.get_vocab_size(true))
    }

    /// Sampling one of these ends the assistant's turn. The one that the template writes comes first.
    pub fn end_of_turn(&self) -> &[u32] {
        &self.end_of_turn
    }

    /// A sampled text (end-of-turn token taken off) as content, reasoning and tool calls. A tool call that
    /// is not well formed stays in the content.
    pub fn parse_reply(&self, text: &str) -> ParsedReply {
        reply::parse(text, self.opens_thinking, self.call_style)
    }

    /// Grammars over this tokenizer. The first use takes some tens of milliseconds.
    pub fn grammars(&self) -> Result<Arc<TokenGrammars>, TokensError> {
        let made = self.grammars.get_or_init(|| {
            let end = self.end_of_turn.first().copied();
            let end = end.ok_or_else(|| TokensError::Constraint {
                message: "the model has no token that ends a turn".to_owned(),
            })?;
            TokenGrammars::new(&self.tokenizer, end).map(Arc::new)
        });
        made.clone()
    }

    pub(crate) fn call_style(&self) -> CallStyle {
        self.call_style
    }

    pub(crate) fn opens_thinking(&self) -> bool {
        self.opens_thinking
    }

    /// Whether a text that is still coming may become tool calls as a whole, as Llama 3 writes them. What stands
    /// between tags is known by its tags.
    pub fn may_be_bare_calls(&self, text: &str) -> bool {
        self.call_style == CallStyle::BareJson && may_be_calls(text)
    }

    pub(crate) fn turn_end(&self) -> Option<&TurnEnd> {
        self.turn_end.as_ref()
    }

    /// The system message, where the template shows one.
    fn find_tools_place(&self) -> ToolsPlace {
        const MARK: &str = "osmosis probe instructions";
        let system = json!({"role": "system", "content": MARK});
        let rendered = self.render_natively(&[system, question()], None, true, &Map::new());
        if rendered.is_ok_and(|text| text.contains(MARK)) {
            ToolsPlace::SystemMessage
        } else {
            ToolsPlace::FirstUserMessage
        }
    }

    /// Renders a call and looks at how it is written.
    fn find_call_style(&self) -> CallStyle {
        let (messages, tools) = bare_json::probe();
        let rendered = self.render_natively(&messages, Some(&tools), false, &Map::new());
        match rendered {
            Ok(text) if bare_json::is_bare(&text) => CallStyle::BareJson,
            Ok(_) | Err(_) => CallStyle::Tagged,
        }
    }

    /// Renders a turn and looks at what stands behind its text.
    fn find_turn_end(&self) -> Option<TurnEnd> {
        const ANSWER: &str = "an answer to find";
        let messages = [question(), json!({"role": "assistant", "content": ANSWER})];
        let text = self.render(&messages, None, false, &Map::new()).ok()?;
        let (_, after) = text.rsplit_once(ANSWER)?;
        let ids = self.encode(after).ok()?;
        let id = *ids.first()?;
        let added = self.tokenizer.get_added_vocabulary();
        let token = added.get_added_tokens_decoder().get(&id)?;
        let tail = after.strip_prefix(&token.content)?;
        token.special.then(|| TurnEnd {
            id,
            token: token.content.clone(),
            tail: tail.to_owned(),
        })
    }

    fn find_end_of_turn(
        &self,
        special_tokens: &[(String, Value)],
        generation: &Map<String, Value>,
    ) -> Vec<u32> {
        let mut found: Vec<u32> = self.turn_end.iter().map(|end| end.id).collect();
        let eos = special_tokens.iter().find(|(name, _)| name == "eos_token");
        if let Some((_, Value::String(token))) = eos {
            found.extend(self.tokenizer.token_to_id(token));
        }
        let further = match generation.get("eos_token_id") {
            Some(Value::Array(ids)) => ids.iter().collect(),
            Some(id) => vec![id],
            None => Vec::new(),
        };
        found.extend(
            further
                .into_iter()
                .filter_map(|id| u32::try_from(id.as_u64()?).ok()),
        );
        if self.turn_end.is_none() {
            let added = self.tokenizer.get_added_vocabulary();
            let mentioned = KNOWN_TURN_ENDS.iter().filter(|token| {
                added.is_special_token(token) && self.template_texts().any(|t| t.contains(**token))
            });
            found.extend(mentioned.filter_map(|token| self.tokenizer.token_to_id(token)));
        }
        let mut unique = Vec::new();
        for id in found {
            if !unique.contains(&id) {
                unique.push(id);
            }
        }
        unique
    }

    fn template_texts(&self) -> impl Iterator<Item = &str> {
        [
            Some(self.parts.tokenizer_config.as_str()),
            self.parts.chat_template.as_deref(),
        ]
        .into_iter()
        .flatten()
    }
}

fn question() -> Value {
    json!({"role": "user", "content": "a question"})
}
