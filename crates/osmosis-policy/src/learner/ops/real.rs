use std::ops::Neg;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Error, Result, WithDType};

use crate::decoder;

/// f32 to train, f64 to check.
pub(in crate::learner) trait Real: WithDType + Neg<Output = Self> {
    const ZERO: Self;
    const ONE: Self;
    fn exponential(self) -> Self;
    /// `self + a · b`, rounded once.
    fn plus_product(self, a: Self, b: Self) -> Self;
    fn logarithm(self) -> Self;
    fn root(self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn of_single(value: f32) -> Self;
    fn of_singles(values: Vec<f32>) -> Vec<Self>;
    /// The same numbers, if they are f32: kernels of the sampler take no others.
    fn singles(values: &[Self]) -> Option<&[f32]>;
    fn slice_mut(storage: &mut CpuStorage) -> Result<&mut [Self]>;
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    #[inline(always)]
    fn exponential(self) -> Self {
        decoder::exp(self)
    }
    #[inline(always)]
    fn plus_product(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }
    #[inline]
    fn logarithm(self) -> Self {
        self.ln()
    }
    #[inline]
    fn root(self) -> Self {
        self.sqrt()
    }
    #[inline]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    #[inline]
    fn of_single(value: f32) -> Self {
        value
    }
    fn of_singles(values: Vec<f32>) -> Vec<Self> {
        values
    }
    fn singles(values: &[Self]) -> Option<&[f32]> {
        Some(values)
    }
    fn slice_mut(storage: &mut CpuStorage) -> Result<&mut [Self]> {
        match storage {
            CpuStorage::F32(values) => Ok(values),
            other => Err(not_this_type(other)),
        }
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    #[inline]
    fn exponential(self) -> Self {
        self.exp()
    }
    #[inline(always)]
    fn plus_product(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }
    #[inline]
    fn logarithm(self) -> Self {
        self.ln()
    }
    #[inline]
    fn root(self) -> Self {
        self.sqrt()
    }
    #[inline]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    #[inline]
    fn of_single(value: f32) -> Self {
        Self::from(value)
    }
    fn of_singles(values: Vec<f32>) -> Vec<Self> {
        values.into_iter().map(Self::from).collect()
    }
    fn singles(_: &[Self]) -> Option<&[f32]> {
        None
    }
    fn slice_mut(storage: &mut CpuStorage) -> Result<&mut [Self]> {
        match storage {
            CpuStorage::F64(values) => Ok(values),
            other => Err(not_this_type(other)),
        }
    }
}

fn not_this_type(storage: &CpuStorage) -> Error {
    Error::UnsupportedDTypeForOp(storage.dtype(), "access")
}
