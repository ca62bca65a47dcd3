//! The shape of a decoder, as `config.json` says it.

mod fields;

use serde_json::Value;

use self::fields::Fields;
use crate::PolicyError;

/// The most that any size may be: products of two never overflow.
const MAX_SIZE: usize = 1 << 24;

/// The most layers; the names of all tensors are held in memory.
const MAX_LAYERS: usize = 4096;

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
        if layers > MAX_LAYERS {
            return Err(PolicyError::Config(format!(
                "`num_hidden_layers` is {layers}; more than {MAX_LAYERS} are no model"
            )));
        }
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
        if heads * head_width > MAX_SIZE {
            return Err(PolicyError::Config(format!(
                "{heads} heads of {head_width} are more than {MAX_SIZE} together"
            )));
        }
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

    /// Whether weights of one are weights of the other: equal but for what we do not read.
    pub fn has_shape_of(&self, other: &Self) -> bool {
        let shape = |config: &Self| Self {
            source: Value::Null,
            ..config.clone()
        };
        shape(self) == shape(other)
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
