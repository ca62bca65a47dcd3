//! Watches a stream of server-sent events go by: whole events pass on at once and untouched, the usage
//! is noted, and an event that only the gateway asked for is left out.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;
use serde::Deserialize;

use super::{data_of, end_of_first_event, lines_of};
use crate::Dialect;
use crate::dialect::Milestone;
use crate::usage::{Usage, usage_in};

/// An event beyond this is not one.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// What is said of a server whose event is larger.
pub const LARGE_EVENT: &str = "sent an event of more than 16 MiB";
const _: () = assert!(MAX_EVENT_BYTES == 16 << 20, "the text names it");

// Made once: every event of every stream is searched.
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));
static FINISH_REASON: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(b"\"finish_reason\""));

/// See the module.
#[derive(Debug)]
pub struct SseWatch {
    /// The beginning of an event whose end has not come yet.
    held: BytesMut,
    /// Of what comes.
    dialect: Dialect,
    strip_usage: bool,
    /// How many events have passed.
    events: u64,
    usage: Option<Usage>,
    finish_seen: bool,
    done: bool,
    error: Option<String>,
}

/// How a stream ended.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamEnd {
    Whole,
    /// The upstream reported an error within the stream.
    Reported(String),
    CutShort,
}

/// An event without end.
#[derive(Debug, PartialEq, Eq)]
pub struct EventTooLarge;

impl SseWatch {
    pub fn new(dialect: Dialect, strip_usage: bool) -> Self {
        Self {
            held: BytesMut::new(),
            dialect,
            strip_usage,
            events: 0,
            usage: None,
            finish_seen: false,
            done: false,
            error: None,
        }
    }

    /// Takes what came and returns what can go on: every event that is complete now.
    pub fn push(&mut self, chunk: &Bytes) -> Result<Bytes, EventTooLarge> {
        let complete = if self.held.is_empty() {
            let end = end_of_last_event(chunk, 0);
            self.held.extend_from_slice(&chunk[end..]);
            chunk.slice(..end)
        } else {
            // A blank line may straddle the border: two bytes of it may be here already.
            let searched = self.held.len().saturating_sub(2);
            self.held.extend_from_slice(chunk);
            let end = end_of_last_event(&self.held, searched);
            self.held.split_to(end).freeze()
        };
        if self.held.len() > MAX_EVENT_BYTES {
            return Err(EventTooLarge);
        }
        Ok(self.passed_on(&complete))
    }

    /// The upstream has ended: returns what is still to go on, and how it ended.
    pub fn finish(&mut self) -> (Bytes, StreamEnd) {
        let mut last = Bytes::new();
        if !self.done {
            let rest = self.held.split().freeze();
            // An event without its blank line is no event, but some servers hang up right after this.
            if rest.trim_ascii() == b"data: [DONE]" {
                self.done = true;
                last = rest;
            }
        }
        let end = match self.error.take() {
            Some(message) => StreamEnd::Reported(message),
            None if self.done || self.finish_seen => StreamEnd::Whole,
            None => StreamEnd::CutShort,
        };
        (last, end)
    }

    /// `[DONE]` has been seen; nothing follows it.
    pub fn is_done(&self) -> bool {
        self.done
    }

    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// How many events have passed.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Notes what the events say; the same bytes, unless one of them is left out.
    fn passed_on(&mut self, events: &Bytes) -> Bytes {
        let mut kept: Option<BytesMut> = None;
        let mut at = 0;
        while at < events.len() && !self.done {
            let end = at + end_of_first_event(&events[at..]);
            let event = &events[at..end];
            if self.note(event) {
                if let Some(kept) = &mut kept {
                    kept.extend_from_slice(event);
                }
            } else if kept.is_none() {
                kept = Some(BytesMut::from(&events[..at]));
            }
            at = end;
        }
        match kept {
            Some(kept) => kept.freeze(),
            None => events.slice(..at),
        }
    }

    /// Reads one event; `false` when the caller shall not see it.
    fn note(&mut self, event: &[u8]) -> bool {
        let Some(data) = data_of(event) else {
            return true;
        };
        self.events += 1;
        if data == b"[DONE]" {
            self.done = true;
            return true;
        }
        if self.dialect.has_named_events() {
            self.note_named(event, data);
            return true;
        }
        if data.starts_with(b"{\"error\"") || data.starts_with(b"{ \"error\"") {
            self.error = error_message(data).or(self.error.take());
        }
        self.finish_seen |= says_why_it_finished(data);
        if USAGE.find(data).is_some()
            && let Some(usage) = usage_in(data)
        {
            self.usage = Some(usage);
            return !(self.strip_usage && has_no_choices(data));
        }
        true
    }

    /// Reads an event whose name says what it is.
    fn note_named(&mut self, event: &[u8], data: &[u8]) {
        match Milestone::of(&name_of(event, data)) {
            Milestone::None => {}
            Milestone::Finished => self.finish_seen = true,
            Milestone::Failed => {
                self.error = error_message(data)
                    .or_else(|| self.error.take())
                    .or_else(|| Some("it does not say why".to_owned()));
            }
        }
        if USAGE.find(data).is_some()
            && let Some(usage) = usage_in(data)
        {
            self.usage = Some(self.usage.unwrap_or_default().updated_by(usage));
        }
    }
}

/// What an event is called: its own line says it, or else its data.
fn name_of(event: &[u8], data: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Named {
        r#type: String,
    }
    let line = lines_of(event).find_map(|line| line.strip_prefix(b"event:"));
    match line {
        Some(name) => String::from_utf8_lossy(name.trim_ascii()).into_owned(),
        None => serde_json::from_slice::<Named>(data)
            .map_or_else(|_| String::new(), |named| named.r#type),
    }
}

/// `"finish_reason"` with a text, not `null`. Inside of a JSON string the quotes would be escaped.
fn says_why_it_finished(data: &[u8]) -> bool {
    FINISH_REASON.find_iter(data).any(|at| {
        let rest = data[at + FINISH_REASON.needle().len()..].trim_ascii_start();
        rest.strip_prefix(b":")
            .is_some_and(|value| value.trim_ascii_start().starts_with(b"\""))
    })
}

fn has_no_choices(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Shape {
        #[serde(default)]
        choices: Vec<serde::de::IgnoredAny>,
    }
    serde_json::from_slice::<Shape>(data).is_ok_and(|shape| shape.choices.is_empty())
}

fn error_message(data: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(data).ok()?;
    // A chunk that has nothing else, a response that failed, or an event that is the error itself.
    let error = [
        value.get("error"),
        value.pointer("/response/error"),
        value.get("message").map(|_| &value),
    ]
    .into_iter()
    .flatten()
    .find(|error| !error.is_null())?;
    let message = error.get("message").and_then(serde_json::Value::as_str);
    Some(message.map_or_else(|| error.to_string(), str::to_owned))
}

/// Where the last complete event ends, looking from `from` on; 0 when none does.
fn end_of_last_event(bytes: &[u8], from: usize) -> usize {
    let searched = &bytes[from..];
    memchr::memrchr_iter(b'\n', searched)
        .find(|newline| {
            let before = &searched[..*newline];
            before.ends_with(b"\n") || before.ends_with(b"\n\r")
        })
        .map_or(0, |newline| from + newline + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":null}],\"usage\":null}\n\n";
    const FINISH: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\": \"stop\"}]}\n\n";
    const USAGE: &str =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n";
    const COMMENT: &str = ": keep-alive\n\n";
    const RETURNS: &str = "event: x\r\ndata: {\"choices\":[{\"finish_reason\":null}]}\r\n\r\n";
    const DONE: &str = "data: [DONE]\n\n";

    /// Pushes the pieces and returns what came through.
    fn run(watch: &mut SseWatch, pieces: &[&[u8]]) -> (Vec<u8>, StreamEnd) {
        let mut through = Vec::new();
        for piece in pieces {
            through.extend_from_slice(&watch.push(&Bytes::copy_from_slice(piece)).unwrap());
        }
        let (last, end) = watch.finish();
        through.extend_from_slice(&last);
        (through, end)
    }

    #[test]
    fn whole_events_pass_at_once_without_a_copy() {
        let mut watch = SseWatch::new(Dialect::ChatCompletions, true);
        let chunk = Bytes::from_static(CHUNK.as_bytes());
        let passed = watch.push(&chunk).unwrap();
        assert_eq!(passed.as_ptr(), chunk.as_ptr());
        assert_eq!(passed.len(), chunk.len());
    }

    #[test]
    fn the_usage_chunk_is_noted_and_left_out_only_when_nobody_asked_for_it() {
        let stream = [CHUNK, FINISH, USAGE, DONE].concat();
        for strip in [true, false] {
            let mut watch = SseWatch::new(Dialect::ChatCompletions, strip);
            let (through, end) = run(&mut watch, &[stream.as_bytes()]);
            assert_eq!(end, StreamEnd::Whole);
            assert_eq!(watch.usage().unwrap().prompt_tokens, Some(3));
            let expected = if strip {
                [CHUNK, FINISH, DONE].concat()
            } else {
                stream.clone()
            };
            assert_eq!(String::from_utf8(through).unwrap(), expected);
        }
    }

    #[test]
    fn usage_beside_choices_is_never_left_out() {
        let chunk = "data: {\"choices\":[{\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n";
        let mut watch = SseWatch::new(Dialect::ChatCompletions, true);
        let (through, _) = run(&mut watch, &[chunk.as_bytes()]);
        assert_eq!(through, chunk.as_bytes());
        assert!(watch.usage().is_some());
    }

    #[test]
    fn the_end_of_a_stream_is_told_apart() {
        let torn = &CHUNK[..40];
        #[rustfmt::skip]
        let cases: &[(&[&str], StreamEnd)] = &[
            (&[CHUNK, FINISH, DONE], StreamEnd::Whole),
            (&[CHUNK, FINISH], StreamEnd::Whole),
            (&[CHUNK, "data: [DONE]"], StreamEnd::Whole),
            (&[CHUNK, "data: [DONE]\n"], StreamEnd::Whole),
            (&[CHUNK, "\ndata: [DONE]"], StreamEnd::Whole),
            (&[CHUNK, COMMENT], StreamEnd::CutShort),
            (&[CHUNK, torn], StreamEnd::CutShort),
            (&[], StreamEnd::CutShort),
            (&[CHUNK, "data: {\"error\":{\"message\":\"out of memory\"}}\n\n", DONE],
             StreamEnd::Reported("out of memory".to_owned())),
            (&["data: {\"error\":\"gone\"}\n\n"], StreamEnd::Reported("\"gone\"".to_owned())),
        ];
        for (events, expected) in cases {
            let stream = events.concat();
            let (_, end) = run(
                &mut SseWatch::new(Dialect::ChatCompletions, true),
                &[stream.as_bytes()],
            );
            assert_eq!(end, *expected, "{stream}");
        }
    }

    #[test]
    fn the_end_of_a_stream_of_named_events_is_told_by_their_names() {
        let named = |name: &str, data: &str| format!("event: {name}\ndata: {data}\n\n");
        let reported = |message: &str| StreamEnd::Reported(message.to_owned());
        #[rustfmt::skip]
        let cases = [
            (Dialect::Responses, named("response.completed", r#"{"type":"response.completed"}"#), StreamEnd::Whole),
            (Dialect::Responses, "data: {\"type\":\"response.incomplete\"}\n\n".to_owned(), StreamEnd::Whole),
            (Dialect::Responses, named("response.created", r#"{"note":"response.completed"}"#), StreamEnd::CutShort),
            (Dialect::Responses, named("response.failed", r#"{"response":{"error":{"message":"gone"}}}"#), reported("gone")),
            (Dialect::Responses, named("error", r#"{"code":"x","message":"gone","param":null}"#), reported("gone")),
            (Dialect::Responses, named("error", "{}"), reported("it does not say why")),
            (Dialect::Messages, named("message_stop", r#"{"type":"message_stop"}"#), StreamEnd::Whole),
            (Dialect::Messages, named("message_delta", r#"{"delta":{"stop_reason":"end_turn"}}"#), StreamEnd::CutShort),
            (Dialect::Messages, named("error", r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#), reported("busy")),
        ];
        for (dialect, stream, expected) in cases {
            let mut watch = SseWatch::new(dialect, true);
            let (through, end) = run(&mut watch, &[stream.as_bytes()]);
            assert_eq!((end, watch.events()), (expected, 1), "{stream}");
            assert_eq!(through, stream.as_bytes());
        }
    }

    #[test]
    fn nothing_follows_done() {
        let stream = [CHUNK, DONE, CHUNK].concat();
        let (through, _) = run(
            &mut SseWatch::new(Dialect::ChatCompletions, false),
            &[stream.as_bytes(), b"more\n\n"],
        );
        assert_eq!(String::from_utf8(through).unwrap(), [CHUNK, DONE].concat());
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut watch = SseWatch::new(Dialect::ChatCompletions, true);
        let megabyte = Bytes::from(vec![b'x'; 1 << 20]);
        let refused = (0..20).any(|_| watch.push(&megabyte).is_err());
        assert!(refused);
    }

    proptest! {
        #[test]
        fn where_the_network_cuts_makes_no_difference(
            events in prop::collection::vec(prop::sample::select(&[CHUNK, FINISH, USAGE, COMMENT, RETURNS]), 0..8),
            done in any::<bool>(),
            strip in any::<bool>(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut events = events;
            if done {
                events.push(DONE);
            }
            let stream = events.concat();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            places.push(0);
            places.push(stream.len());
            places.sort_unstable();
            let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &stream.as_bytes()[pair[0]..pair[1]]).collect();

            let mut watch = SseWatch::new(Dialect::ChatCompletions, strip);
            let (through, end) = run(&mut watch, &pieces);
            let expected: String = events.iter().copied().filter(|event| !strip || *event != USAGE).collect();
            prop_assert_eq!(String::from_utf8(through).unwrap(), expected);
            prop_assert_eq!(watch.usage().is_some(), events.contains(&USAGE));
            let whole = done || events.contains(&FINISH);
            prop_assert_eq!(end == StreamEnd::Whole, whole);
        }

        #[test]
        fn no_bytes_make_the_watch_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..10)) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            for dialect in Dialect::ALL {
                run(&mut SseWatch::new(dialect, true), &pieces);
            }
        }

        #[test]
        fn no_line_soup_makes_the_watch_panic(text in r#"(data:|\[DONE\]|"usage"|:|\{|\}|"error"|"finish_reason"|event:|"type"|error|message_stop|\r|\n| ){0,60}"#) {
            for dialect in Dialect::ALL {
                run(&mut SseWatch::new(dialect, true), &[text.as_bytes()]);
            }
        }
    }
}
