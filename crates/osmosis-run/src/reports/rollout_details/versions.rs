//! Which weights answered the policy's calls. They may change while a call is answered.

use std::collections::BTreeMap;
use std::fmt;

use osmosis_core::RolloutId;
use osmosis_store::{CallPurpose, CallRecord, Store};
use osmosis_tokens::TokenRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RunError;

/// The oldest and the newest version that had a part in something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Versions {
    pub min: u64,
    pub max: u64,
}

/// The versions of the policy's calls in one rollout, by call.
#[derive(Debug, Default)]
pub(super) struct CallVersions(BTreeMap<u64, Versions>);

impl CallVersions {
    /// `calls` are those that the store lists for the rollout.
    pub(super) async fn read(
        store: &dyn Store,
        rollout: &RolloutId,
        calls: &[CallRecord],
    ) -> Result<Self, RunError> {
        let records = if calls.iter().any(|call| call.token_records > 0) {
            store.token_records(rollout).await?
        } else {
            Vec::new()
        };
        let records: Vec<_> = records.into_iter().map(|(_, record)| record).collect();
        Ok(Self::of(calls, &records))
    }

    /// Each token says who sampled it. A call without tokens has the version it was sent to.
    fn of(calls: &[CallRecord], records: &[impl AsRef<[u8]>]) -> Self {
        let policy = |call: &&CallRecord| call.purpose == CallPurpose::Policy;
        let calls: Vec<&CallRecord> = calls.iter().filter(policy).collect();
        let counted: usize = calls.iter().map(|call| call.token_records as usize).sum();
        // In a rollout under way there may be more records by now, or those of another attempt.
        let mut rest = if counted == records.len() {
            records
        } else {
            &[]
        };
        let mut versions = BTreeMap::new();
        for call in calls {
            let count = (call.token_records as usize).min(rest.len());
            let (of_call, others) = rest.split_at(count);
            rest = others;
            let sampled = of_call
                .iter()
                .filter_map(|record| TokenRecord::decode(record.as_ref()).ok())
                .flat_map(|record| record.versions)
                .map(|version| Versions::only(version.0));
            let sent_to = Versions::only(call.policy_version.0);
            versions.insert(call.call_id, Versions::spanning(sampled).unwrap_or(sent_to));
        }
        Self(versions)
    }

    pub(super) fn of_call(&self, call_id: u64) -> Option<Versions> {
        self.0.get(&call_id).copied()
    }

    /// Of the whole rollout; `None` when it made no call.
    pub(super) fn of_all(&self) -> Option<Versions> {
        Versions::spanning(self.0.values().copied())
    }
}

impl Versions {
    fn only(version: u64) -> Self {
        Self {
            min: version,
            max: version,
        }
    }

    fn spanning(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().reduce(|one, other| Self {
            min: one.min.min(other.min),
            max: one.max.max(other.max),
        })
    }

    /// Whether there is anything but what a policy starts with, or one that does not change has.
    pub fn any_new(self) -> bool {
        self.max > 0
    }
}

/// `version 3`, `versions 3 to 5`.
impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max } = self;
        if min == max {
            write!(f, "version {min}")
        } else {
            write!(f, "versions {min} to {max}")
        }
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::generation::LogprobsOf;
    use osmosis_core::{Attempt, PolicyVersion, SampleId};
    use osmosis_tokens::Origin;

    use super::*;

    /// A call that was let in when the weights had this version.
    fn call(call_id: u64, version: u64, token_records: u32) -> CallRecord {
        CallRecord {
            call_id,
            rollout_id: RolloutId::of(0, 0),
            attempt: Attempt(0),
            sample_id: SampleId::main(),
            purpose: CallPurpose::Policy,
            dialect: String::new(),
            model: String::new(),
            upstream: String::new(),
            policy_version: PolicyVersion(version),
            streamed: false,
            status: 200,
            error: None,
            prompt_tokens: None,
            completion_tokens: None,
            cached_tokens: None,
            reasoning_tokens: None,
            queued_at_ms: 0,
            sent_at_ms: None,
            first_byte_at_ms: None,
            done_at_ms: 0,
            token_records,
        }
    }

    fn record(versions: &[u64]) -> Vec<u8> {
        let count = versions.len();
        TokenRecord {
            call: 0,
            origin: Origin::Root { reason: None },
            prompt_suffix: vec![1],
            sampled: vec![2; count],
            logprobs: vec![-1.0; count],
            logprobs_of: LogprobsOf::Tempered,
            versions: versions.iter().copied().map(PolicyVersion).collect(),
            temperature: 1.0,
            complete: true,
            one_of_several: false,
            replaces: vec![],
            constraint: None,
        }
        .encode()
    }

    #[track_caller]
    fn check(calls: &[CallRecord], records: &[Vec<u8>], each: &[&str], all: Option<&str>) {
        let versions = CallVersions::of(calls, records);
        let text = |versions: Versions| versions.to_string();
        let found: Vec<String> = calls
            .iter()
            .filter_map(|call| versions.of_call(call.call_id))
            .map(text)
            .collect();
        assert_eq!(found, each);
        assert_eq!(versions.of_all().map(text).as_deref(), all);
    }

    #[test]
    fn each_call_has_the_versions_of_its_tokens() {
        let judge = CallRecord {
            purpose: CallPurpose::Judge,
            ..call(2, 9, 0)
        };
        // The third call has two choices, the last one nothing but the version it was sent to.
        let calls = [call(1, 3, 1), judge, call(3, 3, 2), call(4, 6, 0)];
        let records = [record(&[3, 3]), record(&[3, 4]), record(&[4, 5])];
        let each = ["version 3", "versions 3 to 5", "version 6"];
        check(&calls, &records, &each, Some("versions 3 to 6"));
        check(&[], &[], &[], None);
    }

    #[test]
    fn records_that_are_not_of_these_calls_say_nothing() {
        let calls = [call(1, 3, 1), call(2, 4, 1)];
        let other = [record(&[7])];
        check(
            &calls,
            &other,
            &["version 3", "version 4"],
            Some("versions 3 to 4"),
        );
        let damaged = [record(&[7]), vec![9]];
        check(
            &calls,
            &damaged,
            &["version 7", "version 4"],
            Some("versions 4 to 7"),
        );
    }
}
