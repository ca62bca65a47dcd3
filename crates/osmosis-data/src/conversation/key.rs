//! What makes two turns the same, for finding the call that another continues.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::Value;

use super::{Part, Turn};

/// How closely ids are looked at: frameworks may give tool calls ids of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ids {
    Matter,
    DoNotMatter,
}

/// For each turn, a key of all up to and with it. Reasoning is no part of it: most agents do not send
/// it back.
pub(super) fn beginnings(before: u64, turns: &[Turn], ids: Ids) -> Vec<u64> {
    let mut key = before;
    turns
        .iter()
        .map(|turn| {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            hash_turn(turn, ids, &mut hasher);
            key = hasher.finish();
            key
        })
        .collect()
}

fn hash_turn(turn: &Turn, ids: Ids, hasher: &mut DefaultHasher) {
    turn.role.hash(hasher);
    let mut text = String::new();
    for part in &turn.content {
        match part {
            Part::Text(part) => text.push_str(part),
            Part::Image(url) => url.hash(hasher),
            Part::Other(value) => value.to_string().hash(hasher),
        }
    }
    turn.token_ids.hash(hasher);
    // Null, an empty text and a text with a line end are the same reply to many frameworks.
    text.trim().hash(hasher);
    for call in &turn.tool_calls {
        call.name.hash(hasher);
        arguments(&call.arguments).hash(hasher);
        if ids == Ids::Matter {
            call.id.hash(hasher);
        }
    }
    if ids == Ids::Matter {
        turn.answers.hash(hasher);
    }
}

/// JSON without its spaces.
fn arguments(text: &str) -> String {
    if text.trim().is_empty() {
        return "{}".to_owned();
    }
    serde_json::from_str::<Value>(text).map_or_else(|_| text.to_owned(), |value| value.to_string())
}
