//! Whether tensors are those of a model.

use std::collections::BTreeMap;

use crate::error::{TensorProblem, TensorProblems};
use crate::{ModelConfig, NamedTensor, PolicyError, Weights};

/// Takes the tensors that `config` asks for; others are left out. Tells every tensor that is missing or
/// of the wrong shape.
pub(crate) fn checked(
    config: &ModelConfig,
    tensors: BTreeMap<String, NamedTensor>,
) -> Result<Weights, PolicyError> {
    checked_shapes(config.tensors(), tensors)
}

/// The same for tensors of these names and shapes.
pub(crate) fn checked_shapes(
    shapes: impl IntoIterator<Item = (String, Vec<usize>)>,
    mut tensors: BTreeMap<String, NamedTensor>,
) -> Result<Weights, PolicyError> {
    let mut problems = Vec::new();
    let mut taken = BTreeMap::new();
    for (name, expected) in shapes {
        let found = tensors.remove(&name);
        let fits = found.as_ref().is_some_and(|tensor| {
            tensor.shape == expected && tensor.values.len() == expected.iter().product::<usize>()
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
        Ok(Weights { tensors: taken })
    } else {
        Err(PolicyError::Tensors(TensorProblems(problems)))
    }
}

/// The tensor of that name.
pub(crate) fn get<'w>(weights: &'w Weights, name: &str) -> Result<&'w NamedTensor, PolicyError> {
    weights.tensors.get(name).ok_or_else(|| {
        PolicyError::Tensors(TensorProblems(vec![TensorProblem {
            name: name.to_owned(),
            expected: Vec::new(),
            found: None,
        }]))
    })
}
