//! vLLM's `POST /v1/completions` with a prompt of token ids.

use std::collections::HashMap;

use osmosis_core::generation::{GenerationRequest, StopReason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::wire::{Drawn, Heard, seed_of};

/// What is asked.
pub(super) fn body(model: &str, request: &GenerationRequest, max_tokens: usize) -> Value {
    // Whatever is left out is taken from the model's `generation_config.json` by the server.
    json!({
        "model": model,
        "prompt": request.prompt,
        "max_tokens": max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": if request.top_k == 0 { -1 } else { i64::try_from(request.top_k).unwrap_or(-1) },
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": request.stop_ids,
        // What ends the answer is in `stop_token_ids`, the end of the turn included.
        "ignore_eos": true,
        "skip_special_tokens": false,
        "seed": seed_of(&request.key),
        "logprobs": request.alternatives,
        "return_token_ids": true,
        "return_tokens_as_token_ids": true,
        "stream": true,
    })
}

#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Logprobs {
    /// `token_id:N`, because we asked for it.
    #[serde(default)]
    tokens: Vec<String>,
    #[serde(default, rename = "token_logprobs")]
    chosen: Vec<Option<f32>>,
    #[serde(default, rename = "top_logprobs")]
    likeliest: Vec<Option<HashMap<String, f32>>>,
}

/// What an event of the stream says; an `Err` says what is wrong with it.
pub(super) fn hear(data: &[u8], alternatives: usize) -> Result<Heard, String> {
    let chunk: Chunk =
        serde_json::from_slice(data).map_err(|error| format!("sent a bad event: {error}"))?;
    let mut heard = Heard::default();
    let Some(choice) = chunk.choices.into_iter().next() else {
        return Ok(heard);
    };
    let logprobs = choice.logprobs;
    let ids = match choice.token_ids {
        Some(ids) => ids,
        // Versions before `return_token_ids` name them here.
        None => logprobs
            .iter()
            .flat_map(|logprobs| &logprobs.tokens)
            .map(|token| id_in(token))
            .collect::<Option<Vec<u32>>>()
            .ok_or("sent no `token_ids`: vLLM does since 0.10.2")?,
    };
    if ids.is_empty() && !choice.text.is_empty() {
        return Err("sent text without `token_ids`: vLLM sends them since 0.10.2".to_owned());
    }
    let (chosen, tops) = logprobs.map_or_else(Default::default, |logprobs| {
        (logprobs.chosen, logprobs.likeliest)
    });
    if chosen.len() != ids.len() {
        return Err(format!(
            "sent {} logprobs for {} tokens",
            chosen.len(),
            ids.len()
        ));
    }
    let mut tops = tops.into_iter();
    for (id, logprob) in ids.into_iter().zip(chosen) {
        let logprob = logprob.ok_or("sent a token without its logprob")?;
        let top = tops.next().flatten().unwrap_or_default();
        heard.tokens.push(Drawn {
            id,
            logprob,
            alternatives: likeliest(top, alternatives),
        });
    }
    heard.end = match choice.finish_reason.as_deref() {
        None => None,
        Some("stop") => Some(StopReason::Stop),
        Some("length") => Some(StopReason::Length),
        Some(other) => return Err(format!("ended the answer with `{other}`")),
    };
    Ok(heard)
}

fn id_in(token: &str) -> Option<u32> {
    token.strip_prefix("token_id:")?.parse().ok()
}

fn likeliest(top: HashMap<String, f32>, count: usize) -> Vec<(u32, f32)> {
    let mut ordered: Vec<(u32, f32)> = top
        .into_iter()
        .filter_map(|(token, logprob)| Some((id_in(&token)?, logprob)))
        .collect();
    ordered.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ordered.truncate(count);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_logprobs_and_alternatives_are_read() {
        let event = br#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,
            "text":"Hi","logprobs":{"text_offset":[0,1],"token_logprobs":[-0.5,-9999.0],"tokens":["token_id:72","token_id:105"],
            "top_logprobs":[{"token_id:72":-0.5,"token_id:9":-1.5},{"token_id:105":-9999.0,"token_id:7":-0.1}]},
            "finish_reason":"stop","stop_reason":105,"prompt_token_ids":[1],"token_ids":[72,105]}]}"#;
        let heard = hear(event, 1).unwrap();
        assert_eq!(heard.end, Some(StopReason::Stop));
        let ids: Vec<u32> = heard.tokens.iter().map(|token| token.id).collect();
        assert_eq!(ids, [72, 105]);
        assert_eq!(heard.tokens[0].alternatives, [(72, -0.5)]);
        assert_eq!(heard.tokens[1].alternatives, [(7, -0.1)]);
    }

    #[test]
    fn older_servers_name_the_ids_among_the_logprobs() {
        let event = br#"{"choices":[{"text":"H","logprobs":{"tokens":["token_id:72"],"token_logprobs":[-1.0]}}]}"#;
        assert_eq!(hear(event, 0).unwrap().tokens[0].id, 72);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (event, expected) in [
            (r#"{"choices":[{"text":"Hi"}]}"#, "without `token_ids`"),
            (
                r#"{"choices":[{"text":"Hi","token_ids":[1]}]}"#,
                "0 logprobs for 1 tokens",
            ),
            (
                r#"{"choices":[{"text":"H","logprobs":{"tokens":["H"],"token_logprobs":[-1.0]}}]}"#,
                "no `token_ids`",
            ),
            (
                r#"{"choices":[{"text":"","token_ids":[],"finish_reason":"abort"}]}"#,
                "with `abort`",
            ),
            ("{", "bad event"),
        ] {
            let problem = hear(event.as_bytes(), 0).unwrap_err();
            assert!(problem.contains(expected), "{event}: {problem}");
        }
    }
}
