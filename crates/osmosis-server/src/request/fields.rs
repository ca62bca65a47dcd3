//! The fields of a request body, one check each.

use std::collections::HashMap;

use http::HeaderValue;
use osmosis_core::{RolloutId, json_problem};
use osmosis_gateway::{RelayPolicy, Secret};
use reqwest::Url;
use serde_json::value::RawValue;

use crate::refusal::Problem;

/// The fields of a body, and what is wrong with them so far.
pub(super) struct Reading<'a> {
    pub(super) fields: HashMap<String, &'a RawValue>,
    pub(super) problems: Vec<Problem>,
}

impl<'a> Reading<'a> {
    fn problem(&mut self, kind: &'static str, field: &str, msg: impl Into<String>) {
        self.problems.push(Problem::of_field(kind, field, msg));
    }

    /// A field's value; `null` is the same as no field.
    fn get(&self, field: &str) -> Option<&'a RawValue> {
        self.fields
            .get(field)
            .copied()
            .filter(|value| value.get() != "null")
    }

    pub(super) fn text(&mut self, field: &str) -> Option<String> {
        let value = self.get(field)?;
        let text = serde_json::from_str(value.get());
        if text.is_err() {
            self.problem("string_type", field, "must be a string");
        }
        text.ok()
    }

    pub(super) fn object(&mut self, field: &str) -> Option<&'a RawValue> {
        let value = self.get(field)?;
        if value.get().starts_with('{') {
            return self.shallow(field, value);
        }
        self.problem("dict_type", field, "must be an object");
        None
    }

    /// The value, unless those who read it later could not follow it.
    fn shallow(&mut self, field: &str, value: &'a RawValue) -> Option<&'a RawValue> {
        let Some(problem) = json_problem(value.get()) else {
            return Some(value);
        };
        self.problem("value_error", field, format!("can't be read: {problem}"));
        None
    }

    /// The id that was sent, else a new one.
    pub(super) fn id(&mut self) -> Option<RolloutId> {
        const FIELD: &str = "rollout_id";
        if self.get(FIELD).is_none() {
            return RolloutId::new(format!("{:032x}", rand::random::<u128>())).ok();
        }
        let text = self.text(FIELD)?;
        match RolloutId::new(text) {
            Ok(id) => Some(id),
            Err(error) => {
                self.problem("value_error", FIELD, error.to_string());
                None
            }
        }
    }

    pub(super) fn messages(&mut self) -> Option<&'a RawValue> {
        const FIELD: &str = "initial_messages";
        let Some(value) = self.get(FIELD) else {
            self.problem("missing", FIELD, "is required: an array of messages");
            return None;
        };
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(value.get()) else {
            self.problem("list_type", FIELD, "must be an array of messages");
            return None;
        };
        for (at, item) in items.iter().enumerate() {
            if !item.get().starts_with('{') {
                let problem = Problem::of_item("dict_type", FIELD, at, "must be an object");
                self.problems.push(problem);
            }
        }
        self.shallow(FIELD, value)
    }

    pub(super) fn timeout(&mut self, field: &str) -> Option<f64> {
        let value = self.get(field)?;
        let looks_like_a_number = value
            .get()
            .starts_with(|c: char| c == '-' || c.is_ascii_digit());
        match serde_json::from_str::<f64>(value.get()) {
            Ok(seconds) if seconds.is_finite() && seconds > 0.0 => return Some(seconds),
            Ok(seconds) if seconds.is_finite() => {
                self.problem("greater_than", field, "must be greater than 0");
            }
            // More than a float can say.
            Ok(_) => self.problem("finite_number", field, "must be finite"),
            Err(_) if looks_like_a_number => {
                self.problem("finite_number", field, "must be finite");
            }
            Err(_) => self.problem("float_type", field, "must be a number of seconds"),
        }
        None
    }

    /// The key for model calls: its own, else the controller's.
    pub(super) fn llm_key(&mut self, controller_key: Option<&str>) -> Option<Secret> {
        const FIELD: &str = "llm_api_key";
        match self.text(FIELD) {
            Some(key) if key.is_empty() => {
                self.problem(
                    "value_error",
                    FIELD,
                    "must not be empty; leave it out to use `controller_api_key`",
                );
                None
            }
            Some(key) => Some(Secret::new(key)),
            None => controller_key.map(Secret::new),
        }
    }

    pub(super) fn chat_completions_url(
        &mut self,
        relay: &RelayPolicy,
        key: Option<&Secret>,
    ) -> Option<Url> {
        const FIELD: &str = "chat_completions_url";
        let url = self.required_url(FIELD)?;
        match relay.check(url.as_str(), key.cloned()) {
            Ok(()) => Some(url),
            Err(error) => {
                self.problem("value_error", FIELD, error.to_string());
                None
            }
        }
    }

    pub(super) fn required_url(&mut self, field: &str) -> Option<Url> {
        if self.get(field).is_none() {
            self.problem("missing", field, "is required: an http or https URL");
            return None;
        }
        self.url(field)
    }

    pub(super) fn url(&mut self, field: &str) -> Option<Url> {
        let text = self.text(field)?;
        let url = Url::parse(text.trim())
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
        if url.is_none() {
            self.problem("url_parsing", field, "must be an http or https URL");
        }
        url
    }

    pub(super) fn authorization(&mut self, key: Option<&str>) -> Option<HeaderValue> {
        let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", key?)) else {
            let msg = "cannot be sent in a header: it contains a control character or a line break";
            self.problem("value_error", "controller_api_key", msg);
            return None;
        };
        value.set_sensitive(true);
        Some(value)
    }
}
