//! What must hold for any bytes whatever, of controllers and of rollout servers: for the programs in `fuzz/`, and
//! for their seeds in a test.

use std::sync::LazyLock;

use osmosis_gateway::RelayPolicy;

use crate::remote;
use crate::request::RolloutRequest;

static RELAY: LazyLock<RelayPolicy> = LazyLock::new(|| RelayPolicy::new("m"));

/// A request is taken with a row that says all of it and none of its keys, or refused.
pub fn rollout_requests(body: &[u8]) {
    if let Ok(request) = RolloutRequest::parse(body, &RELAY) {
        let row: serde_json::Value = match serde_json::from_str(request.row.as_str()) {
            Ok(row) => row,
            Err(error) => unreachable!("{error}: {}", request.row.as_str()),
        };
        assert!(row["initial_messages"].is_array());
        assert!(!request.id.as_str().is_empty());
    }
}

/// What a rollout server tells is read, or what is wrong with it is said.
pub fn rollout_callbacks(body: &[u8]) {
    remote::fuzzing(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../../fuzz/run_seeds.rs");

    #[test]
    fn every_seed_of_the_fuzzers_and_its_changes_pass() {
        run_seeds(&[
            ("rollout_requests", rollout_requests),
            ("rollout_callbacks", rollout_callbacks),
        ]);
    }
}
