//! Tells those who watch from outside of a call that has ended.

use osmosis_store::NewCall;

use super::Answering;
use crate::calls::call_trace::CallProgress;
use crate::calls::error::ErrorCode;
use crate::serving::server::Shared;
use crate::telemetry::metrics::CallFigures;
use crate::telemetry::spans::{CallSpan, TraceParent};

/// Adds the call to the numbers, and sends its span.
pub(super) fn report(
    shared: &Shared,
    call: &NewCall,
    error_code: Option<ErrorCode>,
    progress: &CallProgress,
    answering: Option<&Answering>,
    trace: Option<TraceParent>,
    span: &tracing::Span,
) {
    let error_type = error_code.map(ErrorCode::as_str);
    let outcome = error_type.unwrap_or("ok");
    span.record("upstream", &call.upstream);
    span.record("outcome", outcome);
    let retries = progress.tries.saturating_sub(1);
    let unnamed = progress.went_to.is_some() && !progress.named_in_metrics;
    let upstream = match answering {
        // The servers of single rollouts are as many as there are rollouts.
        Some(answering) if unnamed => answering.pass.policy.describe().endpoint,
        Some(_) | None => call.upstream.clone(),
    };
    let since = |from: i64, to: i64| u64::try_from(to.saturating_sub(from)).unwrap_or(0);
    shared.metrics.count(&CallFigures {
        dialect: &call.dialect,
        upstream: &upstream,
        outcome,
        duration_ms: since(call.queued_at_ms, call.done_at_ms),
        first_token_ms: call
            .sent_at_ms
            .zip(call.first_byte_at_ms)
            .map(|(sent, first)| since(sent, first)),
        queued_ms: call.sent_at_ms.map(|sent| since(call.queued_at_ms, sent)),
        input_tokens: call.prompt_tokens.unwrap_or(0),
        output_tokens: call.completion_tokens.unwrap_or(0),
        retries: retries.into(),
    });
    if let Some(telemetry) = &shared.telemetry
        && trace.is_none_or(TraceParent::is_sampled)
    {
        telemetry.send(&CallSpan {
            call,
            model: answering.map_or(&*call.model, |answering| &*answering.model),
            error_type,
            retries,
            parent: trace,
        });
    }
}
