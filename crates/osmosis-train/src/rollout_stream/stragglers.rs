//! Which rollouts take much longer than the others of their group.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use osmosis_core::staleness::{GroupId, MemberId};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(200);
/// How often is asked what other processes have begun.
const ASK: Duration = Duration::from_secs(1);
/// Below this, a difference says more about the machine than about the rollout.
const SHORT: Duration = Duration::from_millis(100);

/// What is known of how long rollouts take.
#[derive(Debug)]
pub(super) struct Stragglers {
    factor: f64,
    /// Rollouts of a group.
    members: u32,
    began: HashMap<MemberId, Instant>,
    /// The attempts at those that other processes run.
    elsewhere: HashMap<MemberId, u32>,
    asked_at: Option<Instant>,
    /// How long those that ended took, by group.
    took: HashMap<GroupId, Vec<Duration>>,
    ticks: Interval,
}

impl Stragglers {
    pub(super) fn new(factor: f64, members: u32) -> Self {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            factor,
            members,
            began: HashMap::new(),
            elsewhere: HashMap::new(),
            asked_at: None,
            took: HashMap::new(),
            ticks,
        }
    }

    /// Waits until it is time to look again.
    pub(super) async fn tick(&mut self) {
        self.ticks.tick().await;
    }

    /// Its agent begins, for the first time or once more.
    pub(super) fn begins(&mut self, member: MemberId) {
        self.began.insert(member, Instant::now());
    }

    /// Whether it is time to ask what other processes have begun.
    pub(super) fn asks_elsewhere(&mut self) -> bool {
        let due = self.asked_at.is_none_or(|at| at.elapsed() >= ASK);
        if due {
            self.asked_at = Some(Instant::now());
        }
        due
    }

    /// Whether another process may have begun it.
    pub(super) fn may_be_elsewhere(&self, member: MemberId) -> bool {
        !self.began.contains_key(&member) || self.elsewhere.contains_key(&member)
    }

    /// So many attempts were made at a rollout that may run elsewhere; its agent begins with each.
    pub(super) fn attempted(&mut self, member: MemberId, attempts: u32) {
        let known = self.elsewhere.get(&member).copied().unwrap_or(0);
        if attempts > known {
            self.elsewhere.insert(member, attempts);
            self.begins(member);
        }
    }

    pub(super) fn ends(&mut self, member: MemberId) {
        self.elsewhere.remove(&member);
        if let Some(began) = self.began.remove(&member) {
            let took = self.took.entry(member.group).or_default();
            took.push(began.elapsed());
        }
    }

    pub(super) fn forget(&mut self, group: GroupId) {
        self.took.remove(&group);
    }

    pub(super) fn now(&self) -> Vec<MemberId> {
        let mut found: Vec<MemberId> = self
            .began
            .iter()
            .filter(|(member, began)| {
                let took = self.took.get(&member.group).map_or(&[][..], Vec::as_slice);
                straggles(began.elapsed(), took, self.members, self.factor)
            })
            .map(|(member, _)| *member)
            .collect();
        found.sort_unstable();
        found
    }
}

/// Half of the group must have ended: before that nobody knows what is long.
fn straggles(runs_for: Duration, took: &[Duration], members: u32, factor: f64) -> bool {
    if took.is_empty() || took.len() * 2 < members as usize {
        return false;
    }
    let mut sorted = took.to_vec();
    sorted.sort_unstable();
    let median = sorted[(sorted.len() - 1) / 2].as_secs_f64();
    runs_for >= SHORT && runs_for.as_secs_f64() > median * factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_straggles_when_half_of_its_group_ended_and_it_takes_a_multiple_of_their_median() {
        let seconds = |all: &[u64]| -> Vec<Duration> {
            all.iter().copied().map(Duration::from_secs).collect()
        };
        let straggles = |runs_for: u64, took: &[u64]| {
            straggles(Duration::from_secs(runs_for), &seconds(took), 4, 3.0)
        };
        assert!(!straggles(60, &[1]), "too few have ended");
        assert!(straggles(60, &[1, 2]));
        assert!(!straggles(5, &[2, 9]));
        assert!(straggles(7, &[9, 2, 1]));
        assert!(!straggles(6, &[9, 2, 1]));
    }
}
