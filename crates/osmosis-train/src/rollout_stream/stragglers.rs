//! Which rollouts take much longer than the others of their group.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use osmosis_core::staleness::{GroupId, MemberId};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(200);
/// Below this, a difference says more about the machine than about the rollout.
const SHORT: Duration = Duration::from_millis(100);

/// What is known of how long rollouts take.
#[derive(Debug)]
pub(super) struct Stragglers {
    factor: f64,
    /// Rollouts of a group.
    members: u32,
    began: HashMap<MemberId, Instant>,
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

    pub(super) fn ends(&mut self, member: MemberId) {
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
