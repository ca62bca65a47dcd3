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

    /// The inputs that the fuzzers start from, and every one that once broke something.
    #[test]
    fn every_seed_of_the_fuzzers_passes() {
        let targets: [(&str, fn(&[u8])); 2] = [
            ("rollout_requests", rollout_requests),
            ("rollout_callbacks", rollout_callbacks),
        ];
        for (name, target) in targets {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/");
            let mut ran = 0;
            for entry in std::fs::read_dir(format!("{folder}{name}")).unwrap() {
                target(&std::fs::read(entry.unwrap().path()).unwrap());
                ran += 1;
            }
            assert!(ran > 0, "there are no seeds for {name}");
        }
    }
}
