//! What a policy remembers while a session is open: the calls of each sample so far.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use osmosis_core::generation::LogprobsOf;
use osmosis_core::{PolicyVersion, SampleId};
use osmosis_tokens::{
    CallTree, ChatFormat, Given, Origin, PlannedPrompt, RecordedConstraint, TokenRecord,
    TokensError,
};
use parking_lot::Mutex;
use serde_json::{Map, Value};

/// How many calls of one sample a standing session remembers.
const REMEMBERED_CALLS: u32 = 512;
/// How many samples a standing session remembers.
const REMEMBERED_SAMPLES: usize = 64;

/// The calls of one attempt of a rollout, by sample. It begins with the attempt's session and ends with it.
#[derive(Default)]
pub struct CallHistory {
    samples: Mutex<Samples>,
    /// The number of each sample's first call.
    first: u32,
    bounds: Option<Bounds>,
    /// Pools of servers and the one of each that answered last: it still holds the conversation's prefix.
    servers: Mutex<Vec<(u64, usize)>>,
    /// Answers that have an id made of what was asked, and how often each was given.
    given: Mutex<HashMap<[u8; 32], u32>>,
    /// The calls that answered a request last, by a hash of it: what a retry replaces.
    answered: Mutex<HashMap<u64, Vec<u32>>>,
}

/// Where the calls of a rollout's second session begin, so that they have ids and random numbers of their own.
const FIRST_APART: u32 = 1 << 31;

/// How many such answers a standing session remembers.
const REMEMBERED_ANSWERS: usize = 4096;

/// How many pools a history remembers a server of: the run's policy, a judge or two.
const REMEMBERED_POOLS: usize = 8;

#[derive(Clone, Copy)]
struct Bounds {
    calls: u32,
    samples: usize,
}

#[derive(Default)]
struct Samples {
    known: HashMap<SampleId, Known>,
    /// Goes up with each use.
    tick: u64,
    /// How many trees were begun.
    trees: u32,
}

struct Known {
    calls: Arc<SampleCalls>,
    planned: u32,
    used: u64,
}

impl CallHistory {
    /// For the second session of a rollout.
    pub(crate) fn apart() -> Self {
        Self {
            first: FIRST_APART,
            ..Self::default()
        }
    }

    /// For a session that never closes: remembers the latest calls alone.
    pub(crate) fn bounded() -> Self {
        Self {
            samples: Mutex::default(),
            first: 0,
            bounds: Some(Bounds {
                calls: REMEMBERED_CALLS,
                samples: REMEMBERED_SAMPLES,
            }),
            servers: Mutex::default(),
            given: Mutex::default(),
            answered: Mutex::default(),
        }
    }

    /// For a session that never closes.
    pub(crate) fn is_bounded(&self) -> bool {
        self.bounds.is_some()
    }

    /// How often this was given before, so that equal questions can have answers of different ids.
    pub(crate) fn given_before(&self, answer: [u8; 32]) -> u32 {
        let mut given = self.given.lock();
        if self.bounds.is_some() && given.len() >= REMEMBERED_ANSWERS {
            given.clear();
        }
        let times = given.entry(answer).or_insert(0);
        *times += 1;
        *times - 1
    }

    /// These calls answered a request. A standing session is many callers', whose requests may be equal.
    pub(crate) fn answers(&self, request: u64, calls: Vec<u32>) {
        if self.bounds.is_none() {
            self.answered.lock().insert(request, calls);
        }
    }

    /// The calls that answered the same request before; a retry says that they did not get there.
    pub(crate) fn replaced_by_retry(&self, request: u64) -> Vec<u32> {
        self.answered.lock().remove(&request).unwrap_or_default()
    }

    /// The server of this pool that the rollout stays with.
    pub(crate) fn endpoint_of(&self, pool: u64) -> Option<usize> {
        let servers = self.servers.lock();
        servers
            .iter()
            .find(|(known, _)| *known == pool)
            .map(|(_, server)| *server)
    }

    /// The rollout stays with this server. A standing session is many callers', who are spread instead.
    pub(crate) fn stay_with(&self, pool: u64, server: usize) {
        if self.bounds.is_some() {
            return;
        }
        let mut servers = self.servers.lock();
        servers.retain(|(known, _)| *known != pool);
        servers.truncate(REMEMBERED_POOLS - 1);
        servers.insert(0, (pool, server));
    }

    /// The calls of a sample, with room for `more`.
    pub(crate) fn calls_of(&self, sample: &SampleId, more: u32) -> Arc<SampleCalls> {
        let mut samples = self.samples.lock();
        samples.tick += 1;
        let tick = samples.tick;
        if let Some(known) = samples.known.get_mut(sample)
            && self
                .bounds
                .is_none_or(|bounds| known.planned.saturating_add(more) <= bounds.calls)
        {
            known.used = tick;
            known.planned = known.planned.saturating_add(more);
            return Arc::clone(&known.calls);
        }
        let first = match self.bounds {
            None => self.first,
            Some(bounds) => {
                if samples.known.len() >= bounds.samples && !samples.known.contains_key(sample) {
                    samples.forget_one();
                }
                // Each tree has numbers of its own, so that no record is taken for an older one.
                samples.trees.wrapping_mul(bounds.calls)
            }
        };
        samples.trees = samples.trees.wrapping_add(1);
        let calls = Arc::new(SampleCalls {
            tree: Mutex::default(),
            first,
        });
        let known = Known {
            calls: Arc::clone(&calls),
            planned: more,
            used: tick,
        };
        samples.known.insert(sample.clone(), known);
        calls
    }
}

impl Samples {
    /// Forgets the sample that was used longest ago.
    fn forget_one(&mut self) {
        let oldest = self.known.iter().min_by_key(|(_, known)| known.used);
        if let Some(oldest) = oldest.map(|(sample, _)| sample.clone()) {
            self.known.remove(&oldest);
        }
    }
}

impl fmt::Debug for CallHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallHistory")
            .field("samples", &self.samples.lock().known.len())
            .finish_non_exhaustive()
    }
}

/// The calls of one sample. The lock is held while a prompt is planned or a result taken up, never while
/// anything is sampled.
#[derive(Debug)]
pub(crate) struct SampleCalls {
    tree: Mutex<CallTree>,
    /// The number of the tree's first call.
    first: u32,
}

/// The prompt of a call that is about to be made.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) prompt: PlannedPrompt,
    /// Its number within the sample.
    pub(crate) number: u32,
}

/// What was sampled for a prompt.
#[derive(Debug)]
pub(crate) struct Sampled {
    pub(crate) ids: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) versions: Vec<PolicyVersion>,
    pub(crate) temperature: f32,
    pub(crate) logprobs_of: LogprobsOf,
    /// There are other choices of the same call.
    pub(crate) one_of_several: bool,
    /// What the tokens had to follow.
    pub(crate) constraint: Option<RecordedConstraint>,
}

/// What the caller of a call got of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Delivered<'a> {
    /// All of it, as this message.
    Message(&'a Value),
    /// All of it, as ids.
    Ids,
    /// Not all.
    Nothing,
}

impl SampleCalls {
    /// Plans `choices` answers to the same messages; each is a call of its own in the tree.
    pub(crate) fn plan(
        &self,
        format: &ChatFormat,
        messages: &[Value],
        tools: Option<&[Value]>,
        extra: &Map<String, Value>,
        choices: u32,
    ) -> Result<Vec<Planned>, TokensError> {
        let mut tree = self.tree.lock();
        (0..choices)
            .map(|_| {
                let prompt = tree.plan(format, messages, tools, extra)?;
                let number = self.first.wrapping_add(prompt.call);
                Ok(Planned { prompt, number })
            })
            .collect()
    }

    /// Plans `choices` answers to the same ids.
    pub(crate) fn plan_ids(&self, ids: &[u32], choices: u32) -> Vec<Planned> {
        let mut tree = self.tree.lock();
        (0..choices)
            .map(|_| {
                let prompt = tree.plan_ids(ids.to_vec());
                let number = self.first.wrapping_add(prompt.call);
                Planned { prompt, number }
            })
            .collect()
    }

    /// The record of a call whose ids nobody knows.
    pub(crate) fn unknown(&self, why: &str) -> TokenRecord {
        TokenRecord::unknown(self.first.wrapping_add(self.tree.lock().skip()), why)
    }

    /// Takes up what was sampled, and what of it the caller was told.
    pub(crate) fn finished(
        &self,
        prompt: PlannedPrompt,
        sampled: Sampled,
        told: Delivered<'_>,
    ) -> TokenRecord {
        let Sampled {
            ids,
            logprobs,
            versions,
            temperature,
            logprobs_of,
            one_of_several,
            constraint,
        } = sampled;
        let mut record = {
            let mut tree = self.tree.lock();
            let reply = match told {
                Delivered::Message(reply) => Some(reply),
                Delivered::Ids | Delivered::Nothing => None,
            };
            if let Delivered::Ids = told {
                let whole = Given::Whole;
                tree.finished_ids(prompt, ids, logprobs, versions, temperature, whole)
            } else {
                tree.finished(prompt, ids, logprobs, versions, temperature, reply)
            }
        };
        record.logprobs_of = logprobs_of;
        record.one_of_several = one_of_several;
        record.constraint = constraint;
        record.call = self.first.wrapping_add(record.call);
        if let Origin::Continues { call, .. } = &mut record.origin {
            *call = self.first.wrapping_add(*call);
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str) -> SampleId {
        SampleId::new(name).unwrap()
    }

    fn bounded(calls: u32, samples: usize) -> CallHistory {
        CallHistory {
            samples: Mutex::default(),
            first: 0,
            bounds: Some(Bounds { calls, samples }),
            servers: Mutex::default(),
            given: Mutex::default(),
            answered: Mutex::default(),
        }
    }

    #[test]
    fn a_rollout_remembers_every_call_and_counts_from_0() {
        let history = CallHistory::default();
        let first = history.calls_of(&sample("a"), 1);
        for _ in 0..10_000 {
            assert!(Arc::ptr_eq(&first, &history.calls_of(&sample("a"), 1)));
        }
        assert_eq!(history.calls_of(&sample("b"), 1).first, 0);
    }

    #[test]
    fn a_standing_door_begins_anew_with_numbers_that_nobody_had() {
        let history = bounded(4, 2);
        let first = history.calls_of(&sample("a"), 3);
        assert!(Arc::ptr_eq(&first, &history.calls_of(&sample("a"), 1)));
        let second = history.calls_of(&sample("a"), 1);
        assert_eq!((first.first, second.first), (0, 4));
        assert_eq!(history.calls_of(&sample("b"), 4).first, 8);
        // The third sample takes the place of the one that was used longest ago.
        history.calls_of(&sample("a"), 1);
        assert_eq!(history.calls_of(&sample("c"), 1).first, 12);
        assert!(Arc::ptr_eq(&second, &history.calls_of(&sample("a"), 1)));
        assert_eq!(history.calls_of(&sample("b"), 1).first, 16);
        assert_eq!(history.samples.lock().known.len(), 2);
    }
}
