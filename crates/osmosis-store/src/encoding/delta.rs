//! A request that extends the previous one of its conversation, told by what is new.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use osmosis_core::{Attempt, RolloutId, SampleId};

/// How many bases a reader has to go through at most.
pub const MAX_CHAIN: u32 = 16;
/// Shared bytes below which a request is stored whole: the saving would not pay for the extra read.
const MIN_SHARED: usize = 256;
/// How much is remembered of conversations that may go on. Beyond it the longest idle are forgotten,
/// which costs a whole copy of their next request and nothing else.
const MAX_REMEMBERED_BYTES: usize = 32 * 1024 * 1024;

/// What two byte strings have in common at both ends, without overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    pub prefix: usize,
    pub suffix: usize,
}

impl Shared {
    pub fn of(base: &[u8], new: &[u8]) -> Self {
        let prefix = common_prefix(base, new);
        let suffix = common_suffix(&base[prefix..], &new[prefix..]);
        Self { prefix, suffix }
    }

    /// The part of `new` that is in neither end.
    pub fn middle<'a>(&self, new: &'a [u8]) -> &'a [u8] {
        &new[self.prefix..new.len() - self.suffix]
    }

    /// The new bytes again; `None` when the base is too short to be the right one.
    pub fn join(&self, base: &[u8], middle: &[u8]) -> Option<Vec<u8>> {
        let head = base.get(..self.prefix)?;
        let tail = base.get(base.len().checked_sub(self.suffix)?..)?;
        Some([head, middle, tail].concat())
    }
}

// Whole blocks are compared first: requests are tens of kilobytes and mostly equal.
const BLOCK: usize = 64;

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a
        .chunks_exact(BLOCK)
        .zip(b.chunks_exact(BLOCK))
        .take_while(|(a, b)| a == b)
        .count()
        * BLOCK;
    blocks
        + a[blocks..]
            .iter()
            .zip(&b[blocks..])
            .take_while(|(a, b)| a == b)
            .count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a
        .rchunks_exact(BLOCK)
        .zip(b.rchunks_exact(BLOCK))
        .take_while(|(a, b)| a == b)
        .count()
        * BLOCK;
    blocks
        + a[..a.len() - blocks]
            .iter()
            .rev()
            .zip(b[..b.len() - blocks].iter().rev())
            .take_while(|(a, b)| a == b)
            .count()
}

/// The request of a call that later ones may extend.
#[derive(Debug, Clone)]
pub struct Base {
    pub call_id: i64,
    pub chain_length: u32,
    pub request: Bytes,
}

impl Base {
    /// What `request` shares with this one, when it is worth it.
    pub fn shared_with(&self, request: &[u8]) -> Option<Shared> {
        if self.chain_length >= MAX_CHAIN {
            return None;
        }
        let shared = Shared::of(&self.request, request);
        (shared.prefix + shared.suffix >= MIN_SHARED).then_some(shared)
    }
}

/// The last request of each conversation that goes on.
#[derive(Debug, Default)]
pub struct Conversations {
    rollouts: HashMap<RolloutId, Remembered>,
    /// By last use, the longest idle first.
    idle: BTreeMap<u64, RolloutId>,
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Remembered {
    attempt: Attempt,
    last_use: u64,
    samples: Vec<(SampleId, Base)>,
}

impl Remembered {
    fn bytes(&self) -> usize {
        self.samples
            .iter()
            .map(|(_, base)| base.request.len())
            .sum()
    }
}

impl Conversations {
    pub fn base(&self, rollout: &RolloutId, attempt: Attempt, sample: &SampleId) -> Option<&Base> {
        let remembered = self.rollouts.get(rollout)?;
        if remembered.attempt != attempt {
            return None;
        }
        let (_, base) = remembered.samples.iter().find(|(id, _)| id == sample)?;
        Some(base)
    }

    pub fn remember(
        &mut self,
        rollout: &RolloutId,
        attempt: Attempt,
        sample: &SampleId,
        base: Base,
    ) {
        self.uses += 1;
        self.bytes += base.request.len();
        let known = self.rollouts.get_mut(rollout);
        if let Some(known) = known.filter(|known| known.attempt == attempt) {
            match known.samples.iter_mut().find(|(id, _)| id == sample) {
                Some((_, last)) => {
                    self.bytes -= last.request.len();
                    *last = base;
                }
                None => known.samples.push((sample.clone(), base)),
            }
            let name = self.idle.remove(&known.last_use);
            known.last_use = self.uses;
            self.idle
                .insert(self.uses, name.unwrap_or_else(|| rollout.clone()));
        } else {
            self.forget(rollout);
            let remembered = Remembered {
                attempt,
                last_use: self.uses,
                samples: vec![(sample.clone(), base)],
            };
            self.idle.insert(self.uses, rollout.clone());
            self.rollouts.insert(rollout.clone(), remembered);
        }
        while self.bytes > MAX_REMEMBERED_BYTES {
            let Some((_, longest_idle)) = self.idle.pop_first() else {
                break;
            };
            self.forget(&longest_idle);
        }
    }

    pub fn forget(&mut self, rollout: &RolloutId) {
        if let Some(remembered) = self.rollouts.remove(rollout) {
            self.idle.remove(&remembered.last_use);
            self.bytes -= remembered.bytes();
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn base(call_id: i64, bytes: usize) -> Base {
        Base {
            call_id,
            chain_length: 0,
            request: Bytes::from(vec![7; bytes]),
        }
    }

    #[test]
    fn a_message_appended_in_the_middle_is_all_that_is_stored() {
        let old = br#"{"messages":[1,2],"tools":[9]}"#;
        let new = br#"{"messages":[1,2,3],"tools":[9]}"#;
        let shared = Shared::of(old, new);
        assert_eq!(shared.middle(new), b",3");
        assert_eq!(shared.join(old, b",3").unwrap(), new);
    }

    #[test]
    fn a_base_that_is_too_short_is_noticed() {
        let shared = Shared {
            prefix: 3,
            suffix: 1,
        };
        assert_eq!(shared.join(b"ab", b"x"), None);
    }

    proptest! {
        #[test]
        fn what_was_new_joins_with_the_base_to_the_exact_bytes(
            // Few letters and block-sized lengths, so that long common runs and overlaps are usual.
            head in prop::collection::vec(0_u8..2, 0..200),
            old in prop::collection::vec(0_u8..2, 0..100),
            new in prop::collection::vec(0_u8..2, 0..100),
            tail in prop::collection::vec(0_u8..2, 0..200),
        ) {
            let base = [&head[..], &old, &tail].concat();
            let request = [&head[..], &new, &tail].concat();
            let shared = Shared::of(&base, &request);
            let middle = shared.middle(&request).to_vec();
            prop_assert!(shared.prefix >= head.len());
            prop_assert_eq!(shared.join(&base, &middle), Some(request));
        }
    }

    #[test]
    fn memory_of_idle_conversations_is_bounded() {
        let mut conversations = Conversations::default();
        let main = SampleId::main();
        for row in 0..100 {
            let id = RolloutId::of(row, 0);
            conversations.remember(&id, Attempt(1), &main, base(1, 1024 * 1024));
            assert!(conversations.bytes <= MAX_REMEMBERED_BYTES);
        }
        assert_eq!(conversations.rollouts.len(), 32);
        assert_eq!(conversations.idle.len(), 32);
        let first = RolloutId::of(0, 0);
        assert!(conversations.base(&first, Attempt(1), &main).is_none());
        let last = RolloutId::of(99, 0);
        assert!(conversations.base(&last, Attempt(1), &main).is_some());
    }

    #[test]
    fn an_attempt_never_builds_on_another_attempts_request() {
        let mut conversations = Conversations::default();
        let (id, main) = (RolloutId::of(0, 0), SampleId::main());
        let other = SampleId::new("other").unwrap();
        conversations.remember(&id, Attempt(1), &main, base(1, 10));
        conversations.remember(&id, Attempt(1), &other, base(2, 10));
        assert_eq!(
            conversations.base(&id, Attempt(1), &main).unwrap().call_id,
            1
        );
        assert!(conversations.base(&id, Attempt(2), &main).is_none());
        conversations.remember(&id, Attempt(2), &main, base(3, 10));
        assert!(conversations.base(&id, Attempt(2), &other).is_none());
        conversations.forget(&id);
        assert!(conversations.base(&id, Attempt(2), &main).is_none());
        assert_eq!(conversations.bytes, 0);
    }
}
