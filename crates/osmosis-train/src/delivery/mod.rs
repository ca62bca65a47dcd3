//! What a trainer outside of this process gets: batches of complete groups, as training rows.
//!
//! A batch is given out until it is acknowledged: by its number it is known whether it was. The same batch
//! is the same rows each time, in JSON (serde) and as an Arrow stream ([`to_arrow`]).

mod arrow;
mod counter;
mod outside;
mod version;
mod weights;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use osmosis_core::staleness::GroupId;
use osmosis_core::{PolicyVersion, RolloutId, SampleId};
use osmosis_tokens::TrainingRow;
use serde::{Deserialize, Serialize};

pub use self::arrow::to_arrow;
pub use self::outside::{OutsideParts, OutsidePlan, OutsideTraining};
pub use self::version::AnnouncedVersion;
pub use self::weights::AnnouncedWeights;
use crate::TrainError;

/// Stands in [`DeliveredRow::versions`] where the policy did not sample the token.
pub const NOT_SAMPLED: i64 = -1;

/// The groups of one update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeliveredBatch {
    /// From 1, without gaps.
    pub number: u64,
    /// Of the weights that were served when the batch was put together. What its tokens were sampled with
    /// is at most `max_staleness` versions older.
    pub version: PolicyVersion,
    pub rows: Vec<DeliveredRow>,
}

/// One training row. All vectors have the length of `ids`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeliveredRow {
    pub group: GroupId,
    /// The dataset row that all members of the group answered.
    pub row_index: u64,
    pub rollout_id: RolloutId,
    pub sample_id: SampleId,
    /// `<sample>/<n>`, once in a rollout.
    pub row: String,
    pub ids: Vec<u32>,
    /// 1 where the token was sampled and is trained on in this row, else 0.
    pub loss_mask: Vec<u8>,
    /// log-softmax(logits / temperature) when the token was sampled; 0 where it was not.
    pub logprobs: Vec<f32>,
    /// The weights that sampled the token, or [`NOT_SAMPLED`].
    pub versions: Vec<i64>,
    /// Of the sampled tokens; 1 elsewhere.
    pub temperatures: Vec<f32>,
    pub reward: f64,
    /// What the reward says beside those of its group, by the run's `algorithm`.
    pub advantage: f64,
}

impl DeliveredRow {
    /// A row of a sample, with what the sample earned.
    pub fn new(whose: RowOwner<'_>, row: &TrainingRow, reward: f64, advantage: f64) -> Self {
        let version = |version: &Option<PolicyVersion>| {
            version.map_or(NOT_SAMPLED, |version| {
                i64::try_from(version.0).unwrap_or(i64::MAX)
            })
        };
        Self {
            group: whose.group,
            row_index: whose.row_index,
            rollout_id: whose.rollout.clone(),
            sample_id: whose.sample.clone(),
            row: row.id.clone(),
            ids: row.ids.clone(),
            loss_mask: row.loss_mask.iter().map(|&on| u8::from(on)).collect(),
            logprobs: row.logprobs.clone(),
            versions: row.versions.iter().map(version).collect(),
            temperatures: row.temperatures.clone(),
            reward,
            advantage,
        }
    }
}

/// Whose row it is.
#[derive(Debug, Clone, Copy)]
pub struct RowOwner<'a> {
    pub group: GroupId,
    pub row_index: u64,
    pub rollout: &'a RolloutId,
    pub sample: &'a SampleId,
}

/// Where a trainer gets its batches.
#[async_trait]
pub trait BatchSource: Send + Sync + fmt::Debug {
    /// The oldest batch that is not acknowledged, of those with a number above `after`, as soon as there
    /// is one. May be dropped at any time: what was to be given is given to the next who asks.
    async fn next(&self, after: Option<u64>, wait: Duration) -> Result<NextBatch, TrainError>;

    /// Whether this is the batch that `next` gives out, not acknowledged yet. Who takes a while between
    /// `next` and its answer looks again, because somebody else may have acknowledged it meanwhile.
    fn is_outstanding(&self, number: u64) -> bool;

    /// The trainer has made its update of this batch, durably. When this returns, that is recorded, and no
    /// call of `next` gives it out again, in this process or in a later one.
    async fn acknowledge(&self, number: u64) -> Result<Acknowledged, TrainError>;
}

/// What whoever asks for a batch gets.
#[derive(Debug, Clone, PartialEq)]
pub enum NextBatch {
    Batch(Arc<DeliveredBatch>),
    /// In the time that was given there was none.
    Nothing(WaitingFor),
    /// The process is about to end: the batch is to be had from the next one.
    Stopping,
}

/// Why there is no batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WaitingFor {
    /// Groups are on their way.
    #[default]
    Rollouts,
    /// No rollout may begin, lest it be too old, before the trainer announces another version.
    Version,
    /// The batch before is not acknowledged.
    Acknowledgement,
    /// The run has all its batches; there will be no more.
    End,
}

impl WaitingFor {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rollouts => "rollouts",
            Self::Version => "version",
            Self::Acknowledgement => "acknowledgement",
            Self::End => "end",
        }
    }
}

/// What came of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    Now,
    /// It was acknowledged before; nothing changed.
    Before,
    /// Nobody was given this batch yet.
    NotHandedOut,
    /// There is no such batch.
    Unknown,
    /// The process is about to end: it is to be said to the next one.
    Stopping,
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn batch() -> DeliveredBatch {
        let row = TrainingRow {
            id: "main/0".to_owned(),
            calls: vec![0],
            ids: vec![5, 70_000, 7],
            loss_mask: vec![false, true, true],
            logprobs: vec![0.0, -0.125, -1.5],
            versions: vec![None, Some(PolicyVersion(3)), Some(PolicyVersion(4))],
            temperatures: vec![1.0, 0.5, 0.5],
            constrained: vec![],
        };
        let (rollout, sample) = (RolloutId::of(9, 1), SampleId::main());
        let owner = RowOwner {
            group: GroupId(12),
            row_index: 9,
            rollout: &rollout,
            sample: &sample,
        };
        DeliveredBatch {
            number: 2,
            version: PolicyVersion(4),
            rows: vec![DeliveredRow::new(owner, &row, 1.0, 0.5)],
        }
    }

    #[test]
    fn the_json_of_a_batch_is_flat_and_reads_back() {
        let batch = batch();
        let text = serde_json::to_string(&batch).unwrap();
        assert_eq!(
            text,
            "{\"number\":2,\"version\":4,\"rows\":[{\"group\":12,\"row_index\":9,\
             \"rollout_id\":\"r9-1\",\"sample_id\":\"main\",\"row\":\"main/0\",\"ids\":[5,70000,7],\
             \"loss_mask\":[0,1,1],\"logprobs\":[0.0,-0.125,-1.5],\"versions\":[-1,3,4],\
             \"temperatures\":[1.0,0.5,0.5],\"reward\":1.0,\"advantage\":0.5}]}"
        );
        let read: DeliveredBatch = serde_json::from_str(&text).unwrap();
        assert_eq!(read, batch);
    }
}
