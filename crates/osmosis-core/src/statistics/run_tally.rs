//! Collects the rollouts of a run, for its numbers.

use std::collections::BTreeMap;

use super::run_numbers::{DurationNumbers, PhaseNumbers, RunNumbers};
use super::{
    Cluster, ClusteredMean, Interval, OutcomeCounts, RewardNumbers, bootstrap_interval, pass_at_k,
    pass_hat_k,
};
use crate::{Durations, OutcomeKind, Reward, RewardRange};

/// What the numbers need to know about one rollout with a result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RolloutFact {
    pub row_index: u64,
    pub run_index: u32,
    pub kind: OutcomeKind,
    /// Only a scored rollout has one.
    pub reward: Option<Reward>,
    pub passed: bool,
    pub durations: Durations,
    pub model_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// `None` when no call was told.
    pub cached_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
}

/// Collects rollouts as they finish, in any order; a few dozen bytes each.
#[derive(Debug, Clone, Default)]
pub struct RunTally {
    runs_per_row: u32,
    reward_range: Option<RewardRange>,
    outcomes: OutcomeCounts,
    passed: u64,
    without_model_calls: u64,
    model_calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
    /// Rollouts of each row that ran, and how many of them passed.
    rows: BTreeMap<u64, (u32, u32)>,
    rewards: Vec<(u64, u32, f64)>,
    queue: Vec<f64>,
    agent: Vec<f64>,
    model: Vec<f64>,
    grade: Vec<f64>,
}

impl RunTally {
    /// For a run with `runs_per_row` rollouts of each row, which is how far pass@k goes.
    pub fn new(runs_per_row: u32) -> Self {
        Self {
            runs_per_row,
            ..Self::default()
        }
    }

    /// With rewards that lie in this range, when one is stated.
    #[must_use]
    pub fn within(self, reward_range: Option<RewardRange>) -> Self {
        Self {
            reward_range,
            ..self
        }
    }

    pub fn add(&mut self, fact: &RolloutFact) {
        self.outcomes.add(fact.kind);
        self.model_calls += fact.model_calls;
        self.prompt_tokens += fact.prompt_tokens;
        self.completion_tokens += fact.completion_tokens;
        add_known(&mut self.cached_tokens, fact.cached_tokens);
        add_known(&mut self.reasoning_tokens, fact.reasoning_tokens);
        if let Some(reward) = fact.reward {
            self.rewards
                .push((fact.row_index, fact.run_index, reward.get()));
        }
        if !fact.kind.ran() {
            return;
        }
        let (ran, passed) = self.rows.entry(fact.row_index).or_default();
        *ran += 1;
        if fact.passed {
            *passed += 1;
            self.passed += 1;
        }
        self.queue.push(fact.durations.queue);
        self.agent.push(fact.durations.agent);
        if fact.model_calls > 0 {
            self.model.push(fact.durations.model);
        } else {
            self.without_model_calls += 1;
        }
        if fact.durations.grade > 0.0 {
            self.grade.push(fact.durations.grade);
        }
    }

    /// Rollouts with a result so far.
    pub fn rollouts(&self) -> u64 {
        self.outcomes.total()
    }

    /// Passed / all that ran, so far.
    pub fn pass_rate(&self) -> Option<f64> {
        share(self.passed, self.outcomes.ran())
    }

    pub fn outcomes(&self) -> OutcomeCounts {
        self.outcomes
    }

    /// All the numbers; the same for the same rollouts in whatever order they came.
    pub fn numbers(&self) -> RunNumbers {
        let rows: Vec<Cluster> = self
            .rows
            .values()
            .map(|(ran, passed)| (u64::from(*ran), f64::from(*passed)))
            .collect();
        let mut numbers = RunNumbers {
            rollouts: self.outcomes.total(),
            ran: self.outcomes.ran(),
            passed: self.passed,
            rows: rows.len() as u64,
            outcomes: self.outcomes,
            pass_rate: self.pass_rate(),
            pass_rate_ci95: share_interval(&rows),
            pass_rate_ci95_bootstrap: bootstrap_interval(&rows),
            reward: RewardNumbers::of(self.rewards.clone(), self.reward_range),
            pass_at_k: BTreeMap::new(),
            pass_at_k_ci95: BTreeMap::new(),
            pass_hat_k: BTreeMap::new(),
            pass_hat_k_ci95: BTreeMap::new(),
            pass_k_rows: BTreeMap::new(),
            model_calls: self.model_calls,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens: self.cached_tokens,
            reasoning_tokens: self.reasoning_tokens,
            without_model_calls: Some(self.without_model_calls),
            durations: PhaseNumbers {
                queue: DurationNumbers::of(&self.queue),
                agent: DurationNumbers::of(&self.agent),
                model: DurationNumbers::of(&self.model),
                grade: DurationNumbers::of(&self.grade),
            },
        };
        for k in 1..=self.runs_per_row {
            let (mut at, mut hat): (Vec<Cluster>, Vec<Cluster>) = (vec![], vec![]);
            for (n, c) in self.rows.values() {
                if let (Some(row_at), Some(row_hat)) = (pass_at_k(*n, *c, k), pass_hat_k(*n, *c, k))
                {
                    at.push((1, row_at));
                    hat.push((1, row_hat));
                }
            }
            let mean = |rows: &[Cluster]| ClusteredMean::of(rows.iter().copied()).map(|m| m.mean);
            numbers.pass_at_k.insert(k, mean(&at));
            numbers.pass_at_k_ci95.insert(k, share_interval(&at));
            numbers.pass_hat_k.insert(k, mean(&hat));
            numbers.pass_hat_k_ci95.insert(k, share_interval(&hat));
            numbers.pass_k_rows.insert(k, at.len() as u64);
        }
        numbers
    }
}

fn add_known(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}

fn share_interval(rows: &[Cluster]) -> Option<Interval> {
    ClusteredMean::of(rows.iter().copied()).and_then(|mean| mean.share_interval())
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
