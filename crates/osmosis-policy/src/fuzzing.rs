//! What must hold for any bytes whatever, of model files: for the programs in `fuzz/`, and for their seeds in a
//! test.

use std::collections::BTreeMap;
use std::io::Cursor;

use camino::Utf8Path;
use osmosis_tokens::ChatSettings;

use crate::ModelConfig;
use crate::checkpoint::{gguf, tensor_file};

/// A GGUF file is a model whose weights fit its config, or damaged.
pub fn ggufs(data: &[u8]) {
    let chat = ChatSettings::default();
    match gguf::read(Utf8Path::new("model.gguf"), Cursor::new(data), &chat) {
        Ok(model) => {
            for (name, shape) in model.config.tensors() {
                let tensor = model.weights.tensors.get(&name);
                assert!(tensor.is_some_and(|tensor| tensor.shape == shape), "{name}");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Every tensor of a safetensors file has as many numbers as its shape says.
pub fn safetensors(data: &[u8]) {
    let _ = tensor_file::metadata(data);
    let mut tensors = BTreeMap::new();
    if tensor_file::read(data, &mut tensors).is_ok() {
        for (name, tensor) in &tensors {
            let numbers: usize = tensor.shape.iter().product();
            assert_eq!(tensor.values.len(), numbers, "{name}");
        }
    }
}

/// A `config.json` has a sensible shape, or is refused.
pub fn model_configs(data: &[u8]) {
    if let Ok(config) = serde_json::from_slice(data).map(ModelConfig::parse)
        && let Ok(config) = config
    {
        assert!(config.parameters() > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../../fuzz/run_seeds.rs");

    #[test]
    fn every_seed_of_the_fuzzers_and_its_changes_pass() {
        run_seeds(&[
            ("ggufs", ggufs),
            ("safetensors", safetensors),
            ("model_configs", model_configs),
        ]);
    }
}
