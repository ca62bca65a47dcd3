//! The shape of a decoder, as `config.json` says it.

use serde_json::Value;

use crate::PolicyError;

/// The shape of a Llama-like decoder. Qwen2 adds biases to q, k and v; Qwen3 normalises q and k per head.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub vocabulary: usize,
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub mlp_width: usize,
    pub context: usize,
    pub norm_epsilon: f64,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub tied_embeddings: bool,
    /// The whole `config.json`, so that a checkpoint keeps what we do not read.
    pub source: Value,
}

/// Which family's names and extras a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
}

/// How positions are stretched. What is not here is refused.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    None,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original_context: f64,
    },
}

impl Architecture {
    /// The `model_type` of `config.json`, which is also GGUF's `general.architecture`.
    pub(crate) fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The class `transformers` uses for it.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    pub(crate) fn from_model_type(model_type: &str) -> Option<Self> {
        [Self::Llama, Self::Qwen2, Self::Qwen3]
            .into_iter()
            .find(|architecture| architecture.model_type() == model_type)
    }
}

impl ModelConfig {
    /// Reads `config.json`.
    pub fn parse(config: Value) -> Result<Self, PolicyError> {
        let fields = Fields(&config);
        let architecture = fields.architecture()?;
        fields.refuse_extras(architecture)?;
        let layers = fields.size("num_hidden_layers")?;
        fields.refuse_sliding_window(layers)?;
        let width = fields.size("hidden_size")?;
        let heads = fields.size("num_attention_heads")?;
        let kv_heads = fields
            .optional_size("num_key_value_heads")?
            .unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(PolicyError::Config(format!(
                "`num_attention_heads` {heads} is not a multiple of `num_key_value_heads` {kv_heads}"
            )));
        }
        let head_width = match fields.optional_size("head_dim")? {
            Some(head_width) => head_width,
            None if width.is_multiple_of(heads) => width / heads,
            None => {
                return Err(PolicyError::Config(format!(
                    "`hidden_size` {width} is not a multiple of `num_attention_heads` {heads}, and there is no `head_dim`"
                )));
            }
        };
        if !head_width.is_multiple_of(2) {
            return Err(PolicyError::Config(format!(
                "a head width of {head_width} is odd"
            )));
        }
        let context = fields.size("max_position_embeddings")?;
        let (rope_theta, rope_scaling) = fields.rope(context)?;
        Ok(Self {
            architecture,
            vocabulary: fields.size("vocab_size")?,
            width,
            layers,
            heads,
            kv_heads,
            head_width,
            mlp_width: fields.size("intermediate_size")?,
            context,
            norm_epsilon: fields.positive("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            tied_embeddings: fields.flag("tie_word_embeddings")?,
            source: config,
        })
    }

    /// Every tensor the model has, by its Hugging Face name, with its shape.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (width, mlp) = (self.width, self.mlp_width);
        let (q, kv) = (
            self.heads * self.head_width,
            self.kv_heads * self.head_width,
        );
        let mut tensors = vec![(
            "model.embed_tokens.weight".to_owned(),
            vec![self.vocabulary, width],
        )];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: Vec<usize>| {
                tensors.push((format!("model.layers.{layer}.{name}"), shape));
            };
            add("input_layernorm.weight", vec![width]);
            add("self_attn.q_proj.weight", vec![q, width]);
            add("self_attn.k_proj.weight", vec![kv, width]);
            add("self_attn.v_proj.weight", vec![kv, width]);
            match self.architecture {
                Architecture::Llama => {}
                Architecture::Qwen2 => {
                    add("self_attn.q_proj.bias", vec![q]);
                    add("self_attn.k_proj.bias", vec![kv]);
                    add("self_attn.v_proj.bias", vec![kv]);
                }
                Architecture::Qwen3 => {
                    add("self_attn.q_norm.weight", vec![self.head_width]);
                    add("self_attn.k_norm.weight", vec![self.head_width]);
                }
            }
            add("self_attn.o_proj.weight", vec![width, q]);
            add("post_attention_layernorm.weight", vec![width]);
            add("mlp.gate_proj.weight", vec![mlp, width]);
            add("mlp.up_proj.weight", vec![mlp, width]);
            add("mlp.down_proj.weight", vec![width, mlp]);
        }
        tensors.push(("model.norm.weight".to_owned(), vec![width]));
        if !self.tied_embeddings {
            tensors.push(("lm_head.weight".to_owned(), vec![self.vocabulary, width]));
        }
        tensors
    }

    pub fn parameters(&self) -> usize {
        self.tensors()
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }

    /// Cosines and sines of the rotations, each `[positions, head_width / 2]`. The pair at index `i` turns
    /// the channels `i` and `i + head_width / 2` of a head. Sampler and learner share these numbers.
    pub(crate) fn rotations(&self, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let frequencies = self.rope_frequencies();
        // The product is taken in f32 because `transformers` does.
        let angles = (0..positions)
            .flat_map(|position| frequencies.iter().map(move |f| position as f32 * f));
        angles.map(|angle| (angle.cos(), angle.sin())).unzip()
    }

    pub(crate) fn rope_frequencies(&self) -> Vec<f32> {
        let plain = (0..self.head_width / 2).map(|pair| {
            self.rope_theta
                .powf(-(2.0 * pair as f64) / self.head_width as f64)
        });
        let stretch = |frequency: f64| match self.rope_scaling {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 {
                factor,
                low,
                high,
                original_context,
            } => {
                let wavelength = std::f64::consts::TAU / frequency;
                if wavelength < original_context / high {
                    frequency
                } else if wavelength > original_context / low {
                    frequency / factor
                } else {
                    let smooth = (original_context / wavelength - low) / (high - low);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the decoder computes in f32"
        )]
        plain.map(|frequency| stretch(frequency) as f32).collect()
    }
}

/// `config.json` as it was read, with access that names what is wrong.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    /// A field; `null` counts as absent.
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn size(&self, name: &str) -> Result<usize, PolicyError> {
        self.optional_size(name)?
            .ok_or_else(|| PolicyError::Config(format!("`{name}` is missing")))
    }

    fn optional_size(&self, name: &str) -> Result<Option<usize>, PolicyError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        // Beyond this, products of two sizes could overflow.
        let size = value.as_u64().filter(|size| (1..=1 << 24).contains(size));
        match size.and_then(|size| usize::try_from(size).ok()) {
            Some(size) => Ok(Some(size)),
            None => Err(PolicyError::Config(format!(
                "`{name}` is `{value}`, not a sensible size"
            ))),
        }
    }

    fn positive(&self, name: &str) -> Result<Option<f64>, PolicyError> {
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

    fn flag(&self, name: &str) -> Result<bool, PolicyError> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(PolicyError::Config(format!(
                "`{name}` is `{other}`, not true or false"
            ))),
        }
    }

    fn architecture(&self) -> Result<Architecture, PolicyError> {
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
    fn refuse_extras(&self, architecture: Architecture) -> Result<(), PolicyError> {
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

    fn refuse_sliding_window(&self, layers: usize) -> Result<(), PolicyError> {
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
    fn rope(&self, context: usize) -> Result<(f64, RopeScaling), PolicyError> {
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
