use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::window::TokenVersions;

/// The place of a group in the stream of all groups of a run, from 0. Of `r` rows it is row `id % r` in the
/// order of epoch `id / r`, which is how the synchronous schedule goes through them, too.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct GroupId(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One rollout of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId {
    pub group: GroupId,
    /// From 0. Those a group was topped up with come after its `n_samples_per_prompt`, and are no more
    /// than these.
    pub number: u32,
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.group, self.number)
    }
}

/// How a rollout ended, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEnd {
    Scored {
        /// Of all its rows together.
        tokens: TokenVersions,
    },
    /// It failed, timed out, was rejected, left ungraded or cancelled: there is no reward.
    Unscored,
}

/// The scored members of a group by their numbers.
pub(super) type Scored = BTreeMap<u32, TokenVersions>;

/// A group whose members are on their way.
#[derive(Debug, Clone)]
pub(super) struct OpenGroup {
    /// The number of the next member to start.
    next: u32,
    /// Members up to this number are to be started.
    end: u32,
    /// Whether those that run are known to be stragglers.
    running: BTreeMap<u32, bool>,
    scored: Scored,
}

impl OpenGroup {
    pub(super) fn new(members: u32) -> Self {
        Self {
            next: 0,
            end: members,
            running: BTreeMap::new(),
            scored: Scored::new(),
        }
    }

    pub(super) fn start(&mut self) -> Option<u32> {
        let number = self.next;
        (number < self.end).then(|| {
            self.next += 1;
            self.running.insert(number, false);
            number
        })
    }

    /// `false` when no such member runs.
    pub(super) fn finish(&mut self, number: u32, end: MemberEnd) -> bool {
        let ran = self.running.remove(&number).is_some();
        match end {
            MemberEnd::Scored { tokens } if ran => {
                self.scored.insert(number, tokens);
            }
            MemberEnd::Scored { .. } | MemberEnd::Unscored => {}
        }
        ran
    }

    /// Lets one more start, once per straggler and at most `limit` in all; `false` when it does not.
    pub(super) fn top_up(&mut self, straggler: u32, limit: u32) -> bool {
        match self.running.get_mut(&straggler) {
            Some(known) if !*known && self.end < limit => {
                *known = true;
                self.end += 1;
                true
            }
            Some(_) | None => false,
        }
    }

    pub(super) fn unstarted(&self) -> u64 {
        u64::from(self.end - self.next)
    }

    pub(super) fn running(&self) -> u64 {
        self.running.len() as u64
    }

    pub(super) fn scored(&self) -> usize {
        self.scored.len()
    }

    pub(super) fn ended(&self) -> bool {
        self.running.is_empty() && self.next == self.end
    }

    /// How many may be scored in the end.
    pub(super) fn hoped_for(&self) -> usize {
        self.scored.len() + self.running.len() + (self.end - self.next) as usize
    }

    /// What still runs, and what was scored.
    pub(super) fn close(self) -> (impl Iterator<Item = u32>, Scored) {
        (self.running.into_keys(), self.scored)
    }
}
