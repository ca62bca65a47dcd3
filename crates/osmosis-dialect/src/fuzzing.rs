//! What must hold for any bytes whatever: for the programs in `fuzz/`, and for their seeds in a test.
//!
//! The first byte of an input picks a way, the second one where a stream is cut; the rest is what comes
//! over the wire.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::sse::{EventBuffer, EventTooLarge, SseWatch, StreamEnd, data_of, each_event};
use crate::{Dialect, OutputLimit, ReplyStamp, Translator, Usage, checked, refusal_of, to_chat};

const TRANSLATED: [Dialect; 2] = [Dialect::Responses, Dialect::Messages];

/// A stream says the same wherever the network cuts it, and nothing is made up.
pub fn sse(data: &[u8]) {
    let Some((way, cut, stream)) = opened(data) else {
        return;
    };
    let dialect = Dialect::ALL[usize::from(way % 4)];
    let strip = way & 4 != 0;
    let whole = watched(dialect, strip, std::iter::once(stream));
    let pieces = watched(dialect, strip, stream.chunks(usize::from(cut % 31) + 1));
    assert_eq!(
        (lines(&whole.0), &whole.1, &whole.2),
        (lines(&pieces.0), &pieces.1, &pieces.2),
        "a cut changed what passes"
    );
    let told = &whole.0;
    if !strip || dialect.has_named_events() {
        assert!(stream.starts_with(told), "other bytes than those that came");
    }
    assert!(told.len() <= stream.len());
    assert_eq!(
        each_event(stream).map(<[u8]>::len).sum::<usize>(),
        stream.len()
    );

    let mut buffer = EventBuffer::default();
    let mut events = Vec::new();
    for piece in stream.chunks(usize::from(cut % 31) + 1) {
        assert!(buffer.push(piece).is_ok());
        while let Some(event) = buffer.next() {
            events.extend_from_slice(&event);
        }
    }
    events.extend_from_slice(&buffer.rest());
    assert_eq!(events, stream);
}

/// What is said, event by event. Blank lines beyond the one that ends an event say nothing, and may
/// go with the event before or after them.
fn lines(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut events = vec![vec![]];
    for line in stream.split_inclusive(|byte| *byte == b'\n') {
        if line.trim_ascii_end().is_empty() {
            events.push(vec![]);
        } else if let Some(event) = events.last_mut() {
            event.extend_from_slice(line);
        }
    }
    events.retain(|event| !event.is_empty());
    events
}

/// A request of another dialect becomes a chat request that has messages, or a refusal.
pub fn requests(data: &[u8]) {
    let Ok(text) = checked_text(data) else { return };
    for dialect in Dialect::ALL {
        match to_chat(dialect, text, OutputLimit::default(), ReplyStamp::default()) {
            Ok(translated) => {
                let chat = object(&translated.request);
                let messages = chat.get("messages").and_then(Value::as_array);
                assert!(messages.is_some_and(|messages| !messages.is_empty()));
            }
            Err(refusal) => assert!(!refusal.message().is_empty()),
        }
    }
}

/// A chat reply, whole or streamed, becomes one of the caller's dialect, or can't be read.
pub fn replies(data: &[u8]) {
    let Some((way, cut, reply)) = opened(data) else {
        return;
    };
    let dialect = TRANSLATED[usize::from(way % 2)];
    if let Ok(whole) = translator(dialect).whole(reply) {
        object(&whole);
    }
    let refusal = refusal_of(dialect, 400, Bytes::copy_from_slice(reply));
    if dialect == Dialect::Messages {
        object(&refusal);
    }
    let whole = streamed(dialect, std::iter::once(reply));
    let pieces = streamed(dialect, reply.chunks(usize::from(cut % 31) + 1));
    if let (Some(whole), Some(pieces)) = (whole, pieces) {
        assert_eq!(told(&whole), told(&pieces), "a cut changed what is said");
    }
}

/// The events of a stream, without ids and times: those that a server left out are made up.
fn told(stream: &[u8]) -> Vec<Value> {
    let mut events: Vec<Value> = each_event(stream)
        .map(|event| Value::Object(object(data_of(event).unwrap_or_default())))
        .collect();
    events.iter_mut().for_each(scrub);
    events
}

fn scrub(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(scrub),
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "id" | "item_id" | "call_id" | "created_at" => *value = Value::Null,
                    _ => scrub(value),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Two bytes that decide, and the rest.
fn opened(data: &[u8]) -> Option<(u8, u8, &[u8])> {
    let (&way, rest) = data.split_first()?;
    let (&cut, rest) = rest.split_first()?;
    Some((way, cut, rest))
}

fn checked_text(data: &[u8]) -> Result<&str, ()> {
    // Whoever takes a body apart has checked it before.
    checked(&Bytes::copy_from_slice(data)).map_err(|_| ())?;
    std::str::from_utf8(data).map_err(|_| ())
}

/// What passed, how it ended, and what it says was used.
type Watched = (Vec<u8>, Result<StreamEnd, EventTooLarge>, Option<Usage>);

fn watched<'a>(dialect: Dialect, strip: bool, pieces: impl Iterator<Item = &'a [u8]>) -> Watched {
    let mut watch = SseWatch::new(dialect, strip);
    let mut told = Vec::new();
    for piece in pieces {
        match watch.push(&Bytes::copy_from_slice(piece)) {
            Ok(passed) => told.extend_from_slice(&passed),
            Err(error) => return (told, Err(error), watch.usage()),
        }
    }
    let (last, end) = watch.finish();
    told.extend_from_slice(&last);
    (told, Ok(end), watch.usage())
}

fn translator(dialect: Dialect) -> Translator {
    let body = r#"{"model":"m","input":"hi","messages":[{"role":"user","content":"hi"}]}"#;
    match to_chat(dialect, body, OutputLimit::default(), ReplyStamp::default()) {
        Ok(translated) => translated.translator,
        Err(refusal) => unreachable!("a plain request was refused: {}", refusal),
    }
}

/// What a caller gets of a stream; `None` when it can't be read.
fn streamed<'a>(dialect: Dialect, pieces: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut watch = SseWatch::new(Dialect::ChatCompletions, false);
    let mut translator = translator(dialect);
    let mut told = Vec::new();
    for piece in pieces {
        let passed = watch.push(&Bytes::copy_from_slice(piece)).ok()?;
        told.extend_from_slice(&translator.push(&passed).ok()?);
    }
    let (last, _) = watch.finish();
    told.extend_from_slice(&translator.push(&last).ok()?);
    told.extend_from_slice(&translator.finish());
    Some(told)
}

fn object(json: &[u8]) -> Map<String, Value> {
    match serde_json::from_slice(json) {
        Ok(object) => object,
        Err(error) => unreachable!("{error}: {}", String::from_utf8_lossy(json)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../../fuzz/run_seeds.rs");

    #[test]
    fn every_seed_of_the_fuzzers_and_its_changes_pass() {
        run_seeds(&[("sse", sse), ("requests", requests), ("replies", replies)]);
    }
}
