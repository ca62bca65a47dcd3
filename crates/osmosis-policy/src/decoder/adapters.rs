//! Low-rank adapters as the sampler applies them: beside the frozen weights, never merged into them.
//!
//! A product with frozen weights is a chain of multiply-adds for each output; an adapter goes on with that chain. So
//! the bits of a token still depend on its own sequence alone, and new adapters take the place of old ones without
//! touching the base, which the learner reads too.

use std::sync::Arc;

use osmosis_core::config::{Lora, LoraBase, LoraModule};
use pulp::Arch;

use super::linear::Linear;
use super::matrix::Matrix;
use super::packed::PackedBase;
use crate::lora::{self, Half};
use crate::{PolicyError, Weights, weights};

/// What is added to the products of one layer.
#[derive(Debug, Clone)]
pub(crate) struct LayerAdapters {
    pub(crate) qkv: Option<Adapter>,
    pub(crate) out: Option<Adapter>,
    pub(crate) gate_up: Option<Adapter>,
    pub(crate) down: Option<Adapter>,
}

/// The adapters of projections whose products are one.
#[derive(Debug, Clone)]
pub(crate) struct Adapter {
    /// The matrices A, one after the other.
    down: Arc<Linear>,
    /// The matrices B, scaled. Where an output is of one projection, the weights of the others' ranks are 0.
    up: Arc<Linear>,
}

impl Adapter {
    /// `out += x · A · B`.
    pub(crate) fn add(
        &self,
        arch: Arch,
        threads: usize,
        x: &Matrix,
        low: &mut Matrix,
        out: &mut Matrix,
    ) {
        self.down.apply(arch, threads, x, low);
        self.up.add_to(arch, threads, low, out);
    }
}

/// The adapters of all layers.
pub(crate) fn pack(
    base: &PackedBase,
    lora: &Lora,
    adapters: &Weights,
) -> Result<Vec<LayerAdapters>, PolicyError> {
    use LoraModule::{DownProj, GateProj, KProj, OProj, QProj, UpProj, VProj};
    let layer = |layer: usize| -> Result<LayerAdapters, PolicyError> {
        let group = |modules: &[LoraModule]| packed(base, lora, adapters, layer, modules);
        Ok(LayerAdapters {
            qkv: group(&[QProj, KProj, VProj])?,
            out: group(&[OProj])?,
            gate_up: group(&[GateProj, UpProj])?,
            down: group(&[DownProj])?,
        })
    };
    (0..base.layers.len()).map(layer).collect()
}

fn packed(
    base: &PackedBase,
    lora: &Lora,
    adapters: &Weights,
    layer: usize,
    modules: &[LoraModule],
) -> Result<Option<Adapter>, PolicyError> {
    let targets: Vec<LoraModule> = modules
        .iter()
        .copied()
        .filter(|module| lora.target_modules.contains(module))
        .collect();
    let Some(first) = targets.first() else {
        return Ok(None);
    };
    let values = |module, half| {
        weights::get(adapters, &lora::name(layer, module, half)).map(|tensor| &tensor.values)
    };
    let (linear, _) = base.projection(layer, *first);
    let rank = lora.rank as usize;
    let (inner, all) = (linear.inner(), rank * targets.len());
    let down = targets
        .iter()
        .map(|module| values(*module, Half::A).map(|numbers| &**numbers))
        .collect::<Result<Vec<_>, _>>()?;
    let scale = lora::scale(lora);
    let mut up = vec![0.0; linear.outputs() * all];
    for (place, module) in targets.iter().enumerate() {
        let (_, outputs) = base.projection(layer, *module);
        let rows = values(*module, Half::B)?.chunks_exact(rank);
        for (output, row) in outputs.zip(rows) {
            let ranks = &mut up[output * all + place * rank..][..rank];
            for (scaled, number) in ranks.iter_mut().zip(row) {
                *scaled = scale * number;
            }
        }
    }
    Ok(Some(Adapter {
        down: Linear::pack(LoraBase::F32, inner, &down, &[]).into(),
        up: Linear::pack(LoraBase::F32, all, &[&up], &[]).into(),
    }))
}
