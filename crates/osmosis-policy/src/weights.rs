//! The numbers of a model, in f32, by Hugging Face name.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{TensorProblem, TensorProblems};
use crate::{ModelConfig, PolicyError};

/// One tensor, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    pub shape: Vec<usize>,
    pub values: Arc<[f32]>,
}

/// All tensors of a model. Complete and of the right shapes for the config it was checked against.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Weights {
    pub tensors: BTreeMap<String, NamedTensor>,
}

impl Weights {
    /// Takes the tensors that `config` asks for; others are left out. Tells every tensor that is missing or
    /// of the wrong shape.
    pub fn checked(
        config: &ModelConfig,
        mut tensors: BTreeMap<String, NamedTensor>,
    ) -> Result<Self, PolicyError> {
        let mut problems = Vec::new();
        let mut taken = BTreeMap::new();
        for (name, expected) in config.tensors() {
            let found = tensors.remove(&name);
            let fits = found.as_ref().is_some_and(|tensor| {
                tensor.shape == expected
                    && tensor.values.len() == expected.iter().product::<usize>()
            });
            match found {
                Some(tensor) if fits => {
                    taken.insert(name, tensor);
                }
                found => problems.push(TensorProblem {
                    name,
                    expected,
                    found: found.map(|tensor| tensor.shape),
                }),
            }
        }
        for name in tensors.keys() {
            tracing::debug!(name, "tensor is not part of the model, ignored");
        }
        if problems.is_empty() {
            Ok(Self { tensors: taken })
        } else {
            Err(PolicyError::Tensors(TensorProblems(problems)))
        }
    }

    /// The tensor of that name.
    pub(crate) fn get(&self, name: &str) -> Result<&NamedTensor, PolicyError> {
        self.tensors.get(name).ok_or_else(|| {
            PolicyError::Tensors(TensorProblems(vec![TensorProblem {
                name: name.to_owned(),
                expected: Vec::new(),
                found: None,
            }]))
        })
    }
}
