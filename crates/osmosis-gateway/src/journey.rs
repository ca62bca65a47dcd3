//! Where a call went, written by the policy and read when the call is recorded.

use std::sync::Arc;

use osmosis_core::PolicyVersion;
use parking_lot::Mutex;

use crate::record::now_ms;

/// What became of a call behind the gateway. The gateway keeps the other end.
#[derive(Debug, Clone, Default)]
pub struct Journey(Arc<Mutex<Travelled>>);

#[derive(Debug, Clone, Default)]
pub(crate) struct Travelled {
    /// The endpoint it was sent to last, and the version of what answers there.
    pub(crate) went_to: Option<(Arc<str>, PolicyVersion)>,
    /// When it was sent first: until then it waited.
    pub(crate) first_sent_at_ms: Option<i64>,
    pub(crate) tries: u32,
    /// The policy has servers, and says when it sends a call.
    pub(crate) says_when_sent: bool,
    /// Metrics may name the endpoint.
    pub(crate) named_in_metrics: bool,
}

impl Journey {
    /// The policy will say when it sends the call, if it ever does.
    pub fn begins(&self) {
        self.0.lock().says_when_sent = true;
    }

    /// The call is sent to this endpoint now, as is or once more.
    pub fn sent(&self, endpoint: Arc<str>, version: PolicyVersion, named_in_metrics: bool) {
        let mut travelled = self.0.lock();
        travelled.went_to = Some((endpoint, version));
        travelled.first_sent_at_ms.get_or_insert_with(now_ms);
        travelled.tries += 1;
        travelled.named_in_metrics = named_in_metrics;
    }

    /// The endpoint it was sent to last.
    pub(crate) fn endpoint(&self) -> Option<String> {
        let travelled = self.0.lock();
        let (endpoint, _) = travelled.went_to.as_ref()?;
        Some(endpoint.as_ref().to_owned())
    }

    pub(crate) fn travelled(&self) -> Travelled {
        self.0.lock().clone()
    }
}
