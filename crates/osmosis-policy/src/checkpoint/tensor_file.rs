//! Tensors in safetensors form.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{TensorView, View};
use safetensors::{Dtype, SafeTensors};

use crate::{NamedTensor, Weights, learner};

/// Reads all tensors of a file as f32. The error says what is wrong.
pub(crate) fn read(bytes: &[u8], into: &mut BTreeMap<String, NamedTensor>) -> Result<(), String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    for (name, view) in file.iter() {
        let values = match view.dtype() {
            Dtype::F32 => little_endian(view.data()),
            Dtype::F16 => {
                widen(&view, DType::F16).map_err(|error| format!("tensor `{name}`: {error}"))?
            }
            Dtype::BF16 => {
                widen(&view, DType::BF16).map_err(|error| format!("tensor `{name}`: {error}"))?
            }
            other => {
                // Index buffers and the like are no part of the model; if it is, it will be missed by name.
                tracing::debug!(name, dtype = ?other, "tensor has a type that is not read, ignored");
                continue;
            }
        };
        let tensor = NamedTensor {
            shape: view.shape().to_vec(),
            values: learner::numbers(values, view.shape()),
        };
        into.insert(name.to_owned(), tensor);
    }
    Ok(())
}

/// The texts beside the tensors.
pub(crate) fn metadata(bytes: &[u8]) -> Result<HashMap<String, String>, String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    Ok(metadata.metadata().clone().unwrap_or_default())
}

/// What to give to `safetensors` for writing: each tensor becomes bytes only when it is its turn.
pub(super) fn views(weights: &Weights) -> impl Iterator<Item = (&str, F32View<'_>)> {
    weights
        .tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), F32View(tensor)))
}

/// An f32 tensor on its way out.
pub(super) struct F32View<'a>(&'a NamedTensor);

impl View for F32View<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.0.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        let bytes: Vec<u8> = self
            .0
            .values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        Cow::Owned(bytes)
    }
    fn data_len(&self) -> usize {
        self.0.values.len() * 4
    }
}

fn little_endian(bytes: &[u8]) -> Vec<f32> {
    let (numbers, _rest) = bytes.as_chunks::<4>();
    numbers
        .iter()
        .map(|number| f32::from_le_bytes(*number))
        .collect()
}

fn widen(view: &TensorView<'_>, dtype: DType) -> candle_core::Result<Vec<f32>> {
    let count: usize = view.shape().iter().product();
    Tensor::from_raw_buffer(view.data(), dtype, &[count], &Device::Cpu)?
        .to_dtype(DType::F32)?
        .to_vec1()
}
