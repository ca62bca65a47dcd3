//! Rows of numbers.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Layout, Result};
use osmosis_core::learner::NumberStorage;

use super::ops::Real;

/// A matrix, row-major. A vector is a matrix of one row.
#[derive(Debug, Clone)]
pub(super) struct Matrix<T> {
    /// candle's, for its matrix product.
    storage: CpuStorage,
    rows: usize,
    width: usize,
    element: PhantomData<T>,
}

/// How a factor of a product is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    Transposed,
}

impl<T: Real> Matrix<T> {
    /// Rows of `width` numbers.
    pub(super) fn new(values: Vec<T>, width: usize) -> Self {
        let rows = values.len() / width.max(1);
        Self {
            storage: T::to_cpu_storage_owned(values),
            rows,
            width,
            element: PhantomData,
        }
    }
    pub(super) fn rows(&self) -> usize {
        self.rows
    }
    pub(super) fn width(&self) -> usize {
        self.width
    }
    pub(super) fn values(&self) -> Result<&[T]> {
        self.storage.as_slice()
    }
    pub(super) fn values_mut(&mut self) -> Result<&mut [T]> {
        T::slice_mut(&mut self.storage)
    }

    /// The product of this matrix and another, each as it is or transposed.
    pub(super) fn product(&self, form: Form, other: &Self, other_form: Form) -> Result<Self> {
        let (left, right) = (self.layout(form)?, other.layout(other_form)?);
        let (rows, inner) = left.shape().dims2()?;
        let (_, width) = right.shape().dims2()?;
        let storage =
            self.storage
                .matmul(&other.storage, (1, rows, width, inner), &left, &right)?;
        Ok(Self {
            storage,
            rows,
            width,
            element: PhantomData,
        })
    }

    fn layout(&self, form: Form) -> Result<Layout> {
        let layout = Layout::contiguous((self.rows, self.width));
        match form {
            Form::Plain => Ok(layout),
            Form::Transposed => layout.transpose(0, 1),
        }
    }

    /// Multiplies every number.
    pub(super) fn scale(&mut self, factor: T) -> Result<()> {
        for value in self.values_mut()? {
            *value *= factor;
        }
        Ok(())
    }

    /// Adds another matrix of the same shape.
    pub(super) fn add(&mut self, other: &Self) -> Result<()> {
        for (sum, value) in self.values_mut()?.iter_mut().zip(other.values()?) {
            *sum += *value;
        }
        Ok(())
    }
}

/// So that weights which are read, learned and sampled with are in memory once.
impl NumberStorage for Matrix<f32> {
    fn numbers(&self) -> &[f32] {
        // A matrix of another type could not have been made.
        self.values().unwrap_or_default()
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
