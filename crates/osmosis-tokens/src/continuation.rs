//! Whether the ids of an earlier call can begin a new prompt.

use serde_json::{Map, Value};

use crate::ChatFormat;
use crate::chat_format::TurnEnd;
use crate::fingerprint;
use crate::tree::Finished;

/// A request with its rendering.
pub(crate) struct Conversation<'a> {
    pub format: &'a ChatFormat,
    pub messages: &'a [Value],
    pub tools: Option<&'a [Value]>,
    pub extra: &'a Map<String, Value>,
    pub rendered: &'a str,
}

/// What was found out about continuing a call whose reply is a certain message.
pub(crate) struct Proof<'a> {
    pub end: &'a TurnEnd,
    end_of_turn: &'a [u32],
    /// The rendering up to and with the reply's end-of-turn token.
    turn: String,
    /// What follows that token.
    pub suffix: Vec<u32>,
}

impl<'a> Conversation<'a> {
    /// Whether the template lets a call be continued whose reply is message `last`; an error is the reason
    /// why not.
    pub(crate) fn prove(&self, last: usize) -> Result<Proof<'a>, String> {
        let end = self
            .format
            .turn_end()
            .ok_or("the template does not end turns with a special token")?;
        let mut turn = self
            .format
            .render(&self.messages[..=last], self.tools, false, self.extra)
            .map_err(|error| format!("the conversation up to message {last}: {error}"))?;
        let closed = turn
            .strip_suffix(&end.tail)
            .filter(|text| text.ends_with(&end.token))
            .map(str::len);
        let Some(length) = closed else {
            return Err(format!(
                "the template does not end message {last} with `{}`",
                end.token
            ));
        };
        turn.truncate(length);
        let Some(suffix) = self.rendered.strip_prefix(turn.as_str()) else {
            return Err(format!(
                "the template renders earlier turns differently: the text up to message {last} changes when more follows"
            ));
        };
        let encoded = self
            .format
            .encode(&format!("{}{suffix}", end.token))
            .map_err(|error| error.to_string())?;
        match encoded.split_first() {
            Some((first, suffix)) if *first == end.id => Ok(Proof {
                end,
                end_of_turn: self.format.end_of_turn(),
                turn,
                suffix: suffix.to_vec(),
            }),
            _ => Err(format!("the tokenizer does not keep `{}` apart", end.token)),
        }
    }
}

impl Proof<'_> {
    /// The rendering up to the reply's end-of-turn token.
    pub(crate) fn said(&self) -> &str {
        &self.turn[..self.turn.len() - self.end.token.len()]
    }

    /// Whether the end-of-turn token must be added to what was sampled; an error is the reason why the
    /// call can't be continued.
    pub(crate) fn holds_for(
        &self,
        earlier: &Finished,
        same_prompt: bool,
        reply: &Value,
    ) -> Result<bool, String> {
        if !same_prompt {
            return Err(format!(
                "the template renders earlier turns differently: the prompt of call {} does not begin the new one",
                earlier.call
            ));
        }
        if let (Some(now), Some(then)) = (fingerprint::reasoning(reply), &earlier.reasoning)
            && now.trim() != then.trim()
        {
            return Err(format!(
                "history rewritten: the reasoning of call {} differs",
                earlier.call
            ));
        }
        match earlier.sampled.last() {
            Some(last) if *last == self.end.id => Ok(false),
            Some(last) if self.end_of_turn.contains(last) => Err(format!(
                "call {} ended with another token than `{}`",
                earlier.call, self.end.token
            )),
            Some(_) | None => Ok(true),
        }
    }
}
