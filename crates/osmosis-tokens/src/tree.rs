//! The calls of one sample as a prefix tree.

use std::collections::HashMap;

use osmosis_core::generation::LogprobsOf;
use osmosis_core::{PolicyVersion, SampleId};
use serde_json::{Map, Value};

use crate::continuation::Conversation;
use crate::fingerprint::{self, Fingerprint};
use crate::ids_index::IdsIndex;
use crate::rows::{self, CallRow, TrainingRow};
use crate::{ChatFormat, Origin, TokenRecord, TokensError};

/// The calls of one sample so far. Plans the prompt of the next one, and gives training rows.
///
/// Memory grows with the new tokens of each call, not with its whole prompt.
#[derive(Debug, Default)]
pub struct CallTree {
    planned: u32,
    /// Calls whose reply went to the agent, in the order they finished.
    finished: Vec<Finished>,
    /// The place in `finished` of a call's number.
    places: HashMap<u32, usize>,
    /// Conversations that end with a reply, under the same tools and variables.
    ends: HashMap<(Fingerprint, Fingerprint), Vec<usize>>,
    /// Every beginning of a conversation seen in a finished call, with the first that had it.
    beginnings: HashMap<Fingerprint, usize>,
    /// Finished calls by what they are in ids; filled when it is first asked.
    by_ids: IdsIndex,
}

/// The prompt of a call that is about to be made. Several can be under way at once.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedPrompt {
    /// The call's number.
    pub call: u32,
    pub ids: Vec<u32>,
    pub origin: Origin,
    /// `None` when the caller gave ids, and no messages.
    request: Option<Request>,
    /// The prompt's text after that of the origin's prompt.
    text: String,
}

/// Whether the caller of a call that is told in ids got all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    Whole,
    CutOff,
}

/// What the caller was told.
#[derive(Debug, Clone, Copy)]
enum Delivered<'a> {
    Message(&'a Value),
    Ids,
    Nothing,
}

/// What a request asked, in fingerprints.
#[derive(Debug, Clone, PartialEq)]
struct Request {
    tools: Fingerprint,
    extra: Fingerprint,
    /// For each message, of all up to and with it.
    beginnings: Vec<Fingerprint>,
    /// How many system messages it begins with.
    system: usize,
}

#[derive(Debug)]
pub(crate) struct Finished {
    pub call: u32,
    origin: Option<usize>,
    /// Whether a later call was built on this one.
    continued: bool,
    prompt_suffix: Vec<u32>,
    pub sampled: Vec<u32>,
    /// Ids of prompt and reply together.
    length: usize,
    /// The prompt's text after that of the origin's prompt.
    text: String,
    /// Length of the prompt's whole text.
    text_length: usize,
    /// How many messages the request had.
    messages: usize,
    tools: Fingerprint,
    pub reasoning: Option<String>,
}

impl CallTree {
    /// The ids to send for these messages: an earlier call's ids verbatim with a newly rendered suffix
    /// where that is proven safe, else rendered anew, with the reason.
    ///
    /// An earlier call is continued when its messages and its reply begin the new messages, with the
    /// same tools and template variables, and when the template shows that it writes them the same way
    /// again: the earlier prompt's text begins the rendering of messages and reply, which ends with the
    /// template's end-of-turn token and, up to that token, begins the rendering of the new messages. So
    /// the new text is the earlier one, the reply in whatever tokens it was sampled, that token, and a
    /// suffix. A special token parts what stands before it from what stands behind it for the tokenizer.
    pub fn plan(
        &mut self,
        format: &ChatFormat,
        messages: &[Value],
        tools: Option<&[Value]>,
        extra: &Map<String, Value>,
    ) -> Result<PlannedPrompt, TokensError> {
        let request = Request::new(messages, tools, extra);
        let mut rendered = format.render(messages, tools, true, extra)?;
        let conversation = Conversation {
            format,
            messages,
            tools,
            extra,
            rendered: &rendered,
        };
        let (ids, origin) = match self.continuation(&request, &conversation) {
            Ok((place, suffix)) => {
                let earlier = &mut self.finished[place];
                earlier.continued = true;
                let (call, kept) = (earlier.call, earlier.length);
                rendered.drain(..earlier.text_length);
                let mut ids = self.ids_of(place);
                ids.extend_from_slice(&suffix);
                let kept = u32::try_from(kept).map_err(|_| {
                    TokensError::inconsistent(call, "it has more tokens than can be counted")
                })?;
                (ids, Origin::Continues { call, kept })
            }
            Err(reason) => (format.encode(&rendered)?, Origin::Root { reason }),
        };
        let call = self.planned;
        self.planned += 1;
        Ok(PlannedPrompt {
            call,
            ids,
            origin,
            request: Some(request),
            text: rendered,
        })
    }

    /// Takes ids as they are for a prompt. It continues the longest earlier call whose prompt and reply
    /// begin them.
    pub fn plan_ids(&mut self, ids: Vec<u32>) -> PlannedPrompt {
        for place in self.by_ids.indexed()..self.finished.len() {
            let whole = self.ids_of(place);
            self.by_ids.insert(&whole, place);
        }
        let found = self.by_ids.begin(&ids).into_iter().find(|place| {
            // Two texts may share a hash.
            self.finished[*place].length <= ids.len() && ids.starts_with(&self.ids_of(*place))
        });
        let origin = match found.map(|place| &mut self.finished[place]) {
            Some(earlier) => match u32::try_from(earlier.length) {
                Ok(kept) => {
                    earlier.continued = true;
                    Origin::Continues {
                        call: earlier.call,
                        kept,
                    }
                }
                Err(_) => Origin::Root { reason: None },
            },
            None => Origin::Root {
                reason: (!self.finished.is_empty())
                    .then(|| "no earlier call's ids begin its prompt".to_owned()),
            },
        };
        let call = self.planned;
        self.planned += 1;
        PlannedPrompt {
            call,
            ids,
            origin,
            request: None,
            text: String::new(),
        }
    }

    /// Counts a call whose ids nobody knows.
    pub fn skip(&mut self) -> u32 {
        self.planned += 1;
        self.planned - 1
    }

    /// Like [`Self::finished`], for a prompt from [`Self::plan_ids`]: the caller that got all of it got
    /// ids.
    pub fn finished_ids(
        &mut self,
        prompt: PlannedPrompt,
        sampled: Vec<u32>,
        logprobs: Vec<f32>,
        versions: Vec<PolicyVersion>,
        temperature: f32,
        given: Given,
    ) -> TokenRecord {
        let told = match given {
            Given::Whole => Delivered::Ids,
            Given::CutOff => Delivered::Nothing,
        };
        self.finish(prompt, sampled, logprobs, versions, temperature, told)
    }

    /// Takes up what was sampled; `reply` is the assistant message as the agent was given it, `None` when
    /// the call was cut off. Returns the record to be stored.
    ///
    /// A record whose `logprobs` or `versions` are not one for each sampled token is not complete either.
    pub fn finished(
        &mut self,
        prompt: PlannedPrompt,
        sampled: Vec<u32>,
        logprobs: Vec<f32>,
        versions: Vec<PolicyVersion>,
        temperature: f32,
        reply: Option<&Value>,
    ) -> TokenRecord {
        let told = reply.map_or(Delivered::Nothing, Delivered::Message);
        self.finish(prompt, sampled, logprobs, versions, temperature, told)
    }

    fn finish(
        &mut self,
        prompt: PlannedPrompt,
        sampled: Vec<u32>,
        logprobs: Vec<f32>,
        versions: Vec<PolicyVersion>,
        temperature: f32,
        told: Delivered<'_>,
    ) -> TokenRecord {
        let PlannedPrompt {
            call,
            mut ids,
            origin,
            request,
            text,
        } = prompt;
        let length = ids.len() + sampled.len();
        let (origin_place, prompt_suffix) = match &origin {
            Origin::Continues { call, kept } => (
                self.places.get(call).copied(),
                ids.split_off((*kept as usize).min(ids.len())),
            ),
            Origin::Root { .. } => (None, ids),
        };
        let whole = logprobs.len() == sampled.len() && versions.len() == sampled.len();
        let complete = whole && !matches!(told, Delivered::Nothing);
        if complete {
            let before = origin_place.map_or(0, |place| self.finished[place].text_length);
            let finished = Finished {
                call,
                origin: origin_place,
                continued: false,
                prompt_suffix: prompt_suffix.clone(),
                sampled: sampled.clone(),
                length,
                text_length: before + text.len(),
                text,
                messages: request.as_ref().map_or(0, |asked| asked.beginnings.len()),
                tools: request
                    .as_ref()
                    .map(|asked| asked.tools)
                    .unwrap_or_default(),
                reasoning: match told {
                    Delivered::Message(reply) => fingerprint::reasoning(reply).map(str::to_owned),
                    Delivered::Ids | Delivered::Nothing => None,
                },
            };
            if let (Some(request), Delivered::Message(reply)) = (&request, told) {
                self.find_by_messages(request, fingerprint::of_message(reply));
            }
            self.places.insert(finished.call, self.finished.len());
            self.finished.push(finished);
        }
        TokenRecord {
            call,
            origin,
            prompt_suffix,
            sampled,
            logprobs,
            logprobs_of: LogprobsOf::Tempered,
            versions,
            temperature,
            complete,
            one_of_several: false,
            replaces: Vec::new(),
            constraint: None,
        }
    }

    /// The rows of a sample from its stored records (any order).
    pub fn rows(
        sample: &SampleId,
        records: &[TokenRecord],
    ) -> Result<Vec<TrainingRow>, TokensError> {
        rows::rows(sample, records)
    }

    /// Each call of a sample by itself, from its stored records (any order).
    pub fn call_rows(
        sample: &SampleId,
        records: &[TokenRecord],
    ) -> Result<Vec<CallRow>, TokensError> {
        rows::call_rows(sample, records)
    }

    /// Lets the call that is about to be taken up be found by its conversation.
    fn find_by_messages(&mut self, request: &Request, reply: Fingerprint) {
        let place = self.finished.len();
        let end = request.end().then(reply);
        for beginning in request.beginnings.iter().copied().chain([end]) {
            self.beginnings.entry(beginning).or_insert(place);
        }
        self.ends
            .entry((request.context(), end))
            .or_default()
            .push(place);
    }

    /// Prompt and reply of a finished call.
    fn ids_of(&self, place: usize) -> Vec<u32> {
        let mut path = Vec::new();
        let mut next = Some(place);
        while let Some(place) = next {
            path.push(place);
            next = self.finished[place].origin;
        }
        let mut ids = Vec::with_capacity(self.finished[place].length);
        for place in path.into_iter().rev() {
            ids.extend_from_slice(&self.finished[place].prompt_suffix);
            ids.extend_from_slice(&self.finished[place].sampled);
        }
        ids
    }

    /// Whether a text begins with that of a finished call's prompt.
    fn begins_with_prompt(&self, text: &str, place: usize) -> bool {
        let mut next = Some(place);
        while let Some(place) = next {
            let Finished {
                origin,
                text: part,
                text_length: end,
                ..
            } = &self.finished[place];
            if text.as_bytes().get(end - part.len()..*end) != Some(part.as_bytes()) {
                return false;
            }
            next = *origin;
        }
        true
    }

    /// The call to continue and the ids that follow its own; or why there is none.
    fn continuation(
        &self,
        request: &Request,
        conversation: &Conversation<'_>,
    ) -> Result<(usize, Vec<u32>), Option<String>> {
        let context = request.context();
        let found = request
            .beginnings
            .iter()
            .enumerate()
            .rev()
            .find_map(|(last, beginning)| Some((last, self.ends.get(&(context, *beginning))?)));
        let Some((last, candidates)) = found else {
            return Err(self.why_not(request));
        };
        // Retries may have given the same reply: take one that nobody has continued, the latest first.
        let mut ordered: Vec<usize> = candidates.iter().rev().copied().collect();
        ordered.sort_by_key(|place| self.finished[*place].continued);
        let proof = conversation.prove(last)?;
        let mut reason = None;
        for place in ordered {
            let earlier = &self.finished[place];
            let same_prompt = self.begins_with_prompt(proof.said(), place);
            match proof.holds_for(earlier, same_prompt, &conversation.messages[last]) {
                Ok(append_end) => {
                    let mut suffix = proof.suffix.clone();
                    if append_end {
                        suffix.insert(0, proof.end.id);
                    }
                    return Ok((place, suffix));
                }
                Err(problem) => reason = Some(problem),
            }
        }
        Err(reason)
    }

    /// Why no earlier call could be continued, if one shares more than the system messages.
    fn why_not(&self, request: &Request) -> Option<String> {
        let (last, place) = request
            .beginnings
            .iter()
            .enumerate()
            .rev()
            .find_map(|(last, beginning)| Some((last, *self.beginnings.get(beginning)?)))?;
        if last < request.system {
            return None;
        }
        let earlier = &self.finished[place];
        let call = earlier.call;
        let next = last + 1;
        if next > earlier.messages {
            if earlier.tools != request.tools {
                return Some("tools changed".to_owned());
            }
            return Some("template variables changed".to_owned());
        }
        if next == request.beginnings.len() {
            if next == earlier.messages {
                return Some(format!("the same request as call {call}"));
            }
            return Some(format!("the beginning of the request of call {call}"));
        }
        if next == earlier.messages {
            return Some(format!(
                "history rewritten: message {next} is not the reply of call {call}"
            ));
        }
        Some(format!(
            "history rewritten: message {next} differs from call {call}"
        ))
    }
}

impl Request {
    fn new(messages: &[Value], tools: Option<&[Value]>, extra: &Map<String, Value>) -> Self {
        let beginnings = messages
            .iter()
            .scan(Fingerprint::default(), |all, message| {
                *all = all.then(fingerprint::of_message(message));
                Some(*all)
            })
            .collect();
        let is_system =
            |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
        Self {
            tools: fingerprint::of_tools(tools),
            extra: fingerprint::of_extra(extra),
            beginnings,
            system: messages.iter().take_while(is_system).count(),
        }
    }

    fn context(&self) -> Fingerprint {
        self.tools.then(self.extra)
    }

    fn end(&self) -> Fingerprint {
        self.beginnings.last().copied().unwrap_or_default()
    }
}
