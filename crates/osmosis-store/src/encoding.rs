//! How backends write records down: what is the same in every database. For backends; nothing else needs it.

mod delta;
mod outcomes;
mod token_payload;

pub use delta::{Base, Conversations, MAX_CHAIN, Shared};
pub use outcomes::{outcome_detail, read_outcome, read_rewards, sample_rewards};
pub use token_payload::{join_token_records, part_token_records};

/// What is stored is not what a backend stores.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SenselessRecord(pub String);
