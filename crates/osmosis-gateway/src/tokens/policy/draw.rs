//! Where the random numbers and the ids of an answer come from: from what is asked and where in the run
//! it is asked, so that a run repeats bit for bit.

use std::fmt::Write as _;

use osmosis_core::generation::DrawKey;
use osmosis_core::{RolloutId, SampleId};
use sha2::{Digest, Sha256};

/// The place of a call in a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) seed: u64,
    pub(super) rollout: &'a RolloutId,
    pub(super) sample: &'a SampleId,
    /// The call's number within its sample.
    pub(super) call: u32,
}

impl Place<'_> {
    /// The draws of one choice. The attempt is no part of it: a rollout that is run again after a crash
    /// sees the same numbers.
    pub(super) fn draw_key(&self, choice: u32) -> DrawKey {
        DrawKey(hash(
            "osmosis draw key, version 1",
            &[
                &self.seed.to_le_bytes(),
                self.rollout.as_str().as_bytes(),
                self.sample.as_str().as_bytes(),
                &self.call.to_le_bytes(),
                &choice.to_le_bytes(),
            ],
        ))
    }

    /// Differs from that of every other call of the run.
    pub(super) fn completion_id(&self) -> String {
        let hash = hash(
            "osmosis completion id, version 1",
            &[
                &self.seed.to_le_bytes(),
                self.rollout.as_str().as_bytes(),
                self.sample.as_str().as_bytes(),
                &self.call.to_le_bytes(),
            ],
        );
        format!("chatcmpl-{}", hex(&hash[..16]))
    }
}

/// The draws of one choice when the caller brings a seed: equal requests get equal answers.
pub(super) fn callers_draw_key(seed: i64, choice: u32) -> DrawKey {
    DrawKey(hash(
        "osmosis draw key of a caller, version 1",
        &[&seed.to_le_bytes(), &choice.to_le_bytes()],
    ))
}

/// Differs from that of every other tool call of the run: agents find results by it.
pub(super) fn tool_call_id(completion_id: &str, choice: u32, position: usize) -> String {
    let hash = hash(
        "osmosis tool call id, version 1",
        &[
            completion_id.as_bytes(),
            &choice.to_le_bytes(),
            &(position as u64).to_le_bytes(),
        ],
    );
    format!("call_{}", hex(&hash[..12]))
}

/// A hash in which neither the domain nor the borders between the parts can be mistaken.
fn hash(domain: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [domain.as_bytes()].iter().chain(parts) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_place_and_every_choice_draws_differently() {
        let mut keys = HashSet::new();
        let mut ids = HashSet::new();
        let names = ["a", "a-", "-a"];
        for seed in [0, 1] {
            for rollout in names {
                for sample in names {
                    for call in [0, 1, 256] {
                        let (rollout, sample) = (
                            RolloutId::new(rollout).unwrap(),
                            SampleId::new(sample).unwrap(),
                        );
                        let place = Place {
                            seed,
                            rollout: &rollout,
                            sample: &sample,
                            call,
                        };
                        assert!(ids.insert(place.completion_id()));
                        for choice in [0, 1] {
                            assert!(keys.insert(place.draw_key(choice)));
                        }
                    }
                }
            }
        }
        for seed in [0, 1, -1] {
            for choice in [0, 1] {
                assert!(keys.insert(callers_draw_key(seed, choice)));
            }
        }
    }

    #[test]
    fn keys_and_ids_stay_what_they_are() {
        // A run that is resumed by a newer program must draw the same numbers.
        let (rollout, sample) = (RolloutId::of(3, 1), SampleId::main());
        let place = Place {
            seed: 7,
            rollout: &rollout,
            sample: &sample,
            call: 2,
        };
        let id = place.completion_id();
        insta::assert_snapshot!(
            format!(
                "{}\n{}\n{}\n{}",
                hex(&place.draw_key(0).0),
                hex(&callers_draw_key(7, 0).0),
                id,
                tool_call_id(&id, 0, 0),
            ),
            @"
        cd7463918bff1423a7023666db4a51dad308b6b304881a407a35f987dad792b4
        a57e71384da81e18ad31b5d9c8c03508e67aa043e0caefc524b2f05dca58e4c2
        chatcmpl-c1948f888107f370e170cd68b4f1720d
        call_3516d6693fce0ca142e33a75
        "
        );
    }
}
