//! The decoder as operations with gradients.

use std::collections::BTreeMap;
use std::sync::Arc;

use osmosis_core::config::LoraModule;

use super::matrix::Matrix;
use super::ops::{
    AdaptedLinear, Add, AddBias, Attention, FrozenLinear, Linear, Place, Real, RmsNorm, Rope,
    RopeTable, Select, SwiGlu,
};
use super::pieces::{Piece, Segment};
use super::tape::{Tape, Value};
use crate::lora::{self, FrozenModel, Half};
use crate::{Architecture, ModelConfig, PolicyError};

/// A decoder whose tensors are on a tape.
pub(super) struct Graph<'a, T> {
    config: &'a ModelConfig,
    tape: &'a Tape<T>,
    vocabulary: Vocabulary<'a, T>,
    layers: Vec<Layer<T>>,
    norm: Value<T>,
}

/// What tokens become, and what becomes tokens.
enum Vocabulary<'a, T> {
    Trained {
        embedding: Value<T>,
        /// None when the embedding is used again.
        head: Option<Value<T>>,
    },
    Frozen(&'a FrozenModel),
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

enum Projection<T> {
    Trained {
        weight: Value<T>,
        bias: Option<Value<T>>,
    },
    Frozen(FrozenLinear),
    /// With the matrices of its adapter.
    Adapted {
        frozen: FrozenLinear,
        scale: f32,
        a: Value<T>,
        b: Value<T>,
    },
}

/// Finds a tensor of a layer.
type Find<'a, T> = dyn Fn(&str) -> Result<Value<T>, PolicyError> + 'a;

impl<T: Real> Layer<T> {
    fn new(config: &ModelConfig, get: &Find<'_, T>) -> Result<Self, PolicyError> {
        let plain = |name: &str| {
            Ok::<_, PolicyError>(Projection::Trained {
                weight: get(&format!("{name}.weight"))?,
                bias: None,
            })
        };
        let with_bias = |name: &str| {
            let bias = match config.architecture {
                Architecture::Qwen2 => Some(get(&format!("{name}.bias"))?),
                Architecture::Llama | Architecture::Qwen3 => None,
            };
            Ok::<_, PolicyError>(Projection::Trained {
                weight: get(&format!("{name}.weight"))?,
                bias,
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

    /// A layer whose weights stay as they are; `get` finds the matrices of adapters.
    fn frozen(index: usize, frozen: &FrozenModel, get: &Find<'_, T>) -> Result<Self, PolicyError> {
        let projection = |module: LoraModule| {
            let place = Place::Projection(index, module);
            let base = Arc::clone(&frozen.base);
            let linear = FrozenLinear { base, place };
            if !frozen.lora.target_modules.contains(&module) {
                return Ok::<_, PolicyError>(Projection::Frozen(linear));
            }
            Ok(Projection::Adapted {
                frozen: linear,
                scale: lora::scale(&frozen.lora),
                a: get(&lora::name(index, module, Half::A))?,
                b: get(&lora::name(index, module, Half::B))?,
            })
        };
        let layer = &frozen.base.layers[index];
        let norms = layer.head_norms.as_ref();
        Ok(Self {
            attention_norm: constant(&layer.attention_norm),
            q: projection(LoraModule::QProj)?,
            k: projection(LoraModule::KProj)?,
            v: projection(LoraModule::VProj)?,
            q_norm: norms.map(|norms| constant(&norms.queries)),
            k_norm: norms.map(|norms| constant(&norms.keys)),
            output: projection(LoraModule::OProj)?,
            mlp_norm: constant(&layer.mlp_norm),
            gate: projection(LoraModule::GateProj)?,
            up: projection(LoraModule::UpProj)?,
            down: projection(LoraModule::DownProj)?,
        })
    }
}

/// A vector that stays as it is.
fn constant<T: Real>(numbers: &[f32]) -> Value<T> {
    let data = Matrix::new(T::of_singles(numbers.to_vec()), numbers.len());
    Tape::constant(data)
}

impl<'a, T: Real> Graph<'a, T> {
    /// `parameters` are all tensors of the config by Hugging Face name, or of the adapters by PEFT's when the
    /// others are `frozen`; gradients will come in this order.
    pub(super) fn new(
        config: &'a ModelConfig,
        tape: &'a Tape<T>,
        parameters: &[(&str, &Arc<Matrix<T>>)],
        frozen: Option<&'a FrozenModel>,
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
        if let Some(frozen) = frozen {
            return Ok(Self {
                config,
                tape,
                vocabulary: Vocabulary::Frozen(frozen),
                layers: (0..config.layers)
                    .map(|index| Layer::frozen(index, frozen, &get))
                    .collect::<Result<_, _>>()?,
                norm: constant(&frozen.base.norm),
            });
        }
        let layers = (0..config.layers)
            .map(|index| Layer::new(config, &|name| get(&format!("model.layers.{index}.{name}"))))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            config,
            tape,
            vocabulary: Vocabulary::Trained {
                embedding: get("model.embed_tokens.weight")?,
                head: (!config.tied_embeddings)
                    .then(|| get("lm_head.weight"))
                    .transpose()?,
            },
            layers,
            norm: get("model.norm.weight")?,
        })
    }

    fn embedded(&self, ids: &[u32]) -> Result<Value<T>, PolicyError> {
        match &self.vocabulary {
            Vocabulary::Trained { embedding, .. } => {
                Ok(self.tape.apply(Select(ids.to_vec()), [embedding])?)
            }
            Vocabulary::Frozen(frozen) => {
                let width = self.config.width;
                let mut rows = vec![0.0; ids.len() * width];
                for (id, row) in ids.iter().zip(rows.chunks_exact_mut(width)) {
                    frozen.base.embed(*id, row);
                }
                Ok(Tape::constant(Matrix::new(T::of_singles(rows), width)))
            }
        }
    }

    /// Logits at `positions` of a piece.
    pub(super) fn logits(
        &self,
        piece: &Piece,
        positions: Vec<u32>,
        rope: &Arc<RopeTable>,
    ) -> Result<Value<T>, PolicyError> {
        let mut x = self.embedded(&piece.ids)?;
        for layer in &self.layers {
            x = self.layer(layer, &x, &piece.segments, rope)?;
        }
        // Only these positions meet the vocabulary, which is much of the work of a small model.
        let x = self.tape.apply(Select(positions), [&x])?;
        let x = self.normed(&x, &self.norm)?;
        Ok(match &self.vocabulary {
            Vocabulary::Trained { embedding, head } => self
                .tape
                .apply(Linear, [&x, head.as_ref().unwrap_or(embedding)])?,
            Vocabulary::Frozen(frozen) => {
                let head = FrozenLinear {
                    base: Arc::clone(&frozen.base),
                    place: Place::Head,
                };
                self.tape.apply(head, [&x])?
            }
        })
    }

    fn layer(
        &self,
        layer: &Layer<T>,
        stream: &Value<T>,
        segments: &Arc<[Segment]>,
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
                    segments: Arc::clone(segments),
                },
                [&heads],
            )?)
        };
        let queries = rotated(&layer.q, layer.q_norm.as_ref())?;
        let keys = rotated(&layer.k, layer.k_norm.as_ref())?;
        let values = self.projected(&normed, &layer.v)?;
        let attention = Attention {
            segments: Arc::clone(segments),
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
        match projection {
            Projection::Trained { weight, bias } => {
                let product = self.tape.apply(Linear, [x, weight])?;
                match bias {
                    Some(bias) => Ok(self.tape.apply(AddBias, [&product, bias])?),
                    None => Ok(product),
                }
            }
            Projection::Frozen(frozen) => Ok(self.tape.apply(frozen.clone(), [x])?),
            Projection::Adapted {
                frozen,
                scale,
                a,
                b,
            } => {
                let adapted = AdaptedLinear::new(frozen.clone(), *scale);
                Ok(self.tape.apply(adapted, [x, a, b])?)
            }
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
