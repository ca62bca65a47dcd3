//! The attempts at one dataset row, side by side, with what training makes of their rewards.

use std::collections::BTreeMap;

use osmosis_core::config::Training;
use osmosis_core::staleness::GroupId;
use osmosis_core::{JsonText, RolloutId, SampleId};
use osmosis_data::Row;
use osmosis_store::{RolloutQuery, RolloutRecord, RunRecord, Store};
use osmosis_train::group::{GroupMember, GroupName, Groups, groups};
use osmosis_train::{RolloutRows, rows_of, visit_of};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{OrderedMap, RolloutLine};
use super::tokens::path_ids;
use crate::runs::Pinned;
use crate::train::{HeldOutRows, training_of};
use crate::{RunError, RunErrorKind};

/// The `data` of `GET /api/v1/runs/{run}/rows/{row}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowGroup {
    pub row_index: u64,
    /// The line of the dataset file, from 1.
    pub line: u64,
    /// What the grader compares with; `null` when the row has no such column.
    pub label: Option<String>,
    pub row: JsonText,
    /// One for each time that training came to the row; other runs have one.
    pub visits: Vec<RowVisit>,
}

/// Rollouts whose rewards are compared with each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowVisit {
    /// From 0.
    pub visit: u32,
    #[serde(rename = "use")]
    pub group_use: GroupUse,
    /// `grpo`, `dr_grpo` or `rloo`.
    pub algorithm: String,
    /// Tokens that the rollouts begin with alike; `null` when fewer than two have token ids.
    pub common_prefix: Option<u64>,
    pub rollouts: Vec<GroupedRollout>,
}

/// What training made of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupUse {
    Trained,
    /// Left out: all rewards are equal, so no attempt was better than another.
    NoVariance,
    /// Left out: rollouts have no reward.
    Incomplete,
    /// An evaluation of a training run; never trained on.
    HeldOut,
    /// No training run: the advantages are what GRPO would make of these rewards.
    Hypothetical,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupedRollout {
    #[serde(flatten)]
    pub line: RolloutLine,
    /// By sample, one for each of its rewards; empty when it has none.
    pub advantages: OrderedMap<Vec<f64>>,
    /// Why it has no advantage, when it has none.
    pub without_advantage: Option<String>,
    /// Decoded greedily, to measure.
    pub greedy: bool,
}

/// What decides which rollouts are compared.
#[derive(Debug)]
pub(super) struct Grouping {
    training: Training,
    /// Only in training a row is visited more than once.
    trained: bool,
    held_out: HeldOutRows,
    regraded: bool,
}

impl Grouping {
    pub(super) fn of(record: &RunRecord) -> Result<Self, RunError> {
        let pinned = Pinned::read(&record.pinned)?;
        let training = training_of(record);
        Ok(Self {
            held_out: training
                .as_ref()
                .map_or(HeldOutRows::None, |it| HeldOutRows::of(it, &pinned)),
            trained: training.is_some(),
            training: training.unwrap_or_default(),
            regraded: pinned.regraded_from.is_some(),
        })
    }

    fn is_held_out(&self, rollout: &RolloutRecord) -> bool {
        self.trained && (rollout.id.is_greedy() || self.held_out.has(rollout.row_index))
    }

    fn visit(&self, rollout: &RolloutRecord) -> u32 {
        if self.trained && !self.is_held_out(rollout) {
            visit_of(&self.training, rollout.run_index)
        } else {
            0
        }
    }

    /// Of a training: whether and how much a rollout is trained on depends on the others of its visit.
    pub(super) async fn visit_with(
        &self,
        store: &dyn Store,
        calls: &dyn Store,
        rollout: &RolloutRecord,
    ) -> Result<RowVisit, RunError> {
        let wanted = self.visit(rollout);
        let mut together = of_row(store, rollout.row_index).await?;
        together.retain(|other| self.visit(other) == wanted);
        self.compare(store, calls, wanted, together).await
    }

    async fn compare(
        &self,
        store: &dyn Store,
        calls: &dyn Store,
        visit: u32,
        rollouts: Vec<RolloutRecord>,
    ) -> Result<RowVisit, RunError> {
        let ids: Vec<RolloutId> = rollouts.iter().map(|rollout| rollout.id.clone()).collect();
        let samples = store.samples_of(&ids).await?;
        let mut members = vec![];
        let mut why_not: BTreeMap<RolloutId, String> = BTreeMap::new();
        let mut paths = vec![];
        for (rollout, samples) in rollouts.iter().zip(&samples) {
            let samples: &[_] = if self.regraded { &[] } else { samples };
            let rows = rows_of(calls, rollout, samples, &self.training).await?;
            let rewards = match rows {
                RolloutRows::Rows(rows) => Some(rows.iter().map(name_and_reward).collect()),
                RolloutRows::Unscored => None,
                RolloutRows::NoTokens { why } | RolloutRows::Nothing { why } => {
                    if self.trained {
                        why_not.insert(rollout.id.clone(), why);
                    }
                    Some(rewards_of(rollout))
                }
            };
            if rewards.is_none() {
                let why = "it has no reward".to_owned();
                why_not.insert(rollout.id.clone(), why);
            }
            members.push(GroupMember {
                id: rollout.id.clone(),
                visit: GroupId(u64::from(visit)),
                rewards,
            });
            paths.extend(path_ids(calls, &rollout.id).await?);
        }
        let compared = groups(
            &members,
            self.training.algorithm,
            self.training.incomplete_groups,
        );
        let would_be = if rollouts.iter().any(|rollout| self.is_held_out(rollout)) {
            GroupUse::HeldOut
        } else if compared.used == 0 && compared.no_variance > 0 {
            GroupUse::NoVariance
        } else if compared.used == 0 {
            GroupUse::Incomplete
        } else {
            GroupUse::Trained
        };
        let group_use = if self.trained {
            would_be
        } else {
            GroupUse::Hypothetical
        };
        let attempts = rollouts.len();
        let common_prefix = (paths.len() > 1).then(|| common_prefix(&paths));
        let rollouts = rollouts.iter().map(|rollout| {
            let advantages = advantages_of(&compared, &rollout.id);
            let held_out = group_use == GroupUse::HeldOut;
            let advantages = if held_out {
                OrderedMap::default()
            } else {
                advantages
            };
            let why = why_not.remove(&rollout.id).or_else(|| {
                let why = match would_be {
                    GroupUse::HeldOut => "held-out rows are never trained on",
                    GroupUse::NoVariance if attempts == 1 => "it is the only rollout of its row",
                    GroupUse::NoVariance => "all rollouts of its row got the same reward",
                    GroupUse::Incomplete => "other rollouts of its row have no reward",
                    GroupUse::Trained | GroupUse::Hypothetical => return None,
                };
                Some(why.to_owned())
            });
            GroupedRollout {
                line: RolloutLine::of(rollout),
                advantages,
                without_advantage: why,
                greedy: rollout.id.is_greedy(),
            }
        });
        Ok(RowVisit {
            visit,
            group_use,
            algorithm: algorithm_word(&self.training),
            common_prefix,
            rollouts: rollouts.collect(),
        })
    }
}

impl RowGroup {
    /// `calls` is where the calls are: another run when this one only grades.
    pub async fn of(
        store: &dyn Store,
        calls: &dyn Store,
        record: &RunRecord,
        row_index: u64,
    ) -> Result<Self, RunError> {
        let grouping = Grouping::of(record)?;
        let stored = store.row(row_index).await?.ok_or_else(|| {
            RunError::failed(
                RunErrorKind::RolloutNotFound,
                format!("run `{}` has no row {row_index}", record.name),
            )
        })?;
        let mut by_visit: BTreeMap<u32, Vec<RolloutRecord>> = BTreeMap::new();
        for rollout in of_row(store, row_index).await? {
            by_visit
                .entry(grouping.visit(&rollout))
                .or_default()
                .push(rollout);
        }
        let mut visits = vec![];
        for (visit, rollouts) in by_visit {
            visits.push(grouping.compare(store, calls, visit, rollouts).await?);
        }
        let row = Row::from_body(stored.row_index, stored.line, &stored.body).ok();
        Ok(Self {
            row_index,
            line: stored.line,
            label: row.and_then(|row| row.label),
            row: stored.body,
            visits,
        })
    }
}

async fn of_row(store: &dyn Store, row_index: u64) -> Result<Vec<RolloutRecord>, RunError> {
    let query = RolloutQuery {
        row_index: Some(row_index),
        ..RolloutQuery::default()
    };
    Ok(store.rollouts(query).await?.items)
}

fn name_and_reward(rows: &osmosis_train::RewardedRows) -> (GroupName, f64) {
    let name = GroupName {
        sample: rows.sample.clone(),
        turn: rows.turn,
    };
    (name, rows.reward)
}

/// The rewards of whole samples.
fn rewards_of(rollout: &RolloutRecord) -> Vec<(GroupName, f64)> {
    let rewards = rollout.rewards.iter();
    let of_sample = |(sample, reward): &(SampleId, Option<osmosis_core::Reward>)| {
        let name = GroupName {
            sample: sample.clone(),
            turn: 0,
        };
        Some((name, (*reward)?.get()))
    };
    rewards.filter_map(of_sample).collect()
}

fn advantages_of(compared: &Groups, id: &RolloutId) -> OrderedMap<Vec<f64>> {
    let mut by_sample: Vec<(String, Vec<f64>)> = vec![];
    for ((rollout, name), advantages) in &compared.advantages {
        if rollout != id {
            continue;
        }
        let sample = name.sample.to_string();
        match by_sample.iter_mut().find(|(known, _)| *known == sample) {
            Some((_, known)) => known.extend(advantages),
            None => by_sample.push((sample, advantages.clone())),
        }
    }
    by_sample.into_iter().collect()
}

/// As the config writes it.
fn algorithm_word(training: &Training) -> String {
    serde_json::to_value(training.algorithm)
        .ok()
        .and_then(|word| word.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn common_prefix(paths: &[Vec<u32>]) -> u64 {
    let Some((first, others)) = paths.split_first() else {
        return 0;
    };
    let alike = |other: &Vec<u32>| first.iter().zip(other).take_while(|(a, b)| a == b).count();
    others.iter().map(alike).min().unwrap_or_default() as u64
}
