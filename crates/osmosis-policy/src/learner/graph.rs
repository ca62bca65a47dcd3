//! The decoder as operations with gradients.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::matrix::Matrix;
use super::ops::{Add, AddBias, Attention, Linear, Real, RmsNorm, Rope, RopeTable, Select, SwiGlu};
use super::tape::{Tape, Value};
use crate::{Architecture, ModelConfig, PolicyError};

/// A decoder whose tensors are on a tape.
pub(super) struct Graph<'a, T> {
    config: &'a ModelConfig,
    tape: &'a Tape<T>,
    embedding: Value<T>,
    layers: Vec<Layer<T>>,
    norm: Value<T>,
    /// None when the embedding is used again.
    head: Option<Value<T>>,
}

struct Layer<T> {
    attention_norm: Value<T>,
    q: Projection<T>,
    k: Projection<T>,
    v: Projection<T>,
    q_norm: Option<Value<T>>,
    k_norm: Option<Value<T>>,
    output: Projection<T>,
    mlp_norm: Value<T>,
    gate: Projection<T>,
    up: Projection<T>,
    down: Projection<T>,
}

struct Projection<T> {
    weight: Value<T>,
    bias: Option<Value<T>>,
}

/// Finds a tensor of a layer.
type Find<'a, T> = dyn Fn(&str) -> Result<Value<T>, PolicyError> + 'a;

impl<T: Real> Layer<T> {
    fn new(config: &ModelConfig, get: &Find<'_, T>) -> Result<Self, PolicyError> {
        let plain = |name: &str| {
            Ok::<_, PolicyError>(Projection {
                weight: get(&format!("{name}.weight"))?,
                bias: None,
            })
        };
        let with_bias = |name: &str| {
            let bias = match config.architecture {
                Architecture::Qwen2 => Some(get(&format!("{name}.bias"))?),
                Architecture::Llama | Architecture::Qwen3 => None,
            };
            Ok::<_, PolicyError>(Projection {
                bias,
                ..plain(name)?
            })
        };
        let head_norm = |name: &str| match config.architecture {
            Architecture::Qwen3 => get(name).map(Some),
            Architecture::Llama | Architecture::Qwen2 => Ok(None),
        };
        Ok(Self {
            attention_norm: get("input_layernorm.weight")?,
            q: with_bias("self_attn.q_proj")?,
            k: with_bias("self_attn.k_proj")?,
            v: with_bias("self_attn.v_proj")?,
            q_norm: head_norm("self_attn.q_norm.weight")?,
            k_norm: head_norm("self_attn.k_norm.weight")?,
            output: plain("self_attn.o_proj")?,
            mlp_norm: get("post_attention_layernorm.weight")?,
            gate: plain("mlp.gate_proj")?,
            up: plain("mlp.up_proj")?,
            down: plain("mlp.down_proj")?,
        })
    }
}

impl<'a, T: Real> Graph<'a, T> {
    /// `parameters` are all tensors of the config by Hugging Face name; gradients will come in this order.
    pub(super) fn new(
        config: &'a ModelConfig,
        tape: &'a Tape<T>,
        parameters: &[(&str, &Arc<Matrix<T>>)],
    ) -> Result<Self, PolicyError> {
        let values = parameters
            .iter()
            .enumerate()
            .map(|(index, (name, data))| (*name, tape.parameter(index, data)))
            .collect::<BTreeMap<_, _>>();
        let get = |name: &str| match values.get(name) {
            Some(value) => Ok(value.clone()),
            None => Err(PolicyError::Compute(format!(
                "the decoder has no tensor `{name}`"
            ))),
        };
        let layers = (0..config.layers)
            .map(|index| Layer::new(config, &|name| get(&format!("model.layers.{index}.{name}"))))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            config,
            tape,
            embedding: get("model.embed_tokens.weight")?,
            layers,
            norm: get("model.norm.weight")?,
            head: (!config.tied_embeddings)
                .then(|| get("lm_head.weight"))
                .transpose()?,
        })
    }

    /// Logits at `positions` of sequences of equal `length`, laid end to end in `ids`.
    pub(super) fn logits(
        &self,
        ids: &[u32],
        length: usize,
        positions: Vec<u32>,
        rope: &Arc<RopeTable>,
    ) -> Result<Value<T>, PolicyError> {
        let mut x = self.tape.apply(Select(ids.to_vec()), [&self.embedding])?;
        for layer in &self.layers {
            x = self.layer(layer, &x, length, rope)?;
        }
        // Only these positions meet the vocabulary, which is much of the work of a small model.
        let x = self.tape.apply(Select(positions), [&x])?;
        let x = self.normed(&x, &self.norm)?;
        Ok(self
            .tape
            .apply(Linear, [&x, self.head.as_ref().unwrap_or(&self.embedding)])?)
    }

    fn layer(
        &self,
        layer: &Layer<T>,
        stream: &Value<T>,
        length: usize,
        rope: &Arc<RopeTable>,
    ) -> Result<Value<T>, PolicyError> {
        let (config, tape) = (self.config, self.tape);
        let normed = self.normed(stream, &layer.attention_norm)?;
        let rotated = |projection: &Projection<T>, norm: Option<&Value<T>>| {
            let heads = self.projected(&normed, projection)?;
            let heads = match norm {
                Some(norm) => self.normed(&heads, norm)?,
                None => heads,
            };
            Ok::<_, PolicyError>(tape.apply(
                Rope {
                    table: Arc::clone(rope),
                    length,
                },
                [&heads],
            )?)
        };
        let queries = rotated(&layer.q, layer.q_norm.as_ref())?;
        let keys = rotated(&layer.k, layer.k_norm.as_ref())?;
        let values = self.projected(&normed, &layer.v)?;
        let attention = Attention {
            length,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_width: config.head_width,
        };
        let attended = tape.apply(attention, [&queries, &keys, &values])?;
        let stream = tape.apply(Add, [stream, &self.projected(&attended, &layer.output)?])?;
        let normed = self.normed(&stream, &layer.mlp_norm)?;
        let gate = self.projected(&normed, &layer.gate)?;
        let up = self.projected(&normed, &layer.up)?;
        let gated = tape.apply(SwiGlu, [&gate, &up])?;
        Ok(tape.apply(Add, [&stream, &self.projected(&gated, &layer.down)?])?)
    }

    fn projected(&self, x: &Value<T>, projection: &Projection<T>) -> Result<Value<T>, PolicyError> {
        let product = self.tape.apply(Linear, [x, &projection.weight])?;
        match &projection.bias {
            Some(bias) => Ok(self.tape.apply(AddBias, [&product, bias])?),
            None => Ok(product),
        }
    }

    fn normed(&self, x: &Value<T>, weight: &Value<T>) -> Result<Value<T>, PolicyError> {
        Ok(self.tape.apply(
            RmsNorm {
                epsilon: self.config.norm_epsilon,
            },
            [x, weight],
        )?)
    }
}
