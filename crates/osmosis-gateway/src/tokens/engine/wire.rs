//! What the servers' dialects have in common.

use osmosis_core::generation::{DrawKey, StopReason};

/// A token as a server tells it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Drawn {
    pub(super) id: u32,
    pub(super) logprob: f32,
    pub(super) alternatives: Vec<(u32, f32)>,
}

/// What one event says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Heard {
    pub(super) tokens: Vec<Drawn>,
    pub(super) end: Option<StopReason>,
    /// The number of the weights, when the server says it.
    pub(super) version: Option<u64>,
}

/// The same key gives the same seed; servers want one that is not negative.
pub(super) fn seed_of(key: &DrawKey) -> u64 {
    let bytes = &key.0;
    let mut seed = [0; 8];
    seed.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(seed) >> 1
}
