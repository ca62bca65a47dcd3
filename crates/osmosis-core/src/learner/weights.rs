use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// What holds the numbers of a tensor.
pub trait NumberStorage: Send + Sync + 'static {
    fn numbers(&self) -> &[f32];

    /// Lets who made it find it again behind [`Numbers::storage`].
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl NumberStorage for Vec<f32> {
    fn numbers(&self) -> &[f32] {
        self
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// The numbers of a tensor, shared by whoever has them. A learner gives out its own memory this way, and copies
/// only what somebody still has when it changes.
#[derive(Clone)]
pub struct Numbers(Arc<dyn NumberStorage>);

impl Numbers {
    pub fn shared(storage: Arc<impl NumberStorage>) -> Self {
        Self(storage)
    }

    /// What holds them, to be downcast.
    pub fn storage(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.0).into_any()
    }
}

impl Deref for Numbers {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.0.numbers()
    }
}

impl From<Vec<f32>> for Numbers {
    fn from(numbers: Vec<f32>) -> Self {
        Self(Arc::new(numbers))
    }
}

impl From<&[f32]> for Numbers {
    fn from(numbers: &[f32]) -> Self {
        numbers.to_vec().into()
    }
}

impl FromIterator<f32> for Numbers {
    fn from_iter<I: IntoIterator<Item = f32>>(numbers: I) -> Self {
        Vec::from_iter(numbers).into()
    }
}

impl PartialEq for Numbers {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// One tensor, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    pub shape: Vec<usize>,
    pub values: Numbers,
}

/// Tensors of a model, by name. Cheap to clone: the numbers are shared.
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
