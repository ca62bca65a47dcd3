//! Makes the record of a call that has ended, and settles what it means for its rollout.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use osmosis_dialect::reply_id;
use osmosis_store::{NewCall, StoreError};
use osmosis_tokens::TokenRecord;

use super::report::report;
use super::{Ending, Unrecorded, now_ms, unrecordable};
use crate::calls::replay::StoredAnswer;
use crate::options::Durability;
use crate::policy::TokenAccount;
use crate::serving::server::Shared;
use crate::sessions::fault_tally::{CallOutcome, Ended};
use crate::sessions::rollout_session::GivenCompletion;
use crate::sessions::visit::CallResult;

impl Unrecorded {
    pub(super) async fn into_record(
        self,
        shared: Arc<Shared>,
        ending: Ending,
    ) -> Result<(), StoreError> {
        let Self {
            visit,
            began,
            first_byte_after,
            pauses: _,
            mut draft,
            sent,
            tokens,
            call_trace,
            mut answering,
            trace,
            is_retry,
            span,
        } = self;
        let account = tokens.close();
        let usage = ending
            .usage
            .or_else(|| account.as_ref().map(TokenAccount::usage))
            .unwrap_or_default();
        draft.tokens = account.map(|account| account.records).unwrap_or_default();
        let mut outcome = ending.outcome;
        draft.status = ending.status;
        let error_code = ending.error.as_ref().map(|error| error.code);
        draft.error = ending.error.map(|error| error.to_string());
        draft.prompt_tokens = usage.prompt_tokens;
        draft.completion_tokens = usage.completion_tokens;
        draft.cached_tokens = usage.cached_tokens;
        draft.reasoning_tokens = usage.reasoning_tokens;
        draft.response = match ending.response {
            Some(whole) => whole.into(),
            None => sent.pieces(),
        };
        draft.done_at_ms = now_ms();
        let progress = call_trace.progress();
        if progress.says_when_sent {
            draft.sent_at_ms = progress.first_sent_at_ms;
        }
        if let Some((endpoint, version)) = &progress.went_to {
            draft.upstream = endpoint.as_ref().to_owned();
            draft.policy_version = *version;
        } else if let Some(version) = progress.sampled_by {
            draft.policy_version = version;
        }
        report(
            &shared,
            &draft,
            error_code,
            &progress,
            answering.as_ref(),
            trace,
            &span,
        );
        let fine = draft.error.is_none() && draft.status < 400;
        let mut replaced = vec![];
        if !draft.tokens.is_empty() {
            let history = visit.history();
            let request = hash_of(&draft);
            if is_retry {
                replaced = history.replaced_by_retry(request);
            }
            if !fine || !replaced.is_empty() {
                for record in &mut draft.tokens {
                    *record = settled(record, fine, &replaced);
                }
            }
            if fine {
                history.answers(request, call_numbers(&draft));
            }
        }
        let first_use = answering
            .as_mut()
            .and_then(|answering| answering.first_use.take());
        let kept = (fine && first_use.is_some()).then(|| StoredAnswer {
            status: draft.status,
            streamed: draft.streamed,
            body: draft.response.joined(),
        });
        let is_detailed = visit.keeps_details();
        let completion = (fine && visit.keeps_completions()).then(|| GivenCompletion {
            id: is_detailed.then(|| told_id(&draft)).flatten(),
            sample: draft.sample_id.clone(),
            calls: call_numbers(&draft),
            replaces: replaced,
        });
        let token_records = if is_detailed {
            let records = draft.tokens.iter();
            records
                .map(|record| (draft.sample_id.clone(), record.clone()))
                .collect()
        } else {
            vec![]
        };
        let sample = draft.sample_id.clone();
        let result = match (&shared.store, shared.durability) {
            (Some(store), Durability::Group) => store.record_call(draft).await,
            (Some(store), Durability::Answer) => store.record_call_durably(draft).await,
            (None, _) => Ok(()),
        };
        if let (Some(first_use), Some(kept), Ok(())) = (first_use, kept, &result) {
            first_use.answered(kept);
        }
        if let Err(error) = &result {
            tracing::error!(rollout = %visit.rollout(), %error, "a model call could not be recorded");
            outcome = CallOutcome::Faulty(unrecordable(error));
        }
        let trouble = match (&outcome, progress.failing) {
            (CallOutcome::Faulty(fault) | CallOutcome::Unanswered { fault, .. }, _) => {
                Some(fault.clone())
            }
            (CallOutcome::Answered | CallOutcome::Refused | CallOutcome::Unknown, failing) => {
                failing
            }
        };
        visit.call_is_recorded(CallResult {
            sample,
            usage,
            ended: Ended {
                outcome,
                began,
                first_byte_after,
                trouble,
            },
            completion,
            token_records,
        });
        // Until it is recorded, the call is under way.
        drop(answering);
        result
    }
}

/// The same record, with what is known of where the answer got to, and those that it replaces.
fn settled(record: &Bytes, delivered: bool, replaces: &[u32]) -> Bytes {
    match TokenRecord::decode(record) {
        Ok(mut decoded) => {
            decoded.complete &= delivered;
            replaces.clone_into(&mut decoded.replaces);
            Bytes::from(decoded.encode())
        }
        Err(_) => record.clone(),
    }
}

/// What two requests for the same have in common.
fn hash_of(call: &NewCall) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&call.dialect, call.sample_id.as_str(), &call.request).hash(&mut hasher);
    hasher.finish()
}

/// The numbers of its token records.
fn call_numbers(call: &NewCall) -> Vec<u32> {
    let records = call.tokens.iter();
    let decoded = records.filter_map(|record| TokenRecord::decode(record).ok());
    decoded.map(|record| record.call).collect()
}

/// What the caller knows the answer by.
fn told_id(call: &NewCall) -> Option<String> {
    reply_id(&call.response.joined(), call.streamed)
}
