//! SGLang's `POST /generate` with `input_ids`.

use osmosis_core::generation::{GenerationRequest, StopReason};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::wire::{Drawn, Heard};

/// What is asked.
pub(super) fn body(request: &GenerationRequest, max_tokens: usize) -> Value {
    json!({
        "input_ids": request.prompt,
        "sampling_params": {
            "max_new_tokens": max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": if request.top_k == 0 { -1 } else { i64::try_from(request.top_k).unwrap_or(-1) },
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": request.stop_ids,
            // Here it would switch `stop_token_ids` off as well.
            "ignore_eos": request.stop_ids.is_empty(),
            "skip_special_tokens": false,
            "no_stop_trim": true,
        },
        "return_logprob": true,
        "top_logprobs_num": request.alternatives,
        "stream": true,
    })
}

#[derive(Debug, Deserialize)]
struct Event {
    meta_info: Option<MetaInfo>,
}

#[derive(Debug, Deserialize)]
struct MetaInfo {
    #[serde(default)]
    completion_tokens: Option<usize>,
    #[serde(default)]
    output_token_logprobs: Option<Vec<Entry>>,
    #[serde(default)]
    output_top_logprobs: Option<Vec<Option<Vec<Entry>>>>,
    #[serde(default)]
    finish_reason: Option<FinishReason>,
    #[serde(default)]
    weight_version: Option<String>,
}

/// Logprob, id and, when it is asked for, text.
type Entry = (Option<f32>, u32, Option<IgnoredAny>);

#[derive(Debug, Deserialize)]
struct FinishReason {
    r#type: String,
    #[serde(default)]
    message: Option<String>,
}

/// What an event of the stream says beyond the `seen` tokens; an `Err` says what is wrong with it.
///
/// Each event tells all tokens so far, or with `--incremental-streaming-output` the new ones alone;
/// how many there are by now tells which.
pub(super) fn hear(data: &[u8], seen: usize) -> Result<Heard, String> {
    let event: Event =
        serde_json::from_slice(data).map_err(|error| format!("sent a bad event: {error}"))?;
    let meta = event.meta_info.ok_or("sent an event without `meta_info`")?;
    let mut heard = Heard {
        version: meta.weight_version.and_then(|text| text.parse().ok()),
        ..Heard::default()
    };
    let told = meta.output_token_logprobs.unwrap_or_default();
    let count = meta.completion_tokens.unwrap_or(told.len());
    if told.is_empty() && count > seen {
        return Err("sent tokens without `output_token_logprobs`".to_owned());
    }
    let skipped = if told.len() == count {
        seen
    } else if seen + told.len() == count {
        0
    } else {
        return Err(format!(
            "sent {} logprobs, and {count} tokens after {seen}",
            told.len()
        ));
    };
    let mut tops = meta.output_top_logprobs.unwrap_or_default();
    tops.resize(told.len().max(tops.len()), None);
    for (entry, top) in told.into_iter().zip(tops).skip(skipped) {
        let top = top.unwrap_or_default().into_iter();
        heard.tokens.push(Drawn {
            id: entry.1,
            logprob: entry.0.ok_or("sent a token without its logprob")?,
            alternatives: top.filter_map(|top| Some((top.1, top.0?))).collect(),
        });
    }
    heard.end = match meta.finish_reason {
        None => None,
        Some(reason) => match reason.r#type.as_str() {
            "stop" => Some(StopReason::Stop),
            "length" => Some(StopReason::Length),
            other => {
                let message = reason.message.unwrap_or_default();
                return Err(format!("ended the answer with `{other}`: {message}"));
            }
        },
    };
    Ok(heard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(event: &str, seen: usize) -> Vec<u32> {
        let heard = hear(event.as_bytes(), seen).unwrap();
        heard.tokens.iter().map(|token| token.id).collect()
    }

    #[test]
    fn all_so_far_and_the_new_alone_are_told_apart() {
        let all = r#"{"text":"abc","output_ids":[1,2,3],"meta_info":{"id":"x","finish_reason":null,"completion_tokens":3,
            "output_token_logprobs":[[-0.1,1,null],[-0.2,2,null],[-0.3,3,null]]}}"#;
        assert_eq!(ids(all, 1), [2, 3]);
        assert_eq!(ids(all, 3), [0_u32; 0]);
        let new = r#"{"text":"c","output_ids":[3],"meta_info":{"completion_tokens":3,"output_token_logprobs":[[-0.3,3,"c"]]}}"#;
        assert_eq!(ids(new, 2), [3]);
        assert!(hear(new.as_bytes(), 1).is_err());
    }

    #[test]
    fn the_end_the_version_and_the_alternatives_are_read() {
        let event = r#"{"meta_info":{"completion_tokens":1,"weight_version":"12","finish_reason":{"type":"stop","matched":257},
            "output_token_logprobs":[[-0.1,257,null]],"output_top_logprobs":[[[-0.1,257,null],[-3.0,4,null]]]}}"#;
        let heard = hear(event.as_bytes(), 0).unwrap();
        assert_eq!(
            (heard.end, heard.version),
            (Some(StopReason::Stop), Some(12))
        );
        assert_eq!(heard.tokens[0].alternatives, [(257, -0.1), (4, -3.0)]);
        let named = event.replace("\"12\"", "\"default\"");
        assert_eq!(hear(named.as_bytes(), 0).unwrap().version, None);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (event, expected) in [
            (r#"{"text":"a"}"#, "without `meta_info`"),
            (
                r#"{"meta_info":{"completion_tokens":1}}"#,
                "without `output_token_logprobs`",
            ),
            (
                r#"{"meta_info":{"finish_reason":{"type":"abort","message":"out of memory"}}}"#,
                "`abort`: out of memory",
            ),
        ] {
            let problem = hear(event.as_bytes(), 0).unwrap_err();
            assert!(problem.contains(expected), "{event}: {problem}");
        }
    }
}
