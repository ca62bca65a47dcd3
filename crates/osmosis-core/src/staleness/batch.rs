use crate::PolicyVersion;

use super::group::{GroupId, Scored};
use super::histogram::StalenessHistogram;
use super::plan::{Plan, RolloutCount, StaleRows};
use super::window::Freshness;

/// What one update is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The version that its tokens were checked against.
    pub version: PolicyVersion,
    /// In the order of their ids, so that sums round the same whoever finished first.
    pub groups: Vec<BatchGroup>,
    /// Of the tokens to train on.
    pub staleness: StalenessHistogram,
    /// Tokens that must be masked: see [`Window::mask`](super::Window::mask).
    pub masked_tokens: u64,
    /// Scored rollouts that are left out of their groups because they are stale.
    pub stale_rollouts: RolloutCount,
}

/// A group to train on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchGroup {
    pub id: GroupId,
    /// Empty for a group that only keeps its place, which is so in the synchronous pace only.
    pub members: Vec<BatchMember>,
}

/// A rollout to train on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchMember {
    pub number: u32,
    pub trainable: Trainable,
}

/// Which tokens of a rollout are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trainable {
    /// All that the policy sampled.
    All,
    /// Those that are not stale, which may be none: its reward is compared all the same.
    FreshOnly,
}

impl Plan {
    /// The members that may be trained on with this version; `None` when the group can't be.
    pub(super) fn usable(
        &self,
        scored: &Scored,
        version: PolicyVersion,
    ) -> Option<Vec<BatchMember>> {
        let window = self.window(version);
        let mut members = Vec::with_capacity(scored.len());
        let (mut any_stale, mut any_fresh) = (false, false);
        for (number, tokens) in scored {
            let freshness = window.freshness(tokens);
            any_stale |= freshness != Freshness::Fresh;
            any_fresh |= freshness != Freshness::Stale && !tokens.is_empty();
            let trainable = match (freshness, self.pace.stale_rows()) {
                (Freshness::Fresh, StaleRows::Drop | StaleRows::Mask) => Trainable::All,
                (Freshness::PartlyStale | Freshness::Stale, StaleRows::Mask) => {
                    Trainable::FreshOnly
                }
                (Freshness::PartlyStale | Freshness::Stale, StaleRows::Drop) => continue,
            };
            members.push(BatchMember {
                number: *number,
                trainable,
            });
        }
        // Groups that never sampled a token are none of our business.
        let nothing_left = any_stale && !any_fresh;
        (!nothing_left && self.enough(members.len())).then_some(members)
    }
}

impl Batch {
    pub(super) fn of<'a>(
        plan: &Plan,
        version: PolicyVersion,
        groups: impl IntoIterator<Item = (&'a GroupId, &'a Scored)>,
    ) -> Self {
        let window = plan.window(version);
        let mut batch = Self {
            version,
            groups: Vec::new(),
            staleness: StalenessHistogram::default(),
            masked_tokens: 0,
            stale_rollouts: RolloutCount(0),
        };
        for (id, scored) in groups {
            let members = plan.usable(scored, version).unwrap_or_default();
            for tokens in members
                .iter()
                .filter_map(|member| scored.get(&member.number))
            {
                batch.masked_tokens += window.count(tokens, &mut batch.staleness);
            }
            let stale = scored
                .values()
                .filter(|tokens| window.freshness(tokens) != Freshness::Fresh);
            batch.stale_rollouts.0 += match plan.pace.stale_rows() {
                StaleRows::Drop => stale.count() as u64,
                StaleRows::Mask => 0,
            };
            batch.groups.push(BatchGroup { id: *id, members });
        }
        batch
    }
}
