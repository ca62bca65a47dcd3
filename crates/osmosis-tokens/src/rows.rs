//! Training rows from the records of a sample.

use std::collections::HashMap;

use osmosis_core::generation::LogprobsOf;
use osmosis_core::learner::ConstrainedTokens;
use osmosis_core::{PolicyVersion, SampleId};

use crate::{Origin, TokenRecord, TokensError};

/// One root-to-leaf path. All vectors but `calls` have the length of `ids`.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingRow {
    /// `<sample>/<n>`
    pub id: String,
    /// The numbers of the calls on the path, the root first.
    pub calls: Vec<u32>,
    pub ids: Vec<u32>,
    /// Whether the token was sampled and is trained on in this row. A token that several rows share is
    /// trained on in the first of them only.
    pub loss_mask: Vec<bool>,
    /// 0 where nothing was sampled.
    pub logprobs: Vec<f32>,
    /// `None` where nothing was sampled.
    pub versions: Vec<Option<PolicyVersion>>,
    /// Of the sampled tokens; 1 elsewhere.
    pub temperatures: Vec<f32>,
    /// Where tokens were sampled under a grammar. Their logprobs are among the allowed tokens: who can't find these
    /// again must not train on them ([`Self::leave_out_constrained`]).
    pub constrained: Vec<ConstrainedTokens>,
}

/// A record with its place in the tree.
pub(crate) struct Node<'a> {
    pub(crate) record: &'a TokenRecord,
    origin: Option<usize>,
    /// Ids of prompt and reply together.
    pub(crate) length: usize,
    /// The caller had all of it: the record says so, or a later call continues it.
    pub(crate) complete: bool,
    /// Whether a complete call continues this one.
    continued: bool,
    /// Whether any call continues this one.
    chosen: bool,
    /// One of several choices, and no call continues it. The agent took one of them at most, and nobody
    /// knows which: its reward is for none of them.
    unchosen: bool,
}

pub(crate) fn rows(
    sample: &SampleId,
    records: &[TokenRecord],
) -> Result<Vec<TrainingRow>, TokensError> {
    let nodes = nodes(records)?;
    let mut trained = vec![false; nodes.len()];
    let leaves = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| node.complete && !node.continued && !node.unchosen);
    let rows = leaves.enumerate().map(|(n, (leaf, _))| {
        let mut row = TrainingRow::with_capacity(format!("{sample}/{n}"), nodes[leaf].length);
        for place in path(&nodes, leaf) {
            let first_time = !std::mem::replace(&mut trained[place], true);
            row.append(nodes[place].record, first_time);
        }
        row
    });
    Ok(rows.collect())
}

/// One call by itself: its whole prompt, and a loss on what it sampled alone.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRow {
    pub call: u32,
    /// The call that it continues.
    pub parent: Option<u32>,
    /// One of several choices, and no call continues it: it is not trained on.
    pub unchosen: bool,
    pub row: TrainingRow,
}

/// A row for each complete call, in the order of the calls.
pub(crate) fn call_rows(
    sample: &SampleId,
    records: &[TokenRecord],
) -> Result<Vec<CallRow>, TokensError> {
    let nodes = nodes(records)?;
    let complete = nodes.iter().enumerate().filter(|(_, n)| n.complete);
    let rows = complete.map(|(place, node)| {
        let call = node.record.call;
        let mut row = TrainingRow::with_capacity(format!("{sample}/call {call}"), node.length);
        for at in path(&nodes, place) {
            row.append(nodes[at].record, at == place);
        }
        CallRow {
            call,
            parent: node.origin.map(|origin| nodes[origin].record.call),
            unchosen: node.unchosen,
            row,
        }
    });
    Ok(rows.collect())
}

/// The places from the root to this one.
pub(crate) fn path(nodes: &[Node<'_>], place: usize) -> Vec<usize> {
    let mut path = Vec::new();
    let mut next = Some(place);
    while let Some(place) = next {
        path.push(place);
        next = nodes[place].origin;
    }
    path.reverse();
    path
}

/// The records in the order of their calls, checked. An origin has a smaller number than what continues
/// it, so a place only ever points to one before it.
pub(crate) fn nodes(records: &[TokenRecord]) -> Result<Vec<Node<'_>>, TokensError> {
    let mut sorted: Vec<&TokenRecord> = records.iter().collect();
    sorted.sort_by_key(|record| record.call);
    let mut nodes: Vec<Node<'_>> = Vec::with_capacity(sorted.len());
    let mut places: HashMap<u32, usize> = HashMap::with_capacity(sorted.len());
    for record in sorted {
        let call = record.call;
        let bad = |message: String| Err(TokensError::inconsistent(call, message));
        let count = record.sampled.len();
        if record.logprobs.len() != count || record.versions.len() != count {
            return bad(format!(
                "{count} tokens were sampled, with {} logprobs and {} versions",
                record.logprobs.len(),
                record.versions.len()
            ));
        }
        if let Some(recorded) = &record.constraint
            && recorded.allowed.len() != count
        {
            return bad(format!(
                "{count} tokens were sampled under a grammar, with {} numbers of allowed ones",
                recorded.allowed.len()
            ));
        }
        let origin = match &record.origin {
            Origin::Root { .. } => None,
            Origin::Continues { call: origin, .. } if *origin >= call => {
                return bad(format!("it continues call {origin}, which came later"));
            }
            Origin::Continues { call: origin, kept } => {
                let Some(place) = places.get(origin).copied() else {
                    return bad(format!("it continues call {origin}, which has no record"));
                };
                let earlier: &mut Node<'_> = &mut nodes[place];
                if *kept as usize != earlier.length {
                    return bad(format!(
                        "it keeps {kept} tokens of call {origin}, which has {}",
                        earlier.length
                    ));
                }
                earlier.continued |= record.complete;
                earlier.chosen = true;
                earlier.complete = true;
                Some(place)
            }
        };
        let before = origin.map_or(0, |place| nodes[place].length);
        if places.insert(call, nodes.len()).is_some() {
            return bad("there are two records of it".to_owned());
        }
        nodes.push(Node {
            record,
            origin,
            length: before + record.prompt_suffix.len() + count,
            complete: record.complete,
            continued: false,
            chosen: false,
            unchosen: false,
        });
    }
    settle(&mut nodes, &places);
    Ok(nodes)
}

/// Finds out which answers never got to the agent, and which choices it did not go on from.
fn settle(nodes: &mut [Node<'_>], places: &HashMap<u32, usize>) {
    for at in 0..nodes.len() {
        for replaced in &nodes[at].record.replaces {
            if let Some(place) = places.get(replaced) {
                let earlier = &mut nodes[*place];
                earlier.complete &= earlier.chosen;
            }
        }
    }
    for node in nodes {
        node.unchosen = node.record.one_of_several && !node.chosen;
    }
}

impl TrainingRow {
    fn with_capacity(id: String, length: usize) -> Self {
        Self {
            id,
            calls: Vec::new(),
            ids: Vec::with_capacity(length),
            loss_mask: Vec::with_capacity(length),
            logprobs: Vec::with_capacity(length),
            versions: Vec::with_capacity(length),
            temperatures: Vec::with_capacity(length),
            constrained: Vec::new(),
        }
    }

    /// Takes tokens that were sampled under a grammar out of the loss, for trainers that know of no grammars. Returns
    /// how many of them were in it.
    pub fn leave_out_constrained(&mut self) -> u64 {
        let mut left_out = 0;
        for tokens in &self.constrained {
            for trained in &mut self.loss_mask[tokens.first..][..tokens.allowed.len()] {
                left_out += u64::from(std::mem::replace(trained, false));
            }
        }
        left_out
    }

    fn append(&mut self, record: &TokenRecord, train: bool) {
        self.calls.push(record.call);
        self.ids.extend_from_slice(&record.prompt_suffix);
        let prompt_end = self.ids.len();
        self.loss_mask.resize(prompt_end, false);
        self.logprobs.resize(prompt_end, 0.0);
        self.versions.resize(prompt_end, None);
        self.temperatures.resize(prompt_end, 1.0);

        self.ids.extend_from_slice(&record.sampled);
        if let Some(recorded) = &record.constraint {
            self.constrained.push(ConstrainedTokens {
                first: prompt_end,
                constraint: recorded.constraint.clone(),
                allowed: recorded.allowed.clone(),
            });
        }
        // Ratios need the logprobs of the distribution that was sampled from.
        let usable = record.logprobs_of == LogprobsOf::Tempered;
        self.loss_mask.resize(self.ids.len(), train && usable);
        if let Some(recorded) = &record.constraint {
            // A token that had to come teaches nothing, and does not count among those that do.
            for (trained, allowed) in self.loss_mask[prompt_end..]
                .iter_mut()
                .zip(&recorded.allowed)
            {
                *trained &= *allowed != 1;
            }
        }
        self.logprobs.extend_from_slice(&record.logprobs);
        self.versions
            .extend(record.versions.iter().copied().map(Some));
        self.temperatures.resize(self.ids.len(), record.temperature);
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::generation::Constraint;

    use super::*;
    use crate::{RecordedConstraint, TokensErrorKind};

    fn record(
        call: u32,
        origin: Option<(u32, u32)>,
        prompt: &[u32],
        sampled: &[u32],
    ) -> TokenRecord {
        TokenRecord {
            call,
            origin: match origin {
                Some((call, kept)) => Origin::Continues { call, kept },
                None => Origin::Root { reason: None },
            },
            prompt_suffix: prompt.to_vec(),
            sampled: sampled.to_vec(),
            logprobs: vec![-0.5; sampled.len()],
            logprobs_of: LogprobsOf::Tempered,
            versions: vec![PolicyVersion(u64::from(call)); sampled.len()],
            temperature: 0.7,
            complete: true,
            one_of_several: false,
            replaces: vec![],
            constraint: None,
        }
    }

    fn rows_of(records: &[TokenRecord]) -> Result<Vec<TrainingRow>, TokensError> {
        rows(&SampleId::new("main").unwrap(), records)
    }

    #[test]
    fn constrained_tokens_keep_their_grammar_and_forced_ones_are_not_trained_on() {
        let mut first = record(0, None, &[1, 2], &[3, 4, 5]);
        let constraint = Constraint {
            grammar: "start: /a+/".into(),
        };
        first.constraint = Some(RecordedConstraint {
            constraint: constraint.clone(),
            allowed: vec![1, 7, 2],
        });
        let free = record(1, Some((0, 5)), &[6], &[7]);
        let mut row = rows_of(&[first, free]).unwrap().remove(0);
        assert_eq!(
            row.loss_mask,
            [false, false, false, true, true, false, true]
        );
        assert_eq!(
            row.constrained,
            [ConstrainedTokens {
                first: 2,
                constraint,
                allowed: vec![1, 7, 2],
            }]
        );
        assert_eq!(row.leave_out_constrained(), 2);
        assert_eq!(
            row.loss_mask,
            [false, false, false, false, false, false, true]
        );
    }

    #[test]
    fn tokens_with_other_logprobs_are_kept_but_not_trained_on() {
        let mut second = record(1, Some((0, 4)), &[5], &[6]);
        second.logprobs_of = LogprobsOf::Untempered;
        let rows = rows_of(&[record(0, None, &[1, 2], &[3, 4]), second]).unwrap();
        assert_eq!(rows[0].ids, [1, 2, 3, 4, 5, 6]);
        assert_eq!(rows[0].loss_mask, [false, false, true, true, false, false]);
    }

    #[test]
    fn each_leaf_is_a_row_and_a_shared_token_is_trained_on_in_the_first() {
        let records = [
            record(2, Some((0, 3)), &[8], &[9]),
            record(0, None, &[1, 2], &[3]),
            record(1, Some((0, 3)), &[4], &[5, 6]),
        ];
        let rows = rows_of(&records).unwrap();
        assert_eq!(rows.len(), 2);
        let (first, second) = (&rows[0], &rows[1]);
        assert_eq!(
            (first.id.as_str(), first.calls.as_slice()),
            ("main/0", [0, 1].as_slice())
        );
        assert_eq!(first.ids, [1, 2, 3, 4, 5, 6]);
        assert_eq!(first.loss_mask, [false, false, true, false, true, true]);
        assert_eq!(first.logprobs, [0.0, 0.0, -0.5, 0.0, -0.5, -0.5]);
        assert_eq!(first.temperatures, [1.0, 1.0, 0.7, 1.0, 0.7, 0.7]);
        assert_eq!(first.versions[1..3], [None, Some(PolicyVersion(0))]);
        assert_eq!(
            (second.id.as_str(), second.calls.as_slice()),
            ("main/1", [0, 2].as_slice())
        );
        assert_eq!(second.ids, [1, 2, 3, 8, 9]);
        assert_eq!(second.loss_mask, [false, false, false, false, true]);
        assert_eq!(
            second.versions[2],
            Some(PolicyVersion(0)),
            "sampled, though not trained on here"
        );
    }

    #[test]
    fn each_call_is_a_row_of_its_own_that_knows_what_it_continues() {
        let records = [
            record(2, Some((0, 3)), &[8], &[9]),
            record(0, None, &[1, 2], &[3]),
            record(1, Some((0, 3)), &[4], &[5, 6]),
        ];
        let sample = SampleId::new("main").unwrap();
        let rows = crate::CallTree::call_rows(&sample, &records).unwrap();
        let seen: Vec<_> = rows.iter().map(|row| (row.call, row.parent)).collect();
        assert_eq!(seen, [(0, None), (1, Some(0)), (2, Some(0))]);
        assert_eq!(rows[0].row.ids, [1, 2, 3]);
        assert_eq!(rows[1].row.ids, [1, 2, 3, 4, 5, 6]);
        assert_eq!(
            rows[1].row.loss_mask,
            [false, false, false, false, true, true]
        );
        assert_eq!(rows[2].row.calls, [0, 2]);
    }

    #[test]
    fn a_call_whose_continuation_was_cut_off_is_the_leaf() {
        let mut cut_off = record(1, Some((0, 2)), &[3], &[4]);
        cut_off.complete = false;
        let rows = rows_of(&[record(0, None, &[1], &[2]), cut_off]).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].ids, [1, 2]);
    }

    #[test]
    fn an_answer_that_a_later_call_continues_was_whole() {
        let mut undelivered = record(0, None, &[1], &[2]);
        undelivered.complete = false;
        let rows = rows_of(&[undelivered.clone(), record(1, Some((0, 2)), &[3], &[4])]).unwrap();
        assert_eq!(rows[0].loss_mask, [false, true, false, true]);
        assert_eq!(rows_of(&[undelivered]), Ok(vec![]));
    }

    #[test]
    fn of_several_choices_only_those_that_are_continued_are_trained_on() {
        let choice = |call, sampled| {
            let mut choice = record(call, None, &[1], &[sampled]);
            choice.one_of_several = true;
            choice
        };
        let next = record(2, Some((1, 2)), &[4], &[5]);
        let rows = rows_of(&[choice(0, 2), choice(1, 3), next]).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (&rows[0].id[..], &rows[0].ids[..]),
            ("main/0", &[1, 3, 4, 5][..])
        );
        // The agent went on from this one, even if the next answer did not reach it.
        let mut cut_off = record(2, Some((1, 2)), &[4], &[5]);
        cut_off.complete = false;
        let rows = rows_of(&[choice(0, 2), choice(1, 3), cut_off]).unwrap();
        assert_eq!(rows[0].ids, [1, 3]);
        // Nobody knows which of them the agent took.
        assert_eq!(rows_of(&[choice(0, 2), choice(1, 3)]), Ok(vec![]));
        let calls = call_rows(&SampleId::main(), &[choice(0, 2), choice(1, 3)]).unwrap();
        assert!(calls.iter().all(|call| call.unchosen));
    }

    #[test]
    fn an_answer_that_a_retry_replaces_is_not_trained_on() {
        let first = record(0, None, &[1], &[2]);
        let mut retry = record(1, None, &[1], &[3]);
        // Both were asked for and given: agents that vote do so.
        assert_eq!(rows_of(&[first.clone(), retry.clone()]).unwrap().len(), 2);
        retry.replaces = vec![0];
        let rows = rows_of(&[first.clone(), retry.clone()]).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].ids, [1, 3]);
        // It got there after all.
        let next = record(2, Some((0, 2)), &[4], &[5]);
        assert_eq!(rows_of(&[first, retry, next]).unwrap().len(), 2);
    }

    #[test]
    fn records_that_do_not_fit_together_are_refused() {
        let root = record(0, None, &[1], &[2]);
        let mut short = root.clone();
        short.logprobs.clear();
        for (records, message) in [
            (
                vec![record(1, Some((0, 2)), &[], &[])],
                "call 1: it continues call 0, which has no record",
            ),
            (
                vec![record(1, Some((1, 2)), &[], &[])],
                "call 1: it continues call 1, which came later",
            ),
            (
                vec![
                    record(0, Some((1, 0)), &[], &[]),
                    record(1, Some((0, 0)), &[], &[]),
                ],
                "call 0: it continues call 1, which came later",
            ),
            (
                vec![root.clone(), record(1, Some((0, 1)), &[], &[])],
                "call 1: it keeps 1 tokens of call 0, which has 2",
            ),
            (
                vec![root.clone(), root.clone()],
                "call 0: there are two records of it",
            ),
            (
                vec![short],
                "call 0: 1 tokens were sampled, with 0 logprobs and 1 versions",
            ),
        ] {
            let error = rows_of(&records).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(error.kind(), TokensErrorKind::Records);
        }
    }
}
