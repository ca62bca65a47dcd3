//! A first look at the bytes of model calls: which rollouts may contain a text in them. Reading conversations takes many times
//! longer.

use std::collections::HashSet;
use std::sync::Arc;

use osmosis_core::RolloutId;
use osmosis_store::{CallBody, CallPurpose, CallRecord, Store};
use parking_lot::Mutex;

use crate::RunError;

/// A text as it stands in JSON.
#[derive(Debug, Clone)]
pub(super) struct RawText {
    /// `None`: it can be written in several ways, and only a reader of JSON finds it.
    plain: Option<Arc<[u8]>>,
}

impl RawText {
    /// `lowercase`: the text to look for.
    pub(super) fn new(lowercase: &str) -> Self {
        let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !b"\"\\/".contains(&byte);
        let plain = lowercase.bytes().all(is_plain) && !lowercase.is_empty();
        Self {
            plain: plain.then(|| lowercase.as_bytes().into()),
        }
    }

    /// The rollouts with a call of the policy that may contain the text.
    pub(super) async fn candidates(
        &self,
        calls: &dyn Store,
        rollouts: &[RolloutId],
    ) -> Result<HashSet<RolloutId>, RunError> {
        if rollouts.is_empty() {
            return Ok(HashSet::new());
        }
        if self.plain.is_none() {
            return Ok(rollouts.iter().cloned().collect());
        }
        let found: Arc<Mutex<HashSet<RolloutId>>> = Arc::default();
        let (text, finding) = (self.clone(), Arc::clone(&found));
        let visit = move |call: &CallRecord, body: &CallBody| {
            let mut found = finding.lock();
            if !found.contains(&call.rollout_id) && text.may_be_in_call(call, body) {
                found.insert(call.rollout_id.clone());
            }
        };
        calls
            .visit_calls(rollouts, CallPurpose::Policy, Box::new(visit))
            .await?;
        let found = std::mem::take(&mut *found.lock());
        Ok(found)
    }

    fn may_be_in_call(&self, call: &CallRecord, body: &CallBody) -> bool {
        let error = call.error.as_deref().unwrap_or_default();
        self.may_be_in(&body.request)
            // A stream has the text in pieces.
            || !body.response.trim_ascii_start().starts_with(b"{")
            || self.may_be_in(&body.response)
            || self.may_be_in(error.as_bytes())
    }

    fn may_be_in(&self, json: &[u8]) -> bool {
        let Some(plain) = &self.plain else {
            return true;
        };
        let Some((first, _)) = plain.split_first() else {
            return true;
        };
        let begins = |byte: u8| byte.eq_ignore_ascii_case(first);
        let is_it = json
            .windows(plain.len())
            .any(|window| begins(window[0]) && window.eq_ignore_ascii_case(plain));
        // Some writers escape letters that need not be.
        is_it || json.windows(4).any(|window| window == b"\\u00")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_text_is_looked_for_in_any_case_and_others_may_be_anywhere() {
        for (text, json, may) in [
            ("table", r#"{"content": "no TABLE"}"#, true),
            ("table", r#"{"content": "no t"}"#, false),
            ("a 'b'", r#"{"content": "A 'B'"}"#, true),
            // Written with an escape.
            ("a<b", r#"{"content": "a\u003cb"}"#, true),
            // These are written in several ways.
            ("é", r#"{"content": "\u00e9"}"#, true),
            ("a/b", r#"{"content": "x"}"#, true),
            ("\"", r#"{"content": "x"}"#, true),
            ("x\ny", r#"{"content": "x"}"#, true),
        ] {
            assert_eq!(RawText::new(text).may_be_in(json.as_bytes()), may, "{text}");
        }
    }
}
