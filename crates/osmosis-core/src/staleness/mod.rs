//! When rollouts of a training run may start, and which of them may be trained on.
//!
//! Asynchronous training goes on with rollouts while the policy is updated. What they sampled may then be
//! some versions old when it is trained on, at most `max_staleness`. [`Admission`] keeps that bound by two
//! means: it starts no more than can be trained on in time, and it looks at the version of every token
//! again when it hands out a batch. It does no I/O and knows no clock: a driver tells it what happened and
//! does what it decides.
//!
//! # Units
//!
//! A **group** in here is all rollouts of one visit to a dataset row, its *members*. (Its rewards are
//! compared per sample name and turn; that is the trainer's business.) A batch is `rollout_batch_size`
//! groups, as in the synchronous loop. Only as many rollouts run at once as `max_concurrent` says, and a
//! group of which one member has started holds the place of all its members. So the rule
//!
//! ```text
//! capacity = min(max_concurrent - running, (max_staleness + version + 1) * batch - (accepted + running))
//! ```
//!
//! is in rollouts on its left and in whole groups on its right: see [`Admission::capacity`].
//!
//! # The life of a group
//!
//! *Open* (admitted, members start, run and end), *ready* (complete, and fresh enough), *taken* (in the
//! batch that is trained on), *trained*. It is complete exactly once. A group that can't be trained on any
//! more is discarded, in the asynchronous pace: what of it runs is cancelled, it leaves the count, and
//! another one is admitted in its place. *Accepted* are those ready, taken and trained.
//!
//! ```
//! use std::num::{NonZeroU32, NonZeroU64};
//! use osmosis_core::PolicyVersion;
//! use osmosis_core::config::IncompleteGroups;
//! use osmosis_core::staleness::{
//!     Admission, Batches, Decision, MemberEnd, Pace, Plan, StaleRows, Straggler,
//! };
//!
//! let mut admission = Admission::begin(Plan {
//!     batches: Batches { groups: NonZeroU32::MIN, rows: None, steps: Some(10) },
//!     members: NonZeroU32::new(2).unwrap(),
//!     max_concurrent: NonZeroU64::new(8).unwrap(),
//!     pace: Pace::of(1, StaleRows::Drop, Straggler::Wait),
//!     incomplete_groups: IncompleteGroups::Drop,
//! });
//!
//! // One group for the first update, and one that will be a version old at the second.
//! let started = admission.admit();
//! assert_eq!(started.len(), 4);
//!
//! for member in &started[..2] {
//!     let versions = [None, Some(PolicyVersion(0)), Some(PolicyVersion(0))];
//!     let end = MemberEnd::Scored { tokens: versions.into_iter().collect() };
//!     let decisions = admission.finished(*member, end)?;
//!     if member.number == 1 {
//!         assert_eq!(decisions, [Decision::Ready(member.group)]);
//!     }
//! }
//! let batch = admission.take_batch().unwrap();
//! assert_eq!((batch.staleness.tokens(), batch.staleness.max()), (4, Some(0)));
//!
//! // While the update runs there is no room; after it there is.
//! assert!(admission.admit().is_empty());
//! admission.trained()?;
//! admission.advance(PolicyVersion(1))?;
//! assert_eq!(admission.admit().len(), 2);
//! # Ok::<(), osmosis_core::staleness::AdmissionError>(())
//! ```

mod admission;
mod batch;
mod decision;
mod group;
mod histogram;
mod plan;
mod window;

pub use admission::{Admission, Standing};
pub use batch::{Batch, BatchGroup, BatchMember, Trainable};
pub use decision::{AdmissionError, Counts, Decision, DiscardReason, Place, WaitsFor};
pub use group::{GroupId, MemberEnd, MemberId};
pub use histogram::StalenessHistogram;
pub use plan::{Batches, GroupCount, Pace, Plan, RolloutCount, StaleRows, Straggler};
pub use window::{TokenVersions, Window};

#[cfg(test)]
mod observed;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
