//! Products with weights that stay as they are. They have no gradient of their own, so that half of the work of a
//! backward pass is not done; what comes in still has one.
//!
//! The weights are those that the sampler has packed, and its kernel multiplies with them as they lie: a piece of a batch
//! has few rows, and laying all weights out anew for each would take as long as the product. In f64, and where a matrix
//! does not consist of whole panels, a few of its rows at a time are laid out as another matrix product wants them.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;
use osmosis_core::config::LoraModule;
use pulp::Arch;

use super::Real;
use super::thin::ThinAdapter;
use crate::decoder::PackedBase;
use crate::learner::matrix::Form::{Plain, Transposed};
use crate::learner::matrix::Matrix;
use crate::learner::tape::Operation;

/// Numbers of the weights that are laid out at a time: a projection of a small model is one block, and a vocabulary
/// of any size does not take much memory.
const BLOCK: usize = 1 << 22;

/// `x · wᵀ + bias` for frozen weights.
#[derive(Debug, Clone)]
pub(in crate::learner) struct FrozenLinear {
    pub(in crate::learner) base: Arc<PackedBase>,
    pub(in crate::learner) place: Place,
}

/// Which weights.
#[derive(Debug, Clone, Copy)]
pub(in crate::learner) enum Place {
    Projection(usize, LoraModule),
    Head,
}

/// `x · wᵀ + bias + scale · x · aᵀ · bᵀ` for frozen weights and an adapter, `a` of rank × in and `b` of out × rank.
#[derive(Debug)]
pub(in crate::learner) struct AdaptedLinear {
    frozen: FrozenLinear,
    scale: f32,
    /// `x · aᵀ` of the forward pass, for the way back.
    low: OnceCell<Vec<f32>>,
}

impl FrozenLinear {
    fn weights(&self) -> (&crate::decoder::PackedLinear, Range<usize>) {
        match self.place {
            Place::Projection(layer, module) => self.base.projection(layer, module),
            Place::Head => (&self.base.head, 0..self.base.head.outputs()),
        }
    }

    /// Blocks of outputs, counted from the first one.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (linear, outputs) = self.weights();
        let (count, step) = (outputs.len(), (BLOCK / linear.inner().max(1)).max(1));
        (0..count)
            .step_by(step)
            .map(move |first| first..count.min(first + step))
    }

    fn block<T: Real>(&self, block: Range<usize>) -> Matrix<T> {
        let (linear, outputs) = self.weights();
        let rows = linear.rows(outputs.start + block.start..outputs.start + block.end);
        Matrix::new(T::of_singles(rows), linear.inner())
    }

    fn product<T: Real>(&self, x: &Matrix<T>) -> Result<Matrix<T>> {
        let (linear, outputs) = self.weights();
        let width = outputs.len();
        if let Some(x) = T::singles(x.values()?).filter(|_| linear.has_whole_panels(&outputs)) {
            let product = linear.forward(Arch::new(), &outputs, x);
            return Ok(Matrix::new(T::of_singles(product), width));
        }
        let mut blocks = self.blocks();
        let mut product = if let (Some(all), None) = (blocks.next(), blocks.next()) {
            x.product(Plain, &self.block(all), Transposed)?
        } else {
            let mut product = vec![T::ZERO; x.rows() * width];
            for block in self.blocks() {
                let part = x.product(Plain, &self.block(block.clone()), Transposed)?;
                let rows = part.values()?.chunks_exact(block.len());
                for (out, row) in product.chunks_exact_mut(width).zip(rows) {
                    out[block.clone()].copy_from_slice(row);
                }
            }
            Matrix::new(product, width)
        };
        let biases = linear.biases(outputs);
        if !biases.is_empty() {
            for row in product.values_mut()?.chunks_exact_mut(width) {
                for (value, bias) in row.iter_mut().zip(biases) {
                    *value += T::of_single(*bias);
                }
            }
        }
        Ok(product)
    }

    /// The gradient by what came in.
    fn slopes<T: Real>(&self, gradient: &Matrix<T>) -> Result<Matrix<T>> {
        let (linear, outputs) = self.weights();
        if let Some(gradient) =
            T::singles(gradient.values()?).filter(|_| linear.has_whole_panels(&outputs))
        {
            let slopes = linear.backward(Arch::new(), &outputs, gradient);
            return Ok(Matrix::new(T::of_singles(slopes), linear.inner()));
        }
        let mut blocks = self.blocks();
        if let (Some(all), None) = (blocks.next(), blocks.next()) {
            return gradient.product(Plain, &self.block(all), Plain);
        }
        let width = gradient.width();
        let mut sum = Matrix::new(
            vec![T::ZERO; gradient.rows() * linear.inner()],
            linear.inner(),
        );
        for block in self.blocks() {
            let rows = gradient.values()?.chunks_exact(width);
            let part = rows.flat_map(|row| &row[block.clone()]).copied().collect();
            let part = Matrix::new(part, block.len());
            sum.add(&part.product(Plain, &self.block(block), Plain)?)?;
        }
        Ok(sum)
    }
}

impl<T: Real> Operation<T, 1> for FrozenLinear {
    const KEEPS_INPUTS: bool = false;

    fn forward(&self, [x]: [&Matrix<T>; 1]) -> Result<Matrix<T>> {
        self.product(x)
    }
    fn backward(&self, _: [&Matrix<T>; 1], gradient: Matrix<T>) -> Result<[Matrix<T>; 1]> {
        Ok([self.slopes(&gradient)?])
    }
}

impl AdaptedLinear {
    pub(in crate::learner) fn new(frozen: FrozenLinear, scale: f32) -> Self {
        Self {
            frozen,
            scale,
            low: OnceCell::new(),
        }
    }

    /// For the sampler's kernel, where it can be used.
    fn thin<'a, T: Real>(
        &self,
        a: &'a Matrix<T>,
        b: &'a Matrix<T>,
    ) -> Result<Option<ThinAdapter<'a>>> {
        let (linear, outputs) = self.frozen.weights();
        let singles = T::singles(a.values()?).zip(T::singles(b.values()?));
        let whole = singles.filter(|_| linear.has_whole_panels(&outputs));
        Ok(whole.map(|(a, b)| ThinAdapter {
            a,
            b,
            inner: linear.inner(),
            outputs: outputs.len(),
            scale: self.scale,
        }))
    }
}

impl<T: Real> Operation<T, 3> for AdaptedLinear {
    fn forward(&self, [x, a, b]: [&Matrix<T>; 3]) -> Result<Matrix<T>> {
        if let (Some(adapter), Some(x)) = (self.thin(a, b)?, T::singles(x.values()?)) {
            let (linear, outputs) = self.frozen.weights();
            let mut product = linear.forward(Arch::new(), &outputs, x);
            let low = self.low.get_or_init(|| adapter.low(Arch::new(), x));
            adapter.add_product(Arch::new(), low, &mut product);
            return Ok(Matrix::new(T::of_singles(product), outputs.len()));
        }
        let mut low = x.product(Plain, a, Transposed)?;
        low.scale(T::of_single(self.scale))?;
        let mut product = self.frozen.product(x)?;
        product.add(&low.product(Plain, b, Transposed)?)?;
        Ok(product)
    }
    fn backward(&self, [x, a, b]: [&Matrix<T>; 3], gradient: Matrix<T>) -> Result<[Matrix<T>; 3]> {
        if let (Some(adapter), Some(x), Some(gradient)) = (
            self.thin(a, b)?,
            T::singles(x.values()?),
            T::singles(gradient.values()?),
        ) {
            let (linear, outputs) = self.frozen.weights();
            let mut for_x = linear.backward(Arch::new(), &outputs, gradient);
            let low = self.low.get_or_init(|| adapter.low(Arch::new(), x));
            let (for_a, for_b) = adapter.add_gradients(Arch::new(), (x, low), gradient, &mut for_x);
            let matrix = |values, width| Matrix::new(T::of_singles(values), width);
            return Ok([
                matrix(for_x, linear.inner()),
                matrix(for_a, linear.inner()),
                matrix(for_b, b.width()),
            ]);
        }
        let scale = T::of_single(self.scale);
        let mut low = x.product(Plain, a, Transposed)?;
        low.scale(scale)?;
        let for_b = gradient.product(Transposed, &low, Plain)?;
        let mut for_low = gradient.product(Plain, b, Plain)?;
        for_low.scale(scale)?;
        let for_a = for_low.product(Transposed, x, Plain)?;
        let mut for_x = self.frozen.slopes(&gradient)?;
        for_x.add(&for_low.product(Plain, a, Plain)?)?;
        Ok([for_x, for_a, for_b])
    }
}
