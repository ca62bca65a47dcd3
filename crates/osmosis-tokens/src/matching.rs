//! Whether the tokens that user code wants trained on are those that the policy sampled.
//!
//! A token under the loss mask is true when a recorded call sampled it after exactly the ids that stand
//! before it: the call's prompt, then what the call had sampled so far. Anything less would compare
//! probabilities of different contexts. Of what a call sampled, a sequence may leave out the end, or take
//! any part out of the loss. A recorded token is trained on once in a rollout.

use std::collections::BTreeMap;
use std::fmt;

use osmosis_core::SampleId;
use osmosis_core::credit::Sequence;
use osmosis_core::generation::LogprobsOf;

use crate::rows::{self, Node};
use crate::{TokenRecord, TokensError};

/// The version of a token that the policy did not sample.
const NOT_SAMPLED: i64 = -1;
/// How many ids a message names.
const MAX_NAMED: usize = 8;

/// A token under a loss mask that the policy did not sample there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsampled {
    /// The place of the sequence among those returned.
    pub sequence: usize,
    pub position: usize,
    /// The ids from there to the end of the span under the mask.
    pub ids: Vec<u32>,
    pub why: WhyUnsampled,
}

/// What is wrong with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhyUnsampled {
    /// The mask is not as long as the ids.
    Lengths { ids: usize, mask: usize },
    /// No call of the rollout is recorded with its ids.
    NoCalls,
    /// A call had the same context, and sampled other ids.
    OtherIds { call: u32, sampled: Vec<u32> },
    /// A call sampled these ids, and its prompt differs from what stands before them.
    OtherContext { call: u32, differs_at: usize },
    /// It is trained on already.
    Twice { call: u32 },
    /// No call sampled anything like it.
    Invented,
}

/// Why sequences could not be matched.
#[derive(Debug, Clone, PartialEq)]
pub enum MatchError {
    Unsampled(Unsampled),
    /// The records themselves can't be read.
    Records(TokensError),
}

/// One complete call in ids.
struct Call {
    number: u32,
    /// Prompt and reply.
    ids: Vec<u32>,
    /// Where the reply begins.
    start: usize,
    logprobs: Vec<f32>,
    versions: Vec<i64>,
    temperature: f32,
    usable: bool,
    taken: Vec<bool>,
}

impl Call {
    fn new(nodes: &[Node<'_>], place: usize) -> Self {
        let node = &nodes[place];
        let mut ids = Vec::with_capacity(node.length);
        for at in rows::path(nodes, place) {
            ids.extend_from_slice(&nodes[at].record.prompt_suffix);
            ids.extend_from_slice(&nodes[at].record.sampled);
        }
        let record = node.record;
        let version = |version: u64| i64::try_from(version).unwrap_or(i64::MAX);
        Self {
            number: record.call,
            start: ids.len() - record.sampled.len(),
            ids,
            logprobs: record.logprobs.clone(),
            versions: record.versions.iter().map(|v| version(v.0)).collect(),
            temperature: record.temperature,
            // Sequences have no grammars, without which constrained tokens can't be trained on.
            usable: record.logprobs_of == LogprobsOf::Tempered && record.constraint.is_none(),
            taken: vec![false; record.sampled.len()],
        }
    }

    /// How many ids it shares with the beginning of these.
    fn common(&self, ids: &[u32]) -> usize {
        let pairs = self.ids.iter().zip(ids);
        pairs.take_while(|(own, other)| own == other).count()
    }
}

/// Holds sequences against the records of their rollout's calls. Where every token under the loss mask was
/// sampled, its logprob, version and temperature are made the recorded ones, and tokens that are not under
/// the mask have none. Tokens whose logprobs are not those of the distribution they were sampled from are
/// taken out of the loss, as in rows of whole conversations.
pub fn match_sequences(
    records: &BTreeMap<SampleId, Vec<TokenRecord>>,
    sequences: &mut [Sequence],
) -> Result<(), MatchError> {
    let mut calls = Vec::new();
    for records in records.values() {
        let nodes = rows::nodes(records).map_err(MatchError::Records)?;
        let complete = (0..nodes.len()).filter(|place| nodes[*place].complete);
        calls.extend(complete.map(|place| Call::new(&nodes, place)));
    }
    for (at, sequence) in sequences.iter_mut().enumerate() {
        match_one(&mut calls, at, sequence).map_err(MatchError::Unsampled)?;
    }
    Ok(())
}

fn match_one(calls: &mut [Call], at: usize, sequence: &mut Sequence) -> Result<(), Unsampled> {
    let Some(mask) = &mut sequence.loss_mask else {
        return Ok(());
    };
    let ids = &sequence.input_ids;
    let unsampled = |position: usize, mask: &[bool], why| {
        let span = ids.iter().zip(mask).skip(position);
        Unsampled {
            sequence: at,
            position,
            ids: span.take_while(|(_, on)| **on).map(|(id, _)| *id).collect(),
            why,
        }
    };
    if mask.len() != ids.len() {
        let why = WhyUnsampled::Lengths {
            ids: ids.len(),
            mask: mask.len(),
        };
        return Err(unsampled(0, &[], why));
    }
    // Those with most of it first, so that a span comes from one call where it can.
    let mut shared: Vec<(usize, usize)> = calls
        .iter()
        .enumerate()
        .map(|(place, call)| (place, call.common(ids)))
        .filter(|(place, common)| *common > calls[*place].start)
        .collect();
    shared.sort_by_key(|(_, common)| std::cmp::Reverse(*common));
    let mut source: Vec<Option<(usize, usize)>> = vec![None; ids.len()];
    for (place, common) in &shared {
        let call = &mut calls[*place];
        for position in call.start..*common {
            let token = position - call.start;
            if mask[position] && source[position].is_none() && !call.taken[token] {
                call.taken[token] = true;
                source[position] = Some((*place, token));
            }
        }
    }
    let wrong = (0..ids.len()).find(|position| mask[*position] && source[*position].is_none());
    if let Some(position) = wrong {
        let mut found = unsampled(position, mask, WhyUnsampled::Invented);
        found.why = why(calls, &shared, ids, position, &found.ids);
        return Err(found);
    }
    let mut logprobs = vec![0.0; ids.len()];
    let mut versions = vec![NOT_SAMPLED; ids.len()];
    let mut temperatures = vec![1.0; ids.len()];
    for (position, source) in source.into_iter().enumerate() {
        let Some((place, token)) = source else {
            continue;
        };
        let call = &calls[place];
        mask[position] = call.usable;
        if call.usable {
            logprobs[position] = call.logprobs[token];
            versions[position] = call.versions[token];
            temperatures[position] = call.temperature;
        }
    }
    sequence.logprobs = Some(logprobs);
    sequence.versions = Some(versions);
    sequence.temperatures = Some(temperatures);
    Ok(())
}

/// What is known of a token that no call accounts for.
fn why(
    calls: &[Call],
    shared: &[(usize, usize)],
    ids: &[u32],
    position: usize,
    span: &[u32],
) -> WhyUnsampled {
    if calls.is_empty() {
        return WhyUnsampled::NoCalls;
    }
    let mut all_taken = shared.iter().filter(|(_, common)| *common > position);
    if let Some((place, _)) = all_taken.find(|(place, _)| calls[*place].start <= position) {
        return WhyUnsampled::Twice {
            call: calls[*place].number,
        };
    }
    let contains = |call: &Call| {
        let reply = &call.ids[call.start..];
        !span.is_empty() && reply.windows(span.len()).any(|window| window == span)
    };
    let same_context = |call: &&Call| {
        let common = call.common(ids);
        call.start <= common && common <= position && position < call.ids.len()
    };
    if let Some(call) = calls.iter().find(|call| contains(call)) {
        return WhyUnsampled::OtherContext {
            call: call.number,
            differs_at: call.common(ids),
        };
    }
    let nearest = calls.iter().filter(same_context);
    match nearest.max_by_key(|call| call.common(ids)) {
        Some(call) => WhyUnsampled::OtherIds {
            call: call.number,
            sampled: call.ids[position..].to_vec(),
        },
        None => WhyUnsampled::Invented,
    }
}

impl fmt::Display for Unsampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sequence,
            position,
            ids,
            why,
        } = self;
        if let WhyUnsampled::Lengths { ids, mask } = why {
            return write!(
                f,
                "sequence {sequence} has {ids} ids and a loss mask of {mask}"
            );
        }
        write!(
            f,
            "sequence {sequence} is to be trained on tokens that the policy did not sample there: \
             position {position}, ids {}; ",
            Ids(ids)
        )?;
        match why {
            WhyUnsampled::Lengths { .. } => Ok(()),
            WhyUnsampled::NoCalls => {
                f.write_str("the rollout has no complete model call with token ids")
            }
            WhyUnsampled::OtherIds { call, sampled } => {
                write!(f, "call {call} sampled {} there", Ids(sampled))
            }
            WhyUnsampled::OtherContext { call, differs_at } => write!(
                f,
                "call {call} sampled them, after other ids (the first difference is at position {differs_at})"
            ),
            WhyUnsampled::Twice { call } => {
                write!(
                    f,
                    "call {call} sampled them, and they are trained on already"
                )
            }
            WhyUnsampled::Invented => {
                f.write_str("no call of the rollout has what stands before them as its prompt")
            }
        }
    }
}

/// The first few ids.
struct Ids<'a>(&'a [u32]);

impl fmt::Display for Ids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> = self.0.iter().take(MAX_NAMED).map(u32::to_string).collect();
        let more = if self.0.len() > MAX_NAMED {
            ", …"
        } else {
            ""
        };
        write!(f, "[{}{more}]", named.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::PolicyVersion;

    use super::*;
    use crate::Origin;

    /// Two turns: `1 2 -> 3 4 5`, then `… 6 -> 7 8`; and another call with the prompt of the first.
    fn records() -> BTreeMap<SampleId, Vec<TokenRecord>> {
        let made = |call, origin, prompt: &[u32], sampled: &[u32]| TokenRecord {
            call,
            origin,
            prompt_suffix: prompt.to_vec(),
            sampled: sampled.to_vec(),
            logprobs: sampled.iter().map(|id| -(*id as f32) / 8.0).collect(),
            logprobs_of: LogprobsOf::Tempered,
            versions: vec![PolicyVersion(u64::from(call)); sampled.len()],
            temperature: 0.5,
            complete: true,
            one_of_several: false,
            replaces: vec![],
            constraint: None,
        };
        let root = || Origin::Root { reason: None };
        let records = vec![
            made(0, root(), &[1, 2], &[3, 4, 5]),
            made(1, Origin::Continues { call: 0, kept: 5 }, &[6], &[7, 8]),
            made(2, root(), &[1, 2], &[3, 4, 9]),
        ];
        BTreeMap::from([(SampleId::main(), records)])
    }

    fn sequence(ids: &[u32], mask: &[u8]) -> Sequence {
        Sequence {
            input_ids: ids.to_vec(),
            loss_mask: Some(mask.iter().map(|on| *on == 1).collect()),
            logprobs: None,
            versions: None,
            temperatures: None,
            reward: None,
            id: None,
        }
    }

    fn matched(sequences: &[(&[u32], &[u8])]) -> Result<Vec<Sequence>, String> {
        let mut made: Vec<Sequence> = sequences
            .iter()
            .map(|(ids, mask)| sequence(ids, mask))
            .collect();
        match match_sequences(&records(), &mut made) {
            Ok(()) => Ok(made),
            Err(MatchError::Unsampled(unsampled)) => Err(unsampled.to_string()),
            Err(MatchError::Records(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn what_calls_sampled_gets_what_was_recorded_of_it() {
        let two_turns = matched(&[(&[1, 2, 3, 4, 5, 6, 7, 8], &[0, 0, 1, 1, 1, 0, 1, 1])]).unwrap();
        let found = &two_turns[0];
        let logprobs = vec![0.0, 0.0, -0.375, -0.5, -0.625, 0.0, -0.875, -1.0];
        assert_eq!(found.logprobs, Some(logprobs));
        assert_eq!(found.versions, Some(vec![-1, -1, 0, 0, 0, -1, 1, 1]));
        let warm = vec![1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 0.5, 0.5];
        assert_eq!(found.temperatures, Some(warm));
    }

    #[test]
    fn invented_logprobs_and_versions_are_replaced() {
        let mut wrong = sequence(&[1, 2, 3], &[0, 0, 1]);
        wrong.logprobs = Some(vec![9.0; 3]);
        wrong.versions = Some(vec![77; 3]);
        match_sequences(&records(), std::slice::from_mut(&mut wrong)).unwrap();
        assert_eq!(wrong.logprobs, Some(vec![0.0, 0.0, -0.375]));
        assert_eq!(wrong.versions, Some(vec![-1, -1, 0]));
    }

    #[test]
    fn a_sequence_may_leave_out_the_end_and_mask_what_it_wants() {
        matched(&[(&[1, 2, 3, 4], &[0, 0, 1, 1])]).unwrap();
        matched(&[(&[1, 2, 3, 4, 5, 6], &[0, 0, 0, 1, 0, 0])]).unwrap();
        // What is not under the mask is free.
        matched(&[(&[1, 2, 3, 4, 5, 40, 41], &[0, 0, 1, 1, 1, 0, 0])]).unwrap();
        matched(&[(&[50, 51], &[0, 0])]).unwrap();
    }

    #[test]
    fn equal_beginnings_of_two_answers_are_two_tokens() {
        let answers: [(&[u32], &[u8]); 2] = [
            (&[1, 2, 3, 4, 5], &[0, 0, 1, 1, 1]),
            (&[1, 2, 3, 4, 9], &[0, 0, 1, 1, 1]),
        ];
        matched(&answers).unwrap();
        matched(&[answers[1], answers[0]]).unwrap();
        let cut: (&[u32], &[u8]) = (&[1, 2, 3, 4], &[0, 0, 1, 1]);
        matched(&[cut, answers[0]]).unwrap();
        assert_eq!(
            matched(&[cut, answers[0], answers[1]]).unwrap_err(),
            "sequence 2 is to be trained on tokens that the policy did not sample there: position 2, \
             ids [3, 4, 9]; call 2 sampled them, and they are trained on already"
        );
    }

    #[test]
    fn what_no_call_sampled_is_named_with_the_reason() {
        let prefix = "tokens that the policy did not sample there: ";
        for (ids, mask, expected) in [
            (
                &[1, 2, 3, 10, 11][..],
                &[0, 0, 1, 1, 1][..],
                "position 3, ids [10, 11]; call 2 sampled [4, 9] there",
            ),
            (
                &[1, 20, 3, 4, 5],
                &[0, 0, 1, 1, 1],
                "position 2, ids [3, 4, 5]; call 0 sampled them, after other ids (the first \
                 difference is at position 1)",
            ),
            // The prompt lost its beginning.
            (
                &[2, 3, 4],
                &[0, 1, 1],
                "position 1, ids [3, 4]; call 0 sampled them, after other ids (the first difference \
                 is at position 0)",
            ),
            // The prompt itself was not sampled.
            (
                &[1, 2, 3],
                &[0, 1, 1],
                "position 1, ids [2, 3]; no call of the rollout has what stands before them as its prompt",
            ),
            (
                &[1, 2, 3, 4, 5, 30],
                &[0, 0, 1, 1, 1, 1],
                "position 5, ids [30]; no call of the rollout has what stands before them as its prompt",
            ),
        ] {
            let error = matched(&[(ids, mask)]).unwrap_err();
            assert!(error.ends_with(&format!("{prefix}{expected}")), "{error}");
        }
        assert_eq!(
            matched(&[(&[1, 2], &[0])]).unwrap_err(),
            "sequence 0 has 2 ids and a loss mask of 1"
        );
        let mut one = [sequence(&[1, 2], &[0, 1])];
        let error = match_sequences(&BTreeMap::new(), &mut one).unwrap_err();
        let MatchError::Unsampled(error) = error else {
            panic!("{error:?}")
        };
        assert_eq!(error.why, WhyUnsampled::NoCalls);
    }

    #[test]
    fn what_never_reached_the_agent_can_not_be_trained_on() {
        let mut records = records();
        let calls = records.get_mut(&SampleId::main()).unwrap();
        calls.retain(|record| record.call == 0);
        calls[0].complete = false;
        let mut made = [sequence(&[1, 2, 3], &[0, 0, 1])];
        assert!(match_sequences(&records, &mut made).is_err());
    }

    #[test]
    fn tokens_with_other_logprobs_are_taken_out_of_the_loss() {
        let mut records = records();
        for record in records.get_mut(&SampleId::main()).unwrap() {
            record.logprobs_of = LogprobsOf::Filtered;
        }
        let mut made = [sequence(&[1, 2, 3], &[0, 0, 1])];
        match_sequences(&records, &mut made).unwrap();
        assert_eq!(made[0].loss_mask, Some(vec![false; 3]));
        assert_eq!(made[0].versions, Some(vec![-1; 3]));
    }
}
