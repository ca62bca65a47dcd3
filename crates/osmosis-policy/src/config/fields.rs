//! The fields of `config.json`, and what is refused.

use serde_json::Value;

use super::{Architecture, MAX_SIZE, RopeScaling};
use crate::PolicyError;

/// `config.json` as it was read, with access that names what is wrong.
pub(super) struct Fields<'a>(pub(super) &'a Value);

impl Fields<'_> {
    /// A field; `null` counts as absent.
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn size(&self, name: &str) -> Result<usize, PolicyError> {
        self.optional_size(name)?
            .ok_or_else(|| PolicyError::Config(format!("`{name}` is missing")))
    }

    pub(super) fn optional_size(&self, name: &str) -> Result<Option<usize>, PolicyError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        match size.filter(|size| (1..=MAX_SIZE).contains(size)) {
            Some(size) => Ok(Some(size)),
            None => Err(PolicyError::Config(format!(
                "`{name}` is `{value}`, not a whole number from 1 to {MAX_SIZE}"
            ))),
        }
    }

    pub(super) fn positive(&self, name: &str) -> Result<Option<f64>, PolicyError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value
            .as_f64()
            .filter(|number| number.is_finite() && *number > 0.0)
        {
            Some(number) => Ok(Some(number)),
            None => Err(PolicyError::Config(format!(
                "`{name}` is `{value}`, not a positive number"
            ))),
        }
    }

    fn required_positive(&self, name: &str) -> Result<f64, PolicyError> {
        self.positive(name)?
            .ok_or_else(|| PolicyError::Config(format!("`{name}` is missing in the rope scaling")))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, PolicyError> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(PolicyError::Config(format!(
                "`{name}` is `{other}`, not true or false"
            ))),
        }
    }

    pub(super) fn architecture(&self) -> Result<Architecture, PolicyError> {
        let class = self
            .get("architectures")
            .and_then(|list| list.get(0))
            .and_then(Value::as_str);
        let architecture = match (self.get("model_type").and_then(Value::as_str), class) {
            (Some(model_type), _) => Architecture::from_model_type(model_type)
                .ok_or_else(|| unsupported(format!("model type `{model_type}`")))?,
            (None, Some(class)) => [
                Architecture::Llama,
                Architecture::Qwen2,
                Architecture::Qwen3,
            ]
            .into_iter()
            .find(|architecture| architecture.class() == class)
            .ok_or_else(|| unsupported(format!("architecture `{class}`")))?,
            (None, None) => {
                return Err(PolicyError::Config(
                    "neither `model_type` nor `architectures` is given".to_owned(),
                ));
            }
        };
        match class {
            Some(class) if class != architecture.class() => {
                Err(unsupported(format!("architecture `{class}`")))
            }
            Some(_) | None => Ok(architecture),
        }
    }

    /// Refuses what would silently change the numbers.
    pub(super) fn refuse_extras(&self, architecture: Architecture) -> Result<(), PolicyError> {
        if let Some(act) = self
            .get("hidden_act")
            .filter(|act| act.as_str() != Some("silu"))
        {
            return Err(unsupported(format!("`hidden_act` {act}")));
        }
        if self.get("quantization_config").is_some() {
            return Err(unsupported(
                "a quantized checkpoint (`quantization_config`)".to_owned(),
            ));
        }
        if self.flag("mlp_bias")? {
            return Err(unsupported("`mlp_bias`".to_owned()));
        }
        if self.flag("attention_bias")? && architecture != Architecture::Qwen2 {
            return Err(unsupported("`attention_bias`".to_owned()));
        }
        if self
            .positive("partial_rotary_factor")?
            .is_some_and(|part| part < 1.0)
        {
            return Err(unsupported("`partial_rotary_factor`".to_owned()));
        }
        Ok(())
    }

    pub(super) fn refuse_sliding_window(&self, layers: usize) -> Result<(), PolicyError> {
        let other_layer = self
            .get("layer_types")
            .and_then(Value::as_array)
            .and_then(|types| {
                types
                    .iter()
                    .find(|kind| kind.as_str() != Some("full_attention"))
            });
        if let Some(kind) = other_layer {
            return Err(unsupported(format!("layer type {kind}")));
        }
        // Without `layer_types`, layers from `max_window_layers` on use the window.
        let windowed = self.flag("use_sliding_window")?
            && self.get("sliding_window").is_some()
            && self.get("layer_types").is_none()
            && self
                .optional_size("max_window_layers")
                .ok()
                .flatten()
                .is_none_or(|from| from < layers);
        if windowed {
            return Err(unsupported(
                "sliding-window attention (`use_sliding_window`)".to_owned(),
            ));
        }
        Ok(())
    }

    /// Older configs have `rope_theta` and `rope_scaling`, newer ones both in `rope_parameters`.
    pub(super) fn rope(&self, context: usize) -> Result<(f64, RopeScaling), PolicyError> {
        let scaling = self
            .get("rope_parameters")
            .or_else(|| self.get("rope_scaling"));
        let scaling = match scaling {
            None => None,
            Some(value @ Value::Object(_)) => Some(Fields(value)),
            Some(other) => {
                return Err(PolicyError::Config(format!(
                    "rope scaling is `{other}`, not an object"
                )));
            }
        };
        let nested_theta = match &scaling {
            Some(scaling) => scaling.positive("rope_theta")?,
            None => None,
        };
        let theta = match nested_theta {
            Some(theta) => theta,
            None => self.positive("rope_theta")?.unwrap_or(10_000.0),
        };
        let Some(scaling) = scaling else {
            return Ok((theta, RopeScaling::None));
        };
        if scaling
            .positive("partial_rotary_factor")?
            .is_some_and(|part| part < 1.0)
        {
            return Err(unsupported("`partial_rotary_factor`".to_owned()));
        }
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
        let scaling = match kind.and_then(Value::as_str) {
            Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear {
                factor: scaling.required_positive("factor")?,
            },
            Some("llama3") => RopeScaling::Llama3 {
                factor: scaling.required_positive("factor")?,
                low: scaling.required_positive("low_freq_factor")?,
                high: scaling.required_positive("high_freq_factor")?,
                original_context: scaling
                    .positive("original_max_position_embeddings")?
                    .unwrap_or(context as f64),
            },
            Some(other) => return Err(unsupported(format!("rope scaling `{other}`"))),
            // A bare `{"rope_theta": …}` says nothing about scaling.
            None if kind.is_none() && scaling.get("factor").is_none() => RopeScaling::None,
            None => {
                return Err(PolicyError::Config(
                    "the rope scaling has no `rope_type`".to_owned(),
                ));
            }
        };
        Ok((theta, scaling))
    }
}

fn unsupported(what: String) -> PolicyError {
    PolicyError::Unsupported { what }
}
