//! Low-rank adapters: a frozen matrix `W` becomes `W + scale · B · A`.
//!
//! The base is in memory once, packed as the sampler reads it, in f32, bf16 or blocks of 8 bits; the learner reads
//! it from there. Adapters are f32 tensors under PEFT's names. They are what a learner gives out as its weights, what
//! a sampler takes, and what checkpoints hold.

mod model;
pub(crate) mod peft;

use std::collections::BTreeMap;

use osmosis_core::config::{Lora, LoraModule};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

#[cfg(test)]
pub(crate) use self::model::BaseOrigin;
pub(crate) use self::model::FrozenModel;
pub use self::model::LoraModel;
use crate::{ModelConfig, NamedTensor, PolicyError, Weights, weights};

/// The two matrices of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// `[rank, inputs]`
    A,
    /// `[outputs, rank]`
    B,
}

/// The part of a layer that a module is in.
fn block(module: LoraModule) -> &'static str {
    match module {
        LoraModule::QProj | LoraModule::KProj | LoraModule::VProj | LoraModule::OProj => {
            "self_attn"
        }
        LoraModule::GateProj | LoraModule::UpProj | LoraModule::DownProj => "mlp",
    }
}

/// What a matrix of the base is called.
pub(crate) fn base_name(layer: usize, module: LoraModule) -> String {
    let (block, module) = (block(module), module.name());
    format!("model.layers.{layer}.{block}.{module}.weight")
}

/// What PEFT calls a matrix of an adapter.
pub(crate) fn name(layer: usize, module: LoraModule, half: Half) -> String {
    let (block, module) = (block(module), module.name());
    let half = match half {
        Half::A => "lora_A",
        Half::B => "lora_B",
    };
    format!("base_model.model.model.layers.{layer}.{block}.{module}.{half}.weight")
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "sampler and learner compute in f32"
)]
pub(crate) fn scale(lora: &Lora) -> f32 {
    lora.scale() as f32
}

/// Inputs and outputs of a module.
fn sizes(config: &ModelConfig, module: LoraModule) -> (usize, usize) {
    let (q, kv) = (
        config.heads * config.head_width,
        config.kv_heads * config.head_width,
    );
    let (width, mlp) = (config.width, config.mlp_width);
    match module {
        LoraModule::QProj => (width, q),
        LoraModule::KProj | LoraModule::VProj => (width, kv),
        LoraModule::OProj => (q, width),
        LoraModule::GateProj | LoraModule::UpProj => (width, mlp),
        LoraModule::DownProj => (mlp, width),
    }
}

/// Every tensor of a model's adapters with its shape, in the order of their names.
pub(crate) fn tensors(config: &ModelConfig, lora: &Lora) -> BTreeMap<String, Vec<usize>> {
    let rank = lora.rank as usize;
    let modules = lora.target_modules.iter();
    modules
        .flat_map(|module| {
            let (inputs, outputs) = sizes(config, *module);
            (0..config.layers).flat_map(move |layer| {
                [
                    (name(layer, *module, Half::A), vec![rank, inputs]),
                    (name(layer, *module, Half::B), vec![outputs, rank]),
                ]
            })
        })
        .collect()
}

/// Numbers of the adapters.
pub(crate) fn parameters(config: &ModelConfig, lora: &Lora) -> usize {
    let shapes = tensors(config, lora).into_values();
    shapes.map(|shape| shape.iter().product::<usize>()).sum()
}

/// Takes the tensors that the adapters have; tells every one that is missing or has another shape.
pub(crate) fn checked(
    config: &ModelConfig,
    lora: &Lora,
    found: BTreeMap<String, NamedTensor>,
) -> Result<Weights, PolicyError> {
    weights::checked_shapes(tensors(config, lora), found)
}

/// Adapters that change nothing yet, as PEFT begins: A uniform within `1 / √inputs`, B zero.
pub(crate) fn initial(config: &ModelConfig, lora: &Lora, seed: u64) -> Weights {
    // Another stream than those of other users of the run's seed.
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(0x6c6f_7261);
    let tensors = tensors(config, lora).into_iter().map(|(name, shape)| {
        let count = shape.iter().product::<usize>();
        let values = if name.ends_with("lora_A.weight") {
            let bound = 1.0 / (shape[1].max(1) as f32).sqrt();
            (0..count)
                .map(|_| {
                    // 24 bits: every step between two of them is the same.
                    let unit = (random.next_u32() >> 8) as f32 / (1 << 24) as f32;
                    (2.0 * unit - 1.0) * bound
                })
                .collect()
        } else {
            vec![0.0; count]
        };
        let values = crate::learner::numbers(values, &shape);
        (name, NamedTensor { shape, values })
    });
    Weights {
        tensors: tensors.collect(),
    }
}

/// The weights of a model with adapters added, each number as one chain of multiply-adds. Those of the base are
/// first rounded to the type that they had in training.
pub(crate) fn merged(
    config: &ModelConfig,
    lora: &Lora,
    mut base: Weights,
    adapters: &Weights,
) -> Result<Weights, PolicyError> {
    round_matrices(lora, &mut base);
    let (rank, scale) = (lora.rank as usize, scale(lora));
    for layer in 0..config.layers {
        for module in &lora.target_modules {
            let get = |half| weights::get(adapters, &name(layer, *module, half));
            let (a, b) = (&get(Half::A)?.values, &get(Half::B)?.values);
            let base_name = base_name(layer, *module);
            let tensor = weights::get(&base, &base_name)?.clone();
            let (inputs, _) = sizes(config, *module);
            let mut values = tensor.values.to_vec();
            for (row, factors) in values
                .chunks_exact_mut(inputs)
                .zip(b.chunks_exact(rank.max(1)))
            {
                for (factor, direction) in factors.iter().zip(a.chunks_exact(inputs)) {
                    let factor = scale * factor;
                    for (value, number) in row.iter_mut().zip(direction) {
                        *value = factor.mul_add(*number, *value);
                    }
                }
            }
            let values = crate::learner::numbers(values, &tensor.shape);
            base.tensors
                .insert(base_name, NamedTensor { values, ..tensor });
        }
    }
    Ok(base)
}

fn round_matrices(lora: &Lora, weights: &mut Weights) {
    if lora.base == osmosis_core::config::LoraBase::F32 {
        return;
    }
    for tensor in weights.tensors.values_mut() {
        if let [_, inner] = tensor.shape[..] {
            let values = crate::decoder::rounded(lora.base, inner, &tensor.values);
            tensor.values = crate::learner::numbers(values, &tensor.shape);
        }
    }
}
