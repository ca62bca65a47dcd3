//! What a reward is for: a whole sample, one call of it, or a sequence that user code put together.
//!
//! Where calls have rewards of their own, or `turn_discount` is below 1, what a call is worth is its own
//! reward plus the discounted worth of the calls that continue it, their mean where it was continued more
//! than once. That follows the tree of calls, not the order in which they came.

use std::collections::BTreeMap;

use osmosis_core::config::{ExportStyle, Training};
use osmosis_core::credit::{Credit, Interaction, Sequence};
use osmosis_core::{PolicyVersion, RolloutId, SampleId};
use osmosis_tokens::{
    CallRow, CallTree, MatchError, TokenRecord, TokensError, TrainingRow, match_sequences,
};

use crate::TrainError;
use crate::group::GroupName;

/// The token records of a rollout's samples.
pub(crate) type Records = BTreeMap<SampleId, Vec<TokenRecord>>;

/// Something with one reward, and the rows that earned it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unit {
    pub(crate) group: GroupName,
    pub(crate) reward: f64,
    /// What it loses of its reward, when it is compared, for answers that are too long.
    pub(crate) penalty: f64,
    pub(crate) rows: Vec<TrainingRow>,
}

impl Unit {
    /// The tokens of its longest answer, as far as they are trained on.
    fn longest_answer(&self) -> u64 {
        let answers = self.rows.iter().flat_map(|row| {
            let parts = row.loss_mask.chunk_by(|one, other| one == other);
            parts.filter(|part| part.first() == Some(&true))
        });
        answers.map(|answer| answer.len() as u64).max().unwrap_or(0)
    }
}

/// What is known of a scored rollout.
#[derive(Debug)]
pub(crate) struct Crediting<'a> {
    pub(crate) training: &'a Training,
    pub(crate) records: Records,
    pub(crate) credits: BTreeMap<SampleId, Credit>,
}

impl Crediting<'_> {
    /// The units of a rollout whose samples have these rewards.
    pub(crate) fn units(
        &self,
        rollout: &RolloutId,
        scored: &[(SampleId, f64)],
    ) -> Result<Vec<Unit>, TrainError> {
        let mut units = Vec::new();
        for (sample, reward) in scored {
            let nothing = Credit::default();
            let credit = self.credits.get(sample).unwrap_or(&nothing);
            let found = if credit.sequences.is_empty() {
                self.of_calls(sample, *reward, &credit.interactions)
                    .map_err(|source| TrainError::Tokens {
                        rollout: rollout.clone(),
                        source,
                    })?
            } else {
                self.of_sequences(sample, &credit.sequences)
                    .map_err(|why| TrainError::UnusableSequence {
                        rollout: rollout.clone(),
                        why,
                    })?
            };
            units.extend(found);
        }
        if let Some(overlong) = &self.training.overlong {
            for unit in &mut units {
                let longest = unit.longest_answer();
                unit.penalty = overlong.penalty(longest, self.training.max_response_length);
            }
        }
        Ok(units)
    }

    fn of_calls(
        &self,
        sample: &SampleId,
        reward: f64,
        interactions: &[Interaction],
    ) -> Result<Vec<Unit>, TokensError> {
        let unit = |turn, reward, rows| Unit {
            group: GroupName {
                sample: sample.clone(),
                turn,
            },
            reward,
            penalty: 0.0,
            rows,
        };
        let records = self.records.get(sample).map_or(&[][..], Vec::as_slice);
        let discount = self.training.turn_discount;
        if interactions.is_empty() && discount >= 1.0 {
            return Ok(vec![unit(0, reward, CallTree::rows(sample, records)?)]);
        }
        let mut calls = CallTree::call_rows(sample, records)?;
        calls.retain(|call| !call.unchosen);
        let own = if interactions.is_empty() {
            leaves(&calls).map(|call| (call, reward)).collect()
        } else {
            own_rewards(interactions)
        };
        let worth = worth(&calls, &own, discount);
        Ok(match self.training.export_style {
            ExportStyle::Individual => calls
                .into_iter()
                .filter_map(|call| {
                    let turn = u32::try_from(call.row.calls.len()).unwrap_or(u32::MAX) - 1;
                    Some(unit(turn, *worth.get(&call.call)?, vec![call.row]))
                })
                .collect(),
            ExportStyle::Concat => CallTree::rows(sample, records)?
                .into_iter()
                .filter_map(|row| {
                    let last = row.calls.iter().rev().find_map(|call| worth.get(call))?;
                    Some(unit(0, *last, vec![row]))
                })
                .collect(),
        })
    }

    fn of_sequences(&self, sample: &SampleId, sequences: &[Sequence]) -> Result<Vec<Unit>, String> {
        // Again, though the rollout would have been rejected: the records have the last word.
        let mut sequences = sequences.to_vec();
        match_sequences(&self.records, &mut sequences).map_err(|error| match error {
            MatchError::Unsampled(unsampled) => unsampled.to_string(),
            MatchError::Records(error) => error.to_string(),
        })?;
        let rewarded = sequences.iter().enumerate().filter_map(|(at, sequence)| {
            let reward = sequence.reward?.get();
            let row = row_of(&format!("{sample}/{at}"), sequence);
            Some(row.map(|row| Unit {
                group: GroupName {
                    sample: sample.clone(),
                    turn: 0,
                },
                reward,
                penalty: 0.0,
                rows: vec![row],
            }))
        });
        rewarded.collect()
    }
}

fn leaves(calls: &[CallRow]) -> impl Iterator<Item = u32> {
    let is_leaf = |call: &&CallRow| calls.iter().all(|other| other.parent != Some(call.call));
    calls.iter().filter(is_leaf).map(|call| call.call)
}

fn own_rewards(interactions: &[Interaction]) -> BTreeMap<u32, f64> {
    let each = interactions.iter();
    each.flat_map(|one| one.calls.iter().map(|call| (*call, one.reward.get())))
        .collect()
}

/// What each call is worth; nothing for one that neither has a reward nor led to one.
fn worth(calls: &[CallRow], own: &BTreeMap<u32, f64>, discount: f64) -> BTreeMap<u32, f64> {
    let mut worth: BTreeMap<u32, f64> = BTreeMap::new();
    let mut below: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    // A call has a higher number than the one it continues.
    for call in calls.iter().rev() {
        let later = below.get(&call.call).map(|all| {
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            discount * mean
        });
        let value = match (own.get(&call.call), later) {
            (None, None) => continue,
            (own, later) => own.copied().unwrap_or(0.0) + later.unwrap_or(0.0),
        };
        worth.insert(call.call, value);
        if let Some(parent) = call.parent {
            below.entry(parent).or_default().push(value);
        }
    }
    worth
}

/// The row of a sequence that was held against the records.
fn row_of(id: &str, sequence: &Sequence) -> Result<TrainingRow, String> {
    let missing = |name: &str| format!("sequence `{id}` has no `{name}`");
    let matched = (
        &sequence.loss_mask,
        &sequence.logprobs,
        &sequence.versions,
        &sequence.temperatures,
    );
    let (Some(loss_mask), Some(logprobs), Some(versions), Some(temperatures)) = matched else {
        return Err(missing("loss_mask"));
    };
    Ok(TrainingRow {
        id: id.to_owned(),
        calls: vec![],
        ids: sequence.input_ids.clone(),
        loss_mask: loss_mask.clone(),
        logprobs: logprobs.clone(),
        versions: versions
            .iter()
            .map(|version| u64::try_from(*version).ok().map(PolicyVersion))
            .collect(),
        temperatures: temperatures.clone(),
        constrained: vec![],
    })
}

#[cfg(test)]
mod tests {
    use osmosis_core::Reward;
    use osmosis_core::generation::LogprobsOf;
    use osmosis_tokens::Origin;

    use super::*;

    /// Calls of one token each; `parent` continues.
    fn records(parents: &[Option<u32>]) -> Vec<TokenRecord> {
        let mut lengths: Vec<u32> = Vec::new();
        let mut made = Vec::new();
        for (call, parent) in (0..).zip(parents) {
            let before = parent.map_or(0, |parent| lengths[parent as usize]);
            lengths.push(before + 2);
            made.push(TokenRecord {
                call,
                origin: match parent {
                    Some(parent) => Origin::Continues {
                        call: *parent,
                        kept: before,
                    },
                    None => Origin::Root { reason: None },
                },
                prompt_suffix: vec![1],
                sampled: vec![10 + call],
                logprobs: vec![-0.5],
                versions: vec![PolicyVersion(0)],
                temperature: 0.7,
                logprobs_of: LogprobsOf::Tempered,
                complete: true,
                one_of_several: false,
                replaces: vec![],
                constraint: None,
            });
        }
        made
    }

    fn units(
        parents: &[Option<u32>],
        own: &[(u32, f64)],
        training: &Training,
    ) -> Vec<(f64, Vec<u32>)> {
        let main = SampleId::main();
        let interactions = own.iter().map(|(call, reward)| Interaction {
            completion: format!("chatcmpl-{call}"),
            calls: vec![*call],
            reward: Reward::new(*reward).unwrap(),
        });
        let credit = Credit {
            interactions: interactions.collect(),
            sequences: vec![],
        };
        let crediting = Crediting {
            training,
            records: BTreeMap::from([(main.clone(), records(parents))]),
            credits: BTreeMap::from([(main.clone(), credit)]),
        };
        let units = crediting
            .units(&RolloutId::of(0, 0), &[(main, 1.0)])
            .unwrap();
        let sampled = |row: &TrainingRow| -> Vec<u32> {
            let trained = row.ids.iter().zip(&row.loss_mask);
            trained.filter(|(_, on)| **on).map(|(id, _)| *id).collect()
        };
        let told = units.iter().map(|unit| {
            let rows = unit.rows.iter();
            (unit.reward, rows.flat_map(sampled).collect())
        });
        told.collect()
    }

    /// Two branches that follow call 0, of which 1 goes on as 3.
    const TREE: [Option<u32>; 4] = [None, Some(0), Some(0), Some(1)];

    #[test]
    fn a_reward_of_the_whole_sample_is_one_unit() {
        let found = units(&TREE, &[], &Training::default());
        assert_eq!(found, [(1.0, vec![10, 12, 11, 13])]);
    }

    #[test]
    fn the_turn_discount_follows_the_tree_and_not_the_order_of_arrival() {
        let training = Training {
            turn_discount: 0.5,
            ..Training::default()
        };
        let found = units(&TREE, &[], &training);
        // Leaves have the sample's reward; call 0 half of the mean of 1 (0.5) and 2 (1.0).
        assert_eq!(
            found,
            [
                (0.375, vec![10]),
                (0.5, vec![11]),
                (1.0, vec![12]),
                (1.0, vec![13])
            ]
        );
    }

    #[test]
    fn rewards_by_completion_go_to_their_calls_and_to_what_led_to_them() {
        let training = Training {
            turn_discount: 0.5,
            ..Training::default()
        };
        let found = units(&TREE, &[(1, 1.0), (3, -1.0)], &training);
        // Nothing is said of call 2.
        assert_eq!(found, [(0.25, vec![10]), (0.5, vec![11]), (-1.0, vec![13])]);
        let none = Training {
            turn_discount: 0.0,
            ..training
        };
        let found = units(&[None, Some(0)], &[(1, 1.0)], &none);
        assert_eq!(found, [(0.0, vec![10]), (1.0, vec![11])]);
    }

    #[test]
    fn concat_has_a_unit_for_each_conversation_with_the_worth_of_its_end() {
        let training = Training {
            export_style: ExportStyle::Concat,
            ..Training::default()
        };
        let found = units(&TREE, &[(2, 0.25), (3, 2.0)], &training);
        assert_eq!(found, [(0.25, vec![10, 12]), (2.0, vec![11, 13])]);
    }

    #[test]
    fn choices_that_nobody_went_on_from_have_no_part_in_the_reward() {
        let main = SampleId::main();
        let mut two = records(&[None, None, Some(1)]);
        for choice in &mut two[..2] {
            choice.one_of_several = true;
        }
        let rewarded = Credit {
            interactions: vec![Interaction {
                completion: "chatcmpl-0".to_owned(),
                calls: vec![0, 1],
                reward: Reward::new(1.0).unwrap(),
            }],
            sequences: vec![],
        };
        let discounted = Training {
            turn_discount: 0.5,
            ..Training::default()
        };
        for (training, credit, expected) in [
            (Training::default(), Credit::default(), vec![2]),
            (discounted, Credit::default(), vec![1, 1]),
            (Training::default(), rewarded, vec![1]),
        ] {
            let crediting = Crediting {
                training: &training,
                records: BTreeMap::from([(main.clone(), two.clone())]),
                credits: BTreeMap::from([(main.clone(), credit)]),
            };
            let units = crediting
                .units(&RolloutId::of(0, 0), &[(main.clone(), 1.0)])
                .unwrap();
            let trained = |unit: &Unit| {
                let masks = unit.rows.iter().flat_map(|row| &row.loss_mask);
                masks.filter(|on| **on).count()
            };
            assert_eq!(units.iter().map(trained).collect::<Vec<_>>(), expected);
            let ids = units.iter().flat_map(|unit| &unit.rows).map(|row| &row.ids);
            assert!(ids.clone().all(|ids| !ids.contains(&10)), "{units:?}");
        }
    }

    #[test]
    fn sequences_are_units_of_what_the_calls_sampled() {
        let sequence = Sequence {
            input_ids: vec![1, 10, 7],
            loss_mask: Some(vec![false, true, false]),
            logprobs: Some(vec![0.0, -0.1, -0.2]),
            versions: Some(vec![-1, 3, 3]),
            temperatures: None,
            reward: Some(Reward::new(0.5).unwrap()),
            id: None,
        };
        let main = SampleId::main();
        let found = |sequence: &Sequence| {
            let credit = Credit {
                interactions: vec![],
                sequences: vec![sequence.clone()],
            };
            let crediting = Crediting {
                training: &Training::default(),
                records: BTreeMap::from([(main.clone(), records(&[None]))]),
                credits: BTreeMap::from([(main.clone(), credit)]),
            };
            crediting.units(&RolloutId::of(0, 0), &[(main.clone(), 0.5)])
        };
        let units = found(&sequence).unwrap();
        let row = &units[0].rows[0];
        assert_eq!(row.temperatures, [1.0, 0.7, 1.0]);
        assert_eq!(row.logprobs, [0.0, -0.5, 0.0]);
        assert_eq!(row.versions, [None, Some(PolicyVersion(0)), None]);
        for (change, message) in [
            (
                Sequence {
                    loss_mask: None,
                    ..sequence.clone()
                },
                "sequence `main/0` has no `loss_mask`",
            ),
            (
                Sequence {
                    loss_mask: Some(vec![false, true, true]),
                    ..sequence.clone()
                },
                "position 2, ids [7]",
            ),
        ] {
            let error = found(&change).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
