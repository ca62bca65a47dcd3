//! Where an earlier process stood, from what the store has.

use std::collections::BTreeSet;

use osmosis_core::PolicyVersion;
use osmosis_core::staleness::{GroupId, Standing};
use osmosis_store::{BatchRecord, RolloutPages, RolloutQuery, Store};

use super::content::BatchContent;
use super::numbering::Numbering;
use crate::TrainError;

/// Which batches count as trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trained {
    /// Those of the first steps: the weights after them are there. The next one may be recorded too.
    Through(u64),
    /// Those that a trainer from outside acknowledged. It may still have the one that it did not.
    Acknowledged,
}

/// What an earlier process left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub(crate) standing: Standing,
    /// Given up since the last batch that counts: to be told with the next one.
    pub(crate) discarded: Vec<GroupId>,
    /// The batch that was recorded and not trained on for good. Somebody may have seen it: it stays as it
    /// is.
    pub(crate) outstanding: Option<BatchRecord>,
}

pub(crate) async fn read(
    store: &dyn Store,
    numbering: &mut Numbering,
    version: PolicyVersion,
    counts: Trained,
) -> Result<Left, TrainError> {
    let mut left = Left::default();
    let mut done = BTreeSet::new();
    for record in store.batches().await? {
        let content = BatchContent::read(&record)?;
        let groups = content.groups.iter().map(|group| group.id);
        done.extend(content.discarded.iter().copied());
        let (trained, next) = match counts {
            Trained::Through(step) => (record.number <= step, record.number == step + 1),
            Trained::Acknowledged => (record.acknowledged_at_ms.is_some(), true),
        };
        if trained {
            left.standing.trained_batches += 1;
            done.extend(groups);
        } else if next {
            left.standing.taken = Some(groups.collect());
            left.outstanding = Some(record);
        } else {
            // Of steps that can't be repeated, because one before them is gone: it is formed again, perhaps
            // of others.
            left.discarded.extend(content.discarded);
        }
    }
    left.standing.version = version;
    let admitted = admitted(store, numbering).await?;
    left.standing.next = GroupId(admitted.last().map_or(0, |group| group.0 + 1));
    left.standing.again = admitted.difference(&done).copied().collect();
    Ok(left)
}

async fn admitted(
    store: &dyn Store,
    numbering: &mut Numbering,
) -> Result<BTreeSet<GroupId>, TrainError> {
    let mut groups = BTreeSet::new();
    let mut pages = RolloutPages::new(store, RolloutQuery::default());
    while let Some(page) = pages.next().await? {
        let members = page
            .iter()
            .filter_map(|rollout| numbering.member(rollout.row_index, rollout.run_index));
        groups.extend(members.map(|member| member.group));
    }
    Ok(groups)
}
