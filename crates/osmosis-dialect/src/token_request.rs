//! Requests in token ids (`/v1/generate`), in the names of SGLang and AReaL.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::rejection::RequestError;
use crate::sampling::Sampling;

/// A request in token ids, read and made ready for the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// Fields of `sampling_params` whose values, chosen by the caller, were replaced.
    pub overridden: Vec<&'static str>,
    /// The body as the policy shall see it.
    pub body: Bytes,
}

impl TokenRequest {
    /// Reads `body` and fills the run's sampling in.
    pub fn parse(body: &[u8], sampling: &Sampling) -> Result<Self, RequestError> {
        let mut request: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
            RequestError::invalid(format!("the body is not a valid request: {error}"))
        })?;
        let given = request
            .entry("sampling_params")
            .or_insert_with(|| json!({}));
        if given.is_null() {
            *given = json!({});
        }
        let Value::Object(params) = given else {
            return Err(RequestError::invalid("`sampling_params` is not an object"));
        };
        let mut overridden = Vec::new();
        // A greedy call chose its temperature too.
        if params.get("greedy") == Some(&Value::Bool(true)) {
            params.entry("temperature").or_insert(json!(0.0));
            if sampling.overrides && sampling.temperature.is_some() {
                params.remove("greedy");
            }
        }
        for (name, value) in [
            ("temperature", sampling.temperature),
            ("top_p", sampling.top_p),
        ] {
            let Some(value) = value.filter(|value| value.is_finite()) else {
                continue;
            };
            let says = params.get(name).filter(|says| !says.is_null());
            if says.is_some() && !sampling.overrides {
                continue;
            }
            if says.is_some_and(|says| says.as_f64() != Some(value)) {
                overridden.push(name);
            }
            params.insert(name.to_owned(), json!(value));
        }
        if sampling.overrides {
            for (name, neutral) in [("top_k", Some(-1)), ("seed", None)] {
                if let Some(says) = params.remove(name).filter(|says| !says.is_null())
                    && (neutral.is_none() || says.as_i64() != neutral)
                {
                    overridden.push(name);
                }
            }
        }
        Ok(Self {
            overridden,
            body: Bytes::from(Value::Object(request).to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_sampling_fills_gaps_or_wins() {
        let fill = Sampling {
            temperature: Some(0.5),
            top_p: Some(1.0),
            overrides: false,
        };
        let win = Sampling {
            overrides: true,
            ..fill
        };
        for (params, sampling, expected, overridden) in [
            (
                json!(null),
                fill,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &[][..],
            ),
            (
                json!({"temperature": 1.0}),
                fill,
                json!({"temperature": 1.0, "top_p": 1.0}),
                &[][..],
            ),
            (
                json!({"temperature": 1.0}),
                win,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &["temperature"],
            ),
            (
                json!({"greedy": true}),
                fill,
                json!({"greedy": true, "temperature": 0.0, "top_p": 1.0}),
                &[][..],
            ),
            (
                json!({"greedy": true}),
                win,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &["temperature"],
            ),
            (
                json!({"seed": 7, "top_k": 40}),
                fill,
                json!({"seed": 7, "top_k": 40, "temperature": 0.5, "top_p": 1.0}),
                &[],
            ),
            (
                json!({"seed": 7, "top_k": 40}),
                win,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &["top_k", "seed"],
            ),
            (
                json!({"seed": null, "top_k": -1}),
                win,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &[],
            ),
        ] {
            let body =
                Bytes::from(json!({"input_ids": [1], "sampling_params": params}).to_string());
            let request = TokenRequest::parse(&body, &sampling).unwrap();
            let amended: Value = serde_json::from_slice(&request.body).unwrap();
            assert_eq!(amended["sampling_params"], expected);
            assert_eq!(request.overridden, overridden, "{body:?}");
        }
        for bad in ["[]", "{\"sampling_params\": 1}", "{"] {
            assert!(TokenRequest::parse(bad.as_bytes(), &fill).is_err(), "{bad}");
        }
    }
}
