use std::collections::BTreeMap;
use std::sync::Arc;

/// One tensor, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    pub shape: Vec<usize>,
    pub values: Arc<[f32]>,
}

/// All tensors of a model, by name. Cheap to clone: the numbers are shared.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Weights {
    pub tensors: BTreeMap<String, NamedTensor>,
}

impl Weights {
    /// The first tensor with a number that is not finite.
    pub fn not_finite(&self) -> Option<&str> {
        let mut tensors = self.tensors.iter();
        tensors
            .find(|(_, tensor)| tensor.values.iter().any(|value| !value.is_finite()))
            .map(|(name, _)| name.as_str())
    }
}
