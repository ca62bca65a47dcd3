//! What a sampled text says, also while it is still coming: reasoning, content and tool calls are given as
//! soon as nothing that may follow can change them.

use std::sync::Arc;

use osmosis_tokens::{ChatFormat, ParsedReply, ToolCall};
use serde::de::IgnoredAny;

use super::detokenizer::Detokenizer;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// How the answers of one format are read.
#[derive(Debug)]
pub(super) struct Reading {
    chat: Arc<ChatFormat>,
    /// The prompt ends with an open `<think>`.
    begins_in_thought: bool,
    /// Special tokens are no part of the text, unless tags that must be read are among them.
    skip_special: bool,
}

impl Reading {
    pub(super) fn new(chat: Arc<ChatFormat>) -> Self {
        let begins_in_thought = chat.parse_reply("a</think>b").reasoning.is_some();
        let skip_special = [THINK, THINK_END, CALL, CALL_END].iter().all(|tag| {
            let ids = chat.encode(tag).unwrap_or_default();
            chat.decode(&ids, true).is_ok_and(|text| text.contains(tag))
        });
        Self {
            chat,
            begins_in_thought,
            skip_special,
        }
    }

    pub(super) fn chat(&self) -> &ChatFormat {
        &self.chat
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.chat.decode(ids, self.skip_special).unwrap_or_default()
    }

    /// A whole text. Without tools on offer, nothing is a call of one.
    fn parse(&self, text: &str, tools: bool) -> ParsedReply {
        let mut parsed = self.chat.parse_reply(text);
        if tools {
            // Space before a call belongs to the form, and whether a call comes is known too late.
            if let Some(content) = &mut parsed.content {
                let space = content.len() - content.trim_start().len();
                content.drain(..space);
            }
        } else if !parsed.tool_calls.is_empty() {
            let content = self.after_thought(text).unwrap_or(text);
            parsed.content = Some(content.to_owned());
            parsed.tool_calls.clear();
        }
        parsed
    }

    /// What follows the thought a text begins with; `None` when it has none, or none that ends.
    fn after_thought<'t>(&self, text: &'t str) -> Option<&'t str> {
        let start = text.trim_start();
        let thought = match start.strip_prefix(THINK) {
            Some(thought) => thought,
            None if self.begins_in_thought => start,
            None => return None,
        };
        let (_, rest) = thought.split_once(THINK_END)?;
        Some(rest.trim_start_matches('\n'))
    }

    /// Whether a text may still turn out to begin with a thought.
    fn may_be_in_thought(&self, text: &str) -> bool {
        let start = text.trim_start();
        let opens = self.begins_in_thought || start.starts_with(THINK) || THINK.starts_with(start);
        opens && self.after_thought(text).is_none()
    }

    /// The beginning of a text that reads the same whatever follows.
    fn settled<'t>(&self, text: &'t str, tools: bool) -> &'t str {
        if self.may_be_in_thought(text) {
            return "";
        }
        if !tools {
            return text;
        }
        let mut from = text.len() - self.after_thought(text).unwrap_or(text).len();
        if self.chat.may_be_bare_calls(&text[from..]) {
            return text[..from].trim_end();
        }
        while let Some(at) = text[from..].find(CALL) {
            let open = from + at;
            let body = open + CALL.len();
            match call_end(&text[body..]) {
                CallEnd::Unknown => return text[..open].trim_end(),
                CallEnd::At(end) if self.is_call(&text[open..body + end]) => from = body + end,
                CallEnd::At(_) | CallEnd::Never => from = body,
            }
        }
        text[..text.len() - half_tag(text, &[CALL])].trim_end()
    }

    fn is_call(&self, text: &str) -> bool {
        let parsed = self.chat.parse_reply(text);
        parsed.tool_calls.len() == 1 && parsed.content.is_none()
    }
}

enum CallEnd {
    /// Behind the closing tag.
    At(usize),
    /// It has not come yet.
    Unknown,
    /// What stands there is no call, whatever follows.
    Never,
}

/// Where the call that follows an opening tag ends.
fn call_end(body: &str) -> CallEnd {
    let mut values = serde_json::Deserializer::from_str(body).into_iter::<IgnoredAny>();
    match values.next() {
        None => CallEnd::Unknown,
        Some(Err(error)) if error.is_eof() => CallEnd::Unknown,
        Some(Err(_)) => CallEnd::Never,
        Some(Ok(_)) => {
            let rest = body.get(values.byte_offset()..).unwrap_or_default();
            let rest = rest.trim_start();
            if rest.starts_with(CALL_END) {
                CallEnd::At(body.len() - rest.len() + CALL_END.len())
            } else if CALL_END.starts_with(rest) {
                CallEnd::Unknown
            } else {
                CallEnd::Never
            }
        }
    }
}

/// How many bytes at the end of a text are the beginning of one of these, and no more than that.
fn half_tag<T: AsRef<str>>(text: &str, tags: &[T]) -> usize {
    let half = |tag: &str| {
        (1..tag.len())
            .rev()
            .filter(|length| tag.is_char_boundary(*length))
            .find(|length| text.ends_with(&tag[..*length]))
            .unwrap_or(0)
    };
    tags.iter().map(|tag| half(tag.as_ref())).max().unwrap_or(0)
}

/// Something that was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Reasoning(String),
    Content(String),
    ToolCall(ToolCall),
}

/// Reads one answer, token by token.
#[derive(Debug)]
pub(super) struct Reader {
    reading: Arc<Reading>,
    tools: bool,
    stops: Arc<[String]>,
    detokenizer: Detokenizer,
    /// What was given so far.
    said: ParsedReply,
}

impl Reader {
    pub(super) fn new(reading: Arc<Reading>, tools: bool, stops: Arc<[String]>) -> Self {
        Self {
            reading,
            tools,
            stops,
            detokenizer: Detokenizer::default(),
            said: ParsedReply::default(),
        }
    }

    pub(super) fn push(&mut self, id: u32) {
        if !self.reading.chat.end_of_turn().contains(&id) {
            self.detokenizer.push(id, |ids| self.reading.decode(ids));
        }
    }

    /// What can be given by now.
    pub(super) fn news(&mut self) -> Vec<Said> {
        let text = self.detokenizer.text();
        let text = &text[..text.len() - half_tag(text, &self.stops)];
        let settled = self.reading.settled(text, self.tools);
        if settled.is_empty() {
            return Vec::new();
        }
        let parsed = self.reading.parse(settled, self.tools);
        self.give(parsed)
    }

    /// No token follows, and the text ends at `cut` when that is given: what has not been given yet.
    pub(super) fn finish(&mut self, cut: Option<usize>) -> Vec<Said> {
        self.detokenizer.finish(|ids| self.reading.decode(ids));
        let text = self.detokenizer.text();
        let text = cut.and_then(|cut| text.get(..cut)).unwrap_or(text);
        let parsed = self.reading.parse(text, self.tools);
        self.give(parsed)
    }

    /// All that was given.
    pub(super) fn said(&self) -> &ParsedReply {
        &self.said
    }

    fn give(&mut self, parsed: ParsedReply) -> Vec<Said> {
        let mut news = Vec::new();
        if let Some(more) = grow(&mut self.said.reasoning, parsed.reasoning) {
            news.push(Said::Reasoning(more));
        }
        if let Some(more) = grow(&mut self.said.content, parsed.content) {
            news.push(Said::Content(more));
        }
        let known = self.said.tool_calls.len().min(parsed.tool_calls.len());
        for call in &parsed.tool_calls[known..] {
            self.said.tool_calls.push(call.clone());
            news.push(Said::ToolCall(call.clone()));
        }
        news
    }
}

/// Takes over what a text has become; returns what is new. What was given is never taken back.
fn grow(said: &mut Option<String>, now: Option<String>) -> Option<String> {
    let now = now.filter(|now| !now.is_empty())?;
    let said = said.get_or_insert_default();
    let more = now.strip_prefix(said.as_str())?.to_owned();
    said.push_str(&more);
    (!more.is_empty()).then_some(more)
}

/// Finds where a text that comes token by token has to end.
#[derive(Debug)]
pub(super) struct StopScan {
    reading: Arc<Reading>,
    stops: Arc<[String]>,
    longest: usize,
    detokenizer: Detokenizer,
    searched: usize,
}

impl StopScan {
    /// `None` when there is nothing to look for.
    pub(super) fn new(reading: Arc<Reading>, stops: Arc<[String]>) -> Option<Self> {
        let longest = stops.iter().map(String::len).max()?;
        Some(Self {
            reading,
            stops,
            longest,
            detokenizer: Detokenizer::default(),
            searched: 0,
        })
    }

    /// Where the text ends, once it does.
    pub(super) fn push(&mut self, id: u32) -> Option<usize> {
        if self.reading.chat.end_of_turn().contains(&id) {
            return None;
        }
        self.detokenizer.push(id, |ids| self.reading.decode(ids));
        self.search()
    }

    /// No token follows.
    pub(super) fn finish(&mut self) -> Option<usize> {
        self.detokenizer.finish(|ids| self.reading.decode(ids));
        self.search()
    }

    fn search(&mut self) -> Option<usize> {
        let text = self.detokenizer.text();
        // A stop may have begun in what was searched before.
        let mut from = self.searched.saturating_sub(self.longest);
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        self.searched = text.len();
        let found = self.stops.iter().filter_map(|stop| text[from..].find(stop));
        found.min().map(|at| from + at)
    }
}
