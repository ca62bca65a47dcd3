//! All weights of a model as the kernel reads them.

use std::ops::Range;
use std::sync::Arc;

use osmosis_core::config::{LoraBase, LoraModule};
use osmosis_core::learner::Numbers;

use super::adapters::LayerAdapters;
use super::linear::Linear;
use crate::{Architecture, ModelConfig, PolicyError, Weights, weights};

/// Norms of single heads.
#[derive(Debug)]
pub(crate) struct HeadNorms {
    pub(crate) queries: Numbers,
    pub(crate) keys: Numbers,
}

const EMBEDDINGS: &str = "model.embed_tokens.weight";

/// One block of the decoder.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Numbers,
    /// Queries, keys, values, one after the other.
    pub(crate) qkv: Linear,
    /// Qwen3's norms of queries and keys.
    pub(crate) head_norms: Option<HeadNorms>,
    pub(crate) out: Linear,
    pub(crate) mlp_norm: Numbers,
    /// Gate and up, one after the other.
    pub(crate) gate_up: Linear,
    pub(crate) down: Linear,
}

/// The vectors of tokens.
#[derive(Debug)]
enum Embeddings {
    /// Row-major, and shared with others.
    Rows(Numbers),
    /// Outputs of a layer, one for each token.
    Packed(Linear),
    /// Those of the head.
    Head,
}

/// All weights of a model, ready to run.
#[derive(Debug)]
pub(crate) struct PackedBase {
    embeddings: Embeddings,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Numbers,
    pub(crate) head: Linear,
    /// Outputs of the projections: queries, keys or values, gate or up.
    widths: (usize, usize, usize),
}

/// The weights of one version.
#[derive(Debug, Clone)]
pub(crate) struct PackedWeights {
    pub(crate) base: Arc<PackedBase>,
    /// What is added to the products of each layer; empty without adapters.
    pub(crate) adapters: Vec<LayerAdapters>,
}

impl PackedWeights {
    pub(crate) fn pack(config: &ModelConfig, weights: &Weights) -> Result<Self, PolicyError> {
        Ok(Self {
            base: Arc::new(PackedBase::pack(config, weights)?),
            adapters: Vec::new(),
        })
    }
}

impl PackedBase {
    /// Weights that others hold too.
    fn pack(config: &ModelConfig, weights: &Weights) -> Result<Self, PolicyError> {
        let mut shared = |name: &str| values(weights, name).cloned();
        let embeddings = Embeddings::Rows(shared(EMBEDDINGS)?);
        Self::pack_with(config, &mut shared, LoraBase::F32, embeddings)
    }

    /// Weights that only this holds, in one type of numbers. Each is let go as soon as it is packed, so that a model is
    /// never in memory twice.
    pub(crate) fn pack_alone(
        config: &ModelConfig,
        mut weights: Weights,
        base: LoraBase,
    ) -> Result<Self, PolicyError> {
        let mut taken = |name: &str| {
            let numbers = values(&weights, name)?.clone();
            weights.tensors.remove(name);
            Ok(numbers)
        };
        let embeddings = if config.tied_embeddings {
            Embeddings::Head
        } else {
            let embeddings = taken(EMBEDDINGS)?;
            Embeddings::Packed(Linear::pack(base, config.width, &[&embeddings], &[]))
        };
        let mut packed = Self::pack_with(config, &mut taken, base, embeddings)?;
        packed.own_norms();
        Ok(packed)
    }

    /// Asks for each tensor once.
    fn pack_with(
        config: &ModelConfig,
        tensor: &mut dyn FnMut(&str) -> Result<Numbers, PolicyError>,
        base: LoraBase,
        embeddings: Embeddings,
    ) -> Result<Self, PolicyError> {
        let (width, mlp) = (config.width, config.mlp_width);
        let head = if config.tied_embeddings {
            EMBEDDINGS
        } else {
            "lm_head.weight"
        };
        let head = Linear::pack(base, width, &[&tensor(head)?], &[]);
        let layer = |layer: usize| -> Result<Layer, PolicyError> {
            let mut values = |name: &str| tensor(&format!("model.layers.{layer}.{name}"));
            let biases: Vec<Numbers> = match config.architecture {
                Architecture::Llama | Architecture::Qwen3 => Vec::new(),
                Architecture::Qwen2 => vec![
                    values("self_attn.q_proj.bias")?,
                    values("self_attn.k_proj.bias")?,
                    values("self_attn.v_proj.bias")?,
                ],
            };
            let biases: Vec<&[f32]> = biases.iter().map(|bias| &bias[..]).collect();
            let head_norms = match config.architecture {
                Architecture::Llama | Architecture::Qwen2 => None,
                Architecture::Qwen3 => Some(HeadNorms {
                    queries: values("self_attn.q_norm.weight")?,
                    keys: values("self_attn.k_norm.weight")?,
                }),
            };
            Ok(Layer {
                attention_norm: values("input_layernorm.weight")?,
                qkv: Linear::pack(
                    base,
                    width,
                    &[
                        &values("self_attn.q_proj.weight")?,
                        &values("self_attn.k_proj.weight")?,
                        &values("self_attn.v_proj.weight")?,
                    ],
                    &biases,
                ),
                head_norms,
                out: Linear::pack(
                    base,
                    config.heads * config.head_width,
                    &[&values("self_attn.o_proj.weight")?],
                    &[],
                ),
                mlp_norm: values("post_attention_layernorm.weight")?,
                gate_up: Linear::pack(
                    base,
                    width,
                    &[
                        &values("mlp.gate_proj.weight")?,
                        &values("mlp.up_proj.weight")?,
                    ],
                    &[],
                ),
                down: Linear::pack(base, mlp, &[&values("mlp.down_proj.weight")?], &[]),
            })
        };
        Ok(Self {
            head,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            norm: tensor("model.norm.weight")?,
            embeddings,
            widths: (
                config.heads * config.head_width,
                config.kv_heads * config.head_width,
                mlp,
            ),
        })
    }

    /// Copies what is shared, so that nothing holds the weights that this was packed from.
    fn own_norms(&mut self) {
        let own = |numbers: &mut Numbers| *numbers = numbers[..].into();
        own(&mut self.norm);
        for layer in &mut self.layers {
            own(&mut layer.attention_norm);
            own(&mut layer.mlp_norm);
            if let Some(norms) = &mut layer.head_norms {
                own(&mut norms.queries);
                own(&mut norms.keys);
            }
        }
    }

    /// The vector of a token.
    pub(crate) fn embed(&self, id: u32, out: &mut [f32]) {
        let id = id as usize;
        match &self.embeddings {
            Embeddings::Rows(rows) => out.copy_from_slice(&rows[id * out.len()..][..out.len()]),
            Embeddings::Packed(packed) => packed.column(id, out),
            Embeddings::Head => self.head.column(id, out),
        }
    }

    /// The layer that a projection is part of, and which of its outputs are the projection's.
    pub(crate) fn projection(&self, layer: usize, module: LoraModule) -> (&Linear, Range<usize>) {
        let layer = &self.layers[layer];
        let (q, kv, mlp) = self.widths;
        match module {
            LoraModule::QProj => (&layer.qkv, 0..q),
            LoraModule::KProj => (&layer.qkv, q..q + kv),
            LoraModule::VProj => (&layer.qkv, q + kv..q + 2 * kv),
            LoraModule::OProj => (&layer.out, 0..layer.out.outputs()),
            LoraModule::GateProj => (&layer.gate_up, 0..mlp),
            LoraModule::UpProj => (&layer.gate_up, mlp..2 * mlp),
            LoraModule::DownProj => (&layer.down, 0..layer.down.outputs()),
        }
    }

    /// Bytes of all matrices.
    pub(crate) fn bytes(&self) -> usize {
        let embeddings = match &self.embeddings {
            Embeddings::Rows(rows) => rows.len() * 4,
            Embeddings::Packed(packed) => packed.bytes(),
            Embeddings::Head => 0,
        };
        let layers = self.layers.iter().map(|layer| {
            layer.qkv.bytes() + layer.out.bytes() + layer.gate_up.bytes() + layer.down.bytes()
        });
        embeddings + self.head.bytes() + layers.sum::<usize>()
    }
}

fn values<'w>(weights: &'w Weights, name: &str) -> Result<&'w Numbers, PolicyError> {
    weights::get(weights, name).map(|tensor| &tensor.values)
}
