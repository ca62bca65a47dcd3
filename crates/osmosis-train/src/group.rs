//! Groups and advantages: what a reward says about the rollout that earned it.
//!
//! A *group* is one visit to a dataset row times one sample name: its members answered the same prompt, so their
//! rewards can be compared. Calls with rewards of their own are compared with calls of the same turn: what
//! is still to come differs from turn to turn. Only rewards count. A rollout that failed, timed out, was rejected, cancelled
//! or left ungraded has none, and is never taken for one with reward 0.

use std::collections::{BTreeMap, BTreeSet};

use osmosis_core::config::{Algorithm, IncompleteGroups};
use osmosis_core::staleness::GroupId;
use osmosis_core::{RolloutId, SampleId};

/// Keeps the division finite. Groups whose rewards are equal never get that far.
const EPSILON: f64 = 1e-6;

/// Rewards that differ by less than this, relative to their size, are equal up to rounding.
const EQUAL: f64 = 1e-9;

/// What rewards are compared by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupName {
    pub sample: SampleId,
    /// From 0; always 0 for rewards of whole samples.
    pub turn: u32,
}

/// A rollout of a step, as far as groups care.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupMember {
    pub id: RolloutId,
    /// Which visit to which dataset row it belongs to.
    pub visit: GroupId,
    /// The reward of each kept sample, or several when its parts have rewards of their own; `None` when the
    /// rollout was not scored.
    pub rewards: Option<Vec<(GroupName, f64)>>,
}

/// What the groups of a step say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Groups {
    /// Of the samples of the used groups, for each of their rewards in order.
    pub advantages: BTreeMap<(RolloutId, GroupName), Vec<f64>>,
    pub used: u64,
    /// Left out: all rewards equal, or only one member.
    pub no_variance: u64,
    /// Left out: rewards are missing.
    pub incomplete: u64,
    /// The members of the groups with and without variance: what the objective is a mean over.
    pub samples: u64,
    /// The members of the groups without variance.
    pub flat: BTreeSet<(RolloutId, GroupName)>,
}

/// Puts the rollouts of a step into groups.
pub fn groups(members: &[GroupMember], algorithm: Algorithm, policy: IncompleteGroups) -> Groups {
    let mut visits: BTreeMap<GroupId, Vec<&GroupMember>> = BTreeMap::new();
    for member in members {
        visits.entry(member.visit).or_default().push(member);
    }
    let mut groups = Groups::default();
    let mut whole: Vec<(GroupName, Vec<(&RolloutId, f64)>)> = Vec::new();
    for members in visits.values() {
        let names: BTreeSet<&GroupName> = members
            .iter()
            .flat_map(|member| member.rewards.iter().flatten().map(|(name, _)| name))
            .collect();
        if names.is_empty() {
            groups.incomplete += 1;
        }
        let complete = members.iter().all(|member| member.rewards.is_some());
        for name in names {
            let scored: Vec<(&RolloutId, f64)> = members
                .iter()
                .flat_map(|member| {
                    let rewards = member.rewards.iter().flatten();
                    let of_name = rewards.filter(|(other, _)| other == name);
                    of_name.map(|(_, reward)| (&member.id, *reward))
                })
                .collect();
            let fewest = match algorithm {
                Algorithm::ReinforcePlusPlus => 1,
                Algorithm::Grpo
                | Algorithm::DrGrpo
                | Algorithm::Rloo
                | Algorithm::ReinforcePlusPlusBaseline => 2,
            };
            let usable = match policy {
                IncompleteGroups::Drop => complete,
                IncompleteGroups::Keep => complete || scored.len() >= fewest,
            };
            if !usable {
                groups.incomplete += 1;
            } else if algorithm == Algorithm::ReinforcePlusPlus {
                whole.push((name.clone(), scored));
            } else {
                groups.compare(name, &scored, algorithm);
            }
        }
    }
    groups.compare_whole(&whole);
    if algorithm == Algorithm::ReinforcePlusPlusBaseline {
        groups.normalize();
    }
    groups
}

/// Whether a complete group, alone, has something to learn from. Where rewards are compared with those of the whole
/// batch, equal ones of a group do too.
pub fn teaches(members: &[GroupMember], algorithm: Algorithm, policy: IncompleteGroups) -> bool {
    let groups = groups(members, algorithm, policy);
    groups.used > 0 || algorithm == Algorithm::ReinforcePlusPlus && groups.no_variance > 0
}

impl Groups {
    fn compare(&mut self, name: &GroupName, scored: &[(&RolloutId, f64)], algorithm: Algorithm) {
        self.samples += scored.len() as u64;
        let rewards: Vec<f64> = scored.iter().map(|(_, reward)| *reward).collect();
        let Some(advantages) = advantages(&rewards, algorithm) else {
            self.no_variance += 1;
            self.add_flat(name, scored);
            return;
        };
        self.used += 1;
        for ((id, _), advantage) in scored.iter().zip(advantages) {
            let key = ((*id).clone(), name.clone());
            self.advantages.entry(key).or_default().push(advantage);
        }
    }

    fn add_flat(&mut self, name: &GroupName, scored: &[(&RolloutId, f64)]) {
        let keys = scored.iter().map(|(id, _)| ((*id).clone(), name.clone()));
        self.flat.extend(keys);
    }

    /// Compares all rewards of a batch with each other.
    fn compare_whole(&mut self, groups: &[(GroupName, Vec<(&RolloutId, f64)>)]) {
        let all = groups.iter().flat_map(|(_, scored)| scored);
        let rewards: Vec<f64> = all.map(|(_, reward)| *reward).collect();
        self.samples += rewards.len() as u64;
        let Some(advantages) = advantages(&rewards, Algorithm::ReinforcePlusPlus) else {
            self.no_variance += groups.len() as u64;
            for (name, scored) in groups {
                self.add_flat(name, scored);
            }
            return;
        };
        self.used += groups.len() as u64;
        let mut advantages = advantages.into_iter();
        for (name, scored) in groups {
            for ((id, _), advantage) in scored.iter().zip(&mut advantages) {
                let key = ((*id).clone(), name.clone());
                self.advantages.entry(key).or_default().push(advantage);
            }
        }
    }

    /// Brings all advantages to mean 0 and standard deviation 1. Those of groups without variance are 0 and count.
    fn normalize(&mut self) {
        let count = self.samples as f64;
        let all = || self.advantages.values().flatten();
        let mean = all().sum::<f64>() / count;
        let squares: f64 = all().map(|a| (a - mean).powi(2)).sum();
        let flat = (self.samples - all().count() as u64) as f64;
        let std = ((squares + flat * mean.powi(2)) / count).sqrt();
        for advantage in self.advantages.values_mut().flatten() {
            *advantage = (*advantage - mean) / (std + EPSILON);
        }
    }
}

/// The advantages of a group's rewards; `None` when they don't differ.
///
/// - GRPO: `(r - mean) / (std + 1e-6)`, `std` over the group as a population.
/// - Dr. GRPO: `r - mean`.
/// - RLOO: `r - mean of the others`, which is `(r - mean) · n / (n - 1)`.
/// - REINFORCE++: GRPO's, where the group is the whole batch.
/// - REINFORCE++-baseline: `r - mean`, which [`groups`] then normalises over the batch.
pub fn advantages(rewards: &[f64], algorithm: Algorithm) -> Option<Vec<f64>> {
    let low = rewards.iter().copied().fold(f64::INFINITY, f64::min);
    let high = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if rewards.len() < 2 || high - low <= EQUAL * high.abs().max(low.abs()) {
        return None;
    }
    let count = rewards.len() as f64;
    let mean = rewards.iter().sum::<f64>() / count;
    let scale = match algorithm {
        Algorithm::Grpo | Algorithm::ReinforcePlusPlus => {
            let variance = rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / count;
            1.0 / (variance.sqrt() + EPSILON)
        }
        Algorithm::DrGrpo | Algorithm::ReinforcePlusPlusBaseline => 1.0,
        Algorithm::Rloo => count / (count - 1.0),
    };
    Some(rewards.iter().map(|r| (r - mean) * scale).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(row: u64, run: u32, rewards: Option<&[(&str, f64)]>) -> GroupMember {
        GroupMember {
            id: RolloutId::of(row, run),
            visit: GroupId(row),
            rewards: rewards.map(|rewards| {
                rewards
                    .iter()
                    .map(|(name, reward)| (group(name), *reward))
                    .collect()
            }),
        }
    }

    fn group(name: &str) -> GroupName {
        GroupName {
            sample: SampleId::new(name).unwrap(),
            turn: 0,
        }
    }

    fn of(members: &[GroupMember], policy: IncompleteGroups) -> Groups {
        groups(members, Algorithm::DrGrpo, policy)
    }

    fn advantage(groups: &Groups, row: u64, run: u32, name: &str) -> Option<f64> {
        let key = (RolloutId::of(row, run), group(name));
        groups.advantages.get(&key).map(|all| all[0])
    }

    #[test]
    fn advantages_are_those_computed_by_hand() {
        #[derive(serde::Deserialize)]
        struct Cases {
            rewards: Vec<Vec<f64>>,
            advantages: Vec<Case>,
        }
        #[derive(serde::Deserialize)]
        struct Case {
            algorithm: String,
            /// Of each group; nothing for one that is left out.
            advantages: Vec<Option<Vec<f64>>>,
        }
        let text = include_str!("../../osmosis-core/fixtures/objectives.json");
        let cases: Cases = serde_json::from_str(text).unwrap();
        let members: Vec<GroupMember> = (0..)
            .zip(&cases.rewards)
            .flat_map(|(row, rewards)| {
                let each = (0..).zip(rewards);
                each.map(move |(run, reward)| member(row, run, Some(&[("main", *reward)])))
            })
            .collect();
        for case in cases.advantages {
            let algorithm = match case.algorithm.as_str() {
                "grpo" => Algorithm::Grpo,
                "dr_grpo" => Algorithm::DrGrpo,
                "rloo" => Algorithm::Rloo,
                "reinforce_plus_plus" => Algorithm::ReinforcePlusPlus,
                "reinforce_plus_plus_baseline" => Algorithm::ReinforcePlusPlusBaseline,
                other => panic!("algorithm `{other}`"),
            };
            let groups = groups(&members, algorithm, IncompleteGroups::Drop);
            for ((row, rewards), expected) in (0..).zip(&cases.rewards).zip(&case.advantages) {
                for run in 0..rewards.len() {
                    let found = advantage(&groups, row, u32::try_from(run).unwrap(), "main");
                    let expected = expected.as_ref().map(|all| all[run]);
                    let apart = found.unwrap_or(0.0) - expected.unwrap_or(0.0);
                    assert!(
                        found.is_some() == expected.is_some() && apart.abs() < 1e-12,
                        "{}: {found:?}, by hand {expected:?}",
                        case.algorithm
                    );
                }
            }
        }
    }

    #[test]
    fn equal_rewards_and_lone_members_say_nothing() {
        for algorithm in [Algorithm::Grpo, Algorithm::DrGrpo, Algorithm::Rloo] {
            assert_eq!(advantages(&[0.3, 0.1 + 0.2, 0.3], algorithm), None);
            assert_eq!(advantages(&[0.0; 8], algorithm), None);
            assert_eq!(advantages(&[1.0], algorithm), None);
            assert_eq!(advantages(&[], algorithm), None);
        }
    }

    #[test]
    fn an_unscored_rollout_makes_its_group_incomplete_and_is_never_a_zero() {
        let members = [
            member(0, 0, Some(&[("main", 1.0)])),
            member(0, 1, Some(&[("main", 0.5)])),
            member(0, 2, None),
            member(1, 0, Some(&[("main", 1.0)])),
            member(1, 1, Some(&[("main", 0.0)])),
            member(1, 2, Some(&[("main", 0.0)])),
        ];
        let dropped = of(&members, IncompleteGroups::Drop);
        assert_eq!(
            (dropped.used, dropped.incomplete, dropped.samples),
            (1, 1, 3)
        );
        assert_eq!(advantage(&dropped, 0, 0, "main"), None);

        let kept = of(&members, IncompleteGroups::Keep);
        assert_eq!((kept.used, kept.incomplete, kept.samples), (2, 0, 5));
        assert_eq!(advantage(&kept, 0, 0, "main"), Some(0.25));
        assert_eq!(advantage(&kept, 0, 2, "main"), None);
    }

    #[test]
    fn keeping_needs_two_rewards() {
        let members = [
            member(0, 0, Some(&[("main", 1.0)])),
            member(0, 1, None),
            member(1, 0, None),
            member(1, 1, None),
        ];
        let kept = of(&members, IncompleteGroups::Keep);
        assert_eq!((kept.used, kept.no_variance, kept.incomplete), (0, 0, 2));
    }

    #[test]
    fn samples_of_one_rollout_are_in_groups_of_their_own() {
        let members = [
            member(0, 0, Some(&[("solver", 1.0), ("critic", 0.0)])),
            member(0, 1, Some(&[("solver", 0.0), ("critic", 0.0)])),
            // The critic was not asked, which is no failure.
            member(0, 2, Some(&[("solver", 0.5)])),
        ];
        let groups = of(&members, IncompleteGroups::Drop);
        assert_eq!(
            (groups.used, groups.no_variance, groups.incomplete),
            (1, 1, 0)
        );
        assert_eq!(groups.samples, 5);
        assert_eq!(advantage(&groups, 0, 0, "solver"), Some(0.5));
        assert_eq!(advantage(&groups, 0, 0, "critic"), None);
    }

    /// Row 0 varies a little, row 1 a lot, row 2 not at all.
    fn batch_of_three() -> Vec<GroupMember> {
        [[1.0, 0.5], [4.0, 0.0], [3.0, 3.0]]
            .into_iter()
            .zip(0..)
            .flat_map(|(rewards, row)| {
                let each = rewards.into_iter().zip(0..);
                each.map(move |(reward, run)| member(row, run, Some(&[("main", reward)])))
            })
            .collect()
    }

    #[test]
    fn reinforce_plus_plus_compares_with_the_whole_batch() {
        let members = batch_of_three();
        let rewards = [1.0, 0.5, 4.0, 0.0, 3.0, 3.0];
        let groups = groups(
            &members,
            Algorithm::ReinforcePlusPlus,
            IncompleteGroups::Drop,
        );
        assert_eq!((groups.used, groups.no_variance, groups.samples), (3, 0, 6));
        let mean = rewards.iter().sum::<f64>() / 6.0;
        let std = (rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / 6.0).sqrt();
        for (at, reward) in rewards.into_iter().enumerate() {
            let (row, run) = (at as u64 / 2, u32::try_from(at % 2).unwrap());
            let found = advantage(&groups, row, run, "main").unwrap();
            assert!((found - (reward - mean) / std).abs() < 1e-5, "{found}");
        }
        // The flat group teaches beside others, and a batch of equal rewards does not.
        let flat = &members[4..];
        assert!(teaches(
            flat,
            Algorithm::ReinforcePlusPlus,
            IncompleteGroups::Drop
        ));
        assert!(!teaches(flat, Algorithm::Grpo, IncompleteGroups::Drop));
        let alone = super::groups(flat, Algorithm::ReinforcePlusPlus, IncompleteGroups::Drop);
        assert_eq!((alone.used, alone.no_variance, alone.flat.len()), (0, 1, 2));
    }

    #[test]
    fn reinforce_plus_plus_baseline_normalizes_differences_over_the_batch() {
        let algorithm = Algorithm::ReinforcePlusPlusBaseline;
        let groups = groups(&batch_of_three(), algorithm, IncompleteGroups::Drop);
        assert_eq!((groups.used, groups.no_variance, groups.samples), (2, 1, 6));
        // Differences: ±0.25, ±2, 0, 0.
        let std = (2.0 * (0.25_f64.powi(2) + 4.0) / 6.0).sqrt();
        for (row, run, difference) in [(0, 0, 0.25), (0, 1, -0.25), (1, 0, 2.0), (1, 1, -2.0)] {
            let found = advantage(&groups, row, run, "main").unwrap();
            assert!((found - difference / std).abs() < 1e-5, "{found}");
        }
        assert_eq!(advantage(&groups, 2, 0, "main"), None);
        assert_eq!(groups.flat.len(), 2);
    }

    #[test]
    fn one_attempt_per_row_is_enough_to_compare_with_the_batch() {
        let members: Vec<GroupMember> = [1.0, 0.0, 0.0]
            .into_iter()
            .zip(0..)
            .map(|(reward, row)| member(row, 0, Some(&[("main", reward)])))
            .collect();
        let algorithm = Algorithm::ReinforcePlusPlus;
        let groups = groups(&members, algorithm, IncompleteGroups::Drop);
        assert_eq!((groups.used, groups.no_variance), (3, 0));
        assert!(advantage(&groups, 0, 0, "main").unwrap() > 1.0);
    }

    proptest! {
        #[test]
        fn advantages_sum_to_zero_and_keep_the_order(
            rewards in prop::collection::vec(-5.0f64..5.0, 2..12), which in 0usize..3
        ) {
            let algorithm = [Algorithm::Grpo, Algorithm::DrGrpo, Algorithm::Rloo][which];
            if let Some(advantages) = advantages(&rewards, algorithm) {
                prop_assert!(advantages.iter().sum::<f64>().abs() < 1e-6);
                for (i, a) in rewards.iter().enumerate() {
                    for (j, b) in rewards.iter().enumerate() {
                        if a < b {
                            prop_assert!(advantages[i] < advantages[j]);
                        }
                    }
                }
            }
        }

        #[test]
        fn every_group_is_counted_once(
            rewards in prop::collection::vec(prop::option::of(0u8..3), 1..24), keep: bool
        ) {
            let members: Vec<GroupMember> = (0u32..).zip(&rewards).map(|(at, reward)| {
                let main = reward.map(|r| [("main", f64::from(r))]);
                member(u64::from(at / 4), at % 4, main.as_ref().map(<[_; 1]>::as_slice))
            }).collect();
            let policy = if keep { IncompleteGroups::Keep } else { IncompleteGroups::Drop };
            let groups = of(&members, policy);
            let rows = rewards.len().div_ceil(4) as u64;
            prop_assert_eq!(groups.used + groups.no_variance + groups.incomplete, rows);
            prop_assert!(groups.advantages.len() as u64 <= groups.samples);
        }
    }
}
