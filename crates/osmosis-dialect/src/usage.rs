//! How many tokens a call took, as replies of every dialect report it.

use memchr::memmem;
use serde::Deserialize;

/// How many tokens a call took, as the policy counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Counts")]
pub struct Usage {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    /// Of the prompt tokens.
    pub cached_tokens: Option<u64>,
    /// Of the completion tokens.
    pub reasoning_tokens: Option<u64>,
}

/// The names that the dialects have for it.
#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    /// Anthropic does not count these as input.
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    completion_tokens_details: Option<Details>,
    output_tokens_details: Option<Details>,
    /// `DeepSeek` says it beside the others.
    prompt_cache_hit_tokens: Option<u64>,
}

#[derive(Default, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
}

impl From<Counts> for Usage {
    fn from(counts: Counts) -> Self {
        let input = counts.input_tokens.map(|input| {
            input
                .saturating_add(counts.cache_creation_input_tokens.unwrap_or(0))
                .saturating_add(counts.cache_read_input_tokens.unwrap_or(0))
        });
        let prompt = counts.prompt_tokens_details.or(counts.input_tokens_details);
        let completion = counts
            .completion_tokens_details
            .or(counts.output_tokens_details);
        Self {
            prompt_tokens: counts.prompt_tokens.or(input),
            completion_tokens: counts.completion_tokens.or(counts.output_tokens),
            cached_tokens: prompt
                .and_then(|details| details.cached_tokens)
                .or(counts.cache_read_input_tokens)
                .or(counts.prompt_cache_hit_tokens),
            reasoning_tokens: completion.and_then(|details| details.reasoning_tokens),
        }
    }
}

impl Usage {
    /// What a later event of the same stream says counts for more.
    #[must_use]
    pub fn updated_by(self, later: Self) -> Self {
        Self {
            prompt_tokens: later.prompt_tokens.or(self.prompt_tokens),
            completion_tokens: later.completion_tokens.or(self.completion_tokens),
            cached_tokens: later.cached_tokens.or(self.cached_tokens),
            reasoning_tokens: later.reasoning_tokens.or(self.reasoning_tokens),
        }
    }
}

/// Servers tell the usage at the end of a completion, nearly all of them.
const END_BYTES: usize = 2 << 10;
const USAGE: &[u8] = b"\"usage\"";

/// The usage in a completion, found from its end without reading the rest (which may be megabytes of
/// logprobs). Anything odd is no usage.
pub fn usage_in(body: &[u8]) -> Option<Usage> {
    // Searching backwards is many times slower than forwards, so it is done in two steps.
    let end = body.len().saturating_sub(END_BYTES);
    let found = last_usage(body, end);
    if found.is_some() || end == 0 {
        return found;
    }
    last_usage(body, 0)
}

/// The last one from `start` on that reads as usage: a choice may carry something of the same name.
fn last_usage(body: &[u8], start: usize) -> Option<Usage> {
    let places: Vec<usize> = memmem::find_iter(&body[start..], USAGE).collect();
    places.into_iter().rev().find_map(|at| {
        let rest = body[start + at + USAGE.len()..].trim_ascii_start();
        let value = rest.strip_prefix(b":")?;
        let mut values = serde_json::Deserializer::from_slice(value).into_iter::<Usage>();
        values
            .next()?
            .ok()
            .filter(|usage| *usage != Usage::default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_found_wherever_it_stands() {
        let found = Some(Usage {
            prompt_tokens: Some(7),
            completion_tokens: Some(2),
            ..Usage::default()
        });
        let cached = found.map(|usage| Usage {
            cached_tokens: Some(4),
            ..usage
        });
        let detailed = cached.map(|usage| Usage {
            reasoning_tokens: Some(1),
            ..usage
        });
        #[rustfmt::skip]
        let cases: &[(&str, Option<Usage>)] = &[
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2},"choices":[]}"#, found),
            (r#"{"choices":[],"usage" : {"completion_tokens":2,"prompt_tokens":7,"details":{"x":[1]}}}"#, found),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2},"choices":[{"usage":null}]}"#, found),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2},"x":"\"usage\":{}"}"#, found),
            (r#"{"output":[],"usage":{"input_tokens":7,"output_tokens":2,"total_tokens":9}}"#, found),
            (r#"{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":2}}"#, cached),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_cache_hit_tokens":4}}"#, cached),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":1}}}"#, detailed),
            (r#"{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":1}}}"#, detailed),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":{}}}"#, found),
            (r#"{"usage":null}"#, None),
            (r#"{"usage":{"prompt_tokens":-7}}"#, None),
            (r#"{"usage":{"prompt_tokens":"#, None),
            (r#""usage""#, None),
            ("", None),
        ];
        for (body, expected) in cases {
            assert_eq!(usage_in(body.as_bytes()), *expected, "{body}");
        }
        // Wherever it stands in a long reply, across the edge of what is looked at first too.
        let usage = r#""usage":{"prompt_tokens":7,"completion_tokens":2}"#;
        for after in [
            0,
            10,
            END_BYTES - 60,
            END_BYTES - 55,
            END_BYTES - 50,
            3 * END_BYTES,
        ] {
            let body = format!(
                r#"{{"a":"{}",{usage},"b":"{}"}}"#,
                "x".repeat(9_000),
                "y".repeat(after)
            );
            assert_eq!(usage_in(body.as_bytes()), found, "{after}");
        }
    }
}
