//! The model calls of a rollout for people: request, reply, and what it took.

use std::collections::HashMap;
use std::fmt::Write;

use osmosis_run::reports::{CallDetails, CallExchange, Entry, RolloutDetails};
use osmosis_store::{CallPurpose, RunKind};
use owo_colors::Style;

use super::render::{push_entries, push_entry, push_paths, worth_telling};
use crate::figures::ms_text;
use crate::output::paint;

pub(super) fn push(text: &mut String, details: &RolloutDetails, kind: RunKind) {
    let title = paint("model calls", Style::new().bold());
    let _ = writeln!(text, "\n{title}");
    // What was shown of each sample already: its last call, with all that was said until then.
    let mut shown: HashMap<(&str, &str), (u32, Vec<&Entry>)> = HashMap::new();
    for call in &details.calls {
        push_line(text, call, kind);
        let Some(exchange) = &call.exchange else {
            continue;
        };
        let of = (call.sample_id.as_str(), call.purpose.as_str());
        push_exchange(text, exchange, shown.get(&of));
        let reply = exchange.replies.first().into_iter().flatten();
        let said = exchange.request.iter().chain(reply).collect();
        shown.insert(of, (call.number, said));
        text.push('\n');
    }
}

/// The call in one line.
fn push_line(text: &mut String, call: &CallDetails, kind: RunKind) {
    let versions = worth_telling(call.versions, kind);
    let tokens = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let part =
        |count: Option<u64>, of: &str| count.map_or_else(String::new, |n| format!(" ({n} {of})"));
    let _ = writeln!(
        text,
        "  {:>6}  {}  {}  {}  {}{}+{}{} tokens  {}{}{}{}",
        call.number,
        match call.purpose {
            CallPurpose::Policy => call.sample_id.as_str(),
            CallPurpose::Judge => "(judge)",
            CallPurpose::Other => "(other)",
        },
        call.status,
        call.upstream,
        tokens(call.prompt_tokens),
        part(call.cached_tokens, "cached"),
        tokens(call.completion_tokens),
        part(call.reasoning_tokens, "reasoning"),
        ms_text((call.done_at_ms - call.queued_at_ms) as f64),
        finish_text(call),
        versions.map_or_else(String::new, |versions| format!("  {versions}")),
        call.error
            .as_ref()
            .map_or_else(String::new, |error| format!("  {error}")),
    );
}

fn finish_text(call: &CallDetails) -> String {
    if call.finish_reasons.is_empty() {
        return String::new();
    }
    let reasons = call.finish_reasons.join(", ");
    if call.cut_off {
        let text = format!("{reasons} (cut off)");
        format!("  {}", paint(&text, Style::new().red().bold()))
    } else {
        format!("  {reasons}")
    }
}

fn push_exchange(text: &mut String, exchange: &CallExchange, shown: Option<&(u32, Vec<&Entry>)>) {
    if let Some(parameters) = &exchange.parameters {
        push_entry(text, "request", parameters.as_str());
    }
    if !exchange.tools.is_empty() {
        push_entry(text, "tools", &exchange.tools.join(", "));
    }
    // An agent sends all that was said again and again.
    let known = shown.filter(|(_, said)| {
        let begins_so = exchange
            .request
            .iter()
            .zip(said)
            .all(|(one, other)| one == *other);
        begins_so && exchange.request.len() >= said.len()
    });
    let fresh = match known {
        Some((number, said)) => {
            let hint = format!("the {} messages of call {number}, then", said.len());
            push_entry(text, "…", &hint);
            &exchange.request[said.len()..]
        }
        None => &exchange.request[..],
    };
    push_entries(text, fresh);
    let _ = writeln!(
        text,
        "{}",
        paint(&format!("{:>12}", "reply"), Style::new().dimmed())
    );
    push_paths(text, &exchange.replies);
}
