//! Products with the two matrices of an adapter, which are thin. The matrix product that serves all others lays both
//! factors out anew, which takes longer than sixteen columns are worth; the sampler's kernel reads the large factor as
//! it lies. What comes out is, bit for bit, what the sampler adds for the adapter.

use std::ops::Range;

use pulp::Arch;

use crate::decoder::{Columns, PANEL, PanelProduct, Start};

/// Rows of a large matrix that fit the second cache.
const DEPTH: usize = 64;

/// The matrices of an adapter: `a` of rank × inner and `b` of outputs × rank. Inner and outputs are whole panels.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThinAdapter<'a> {
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
    pub(super) inner: usize,
    pub(super) outputs: usize,
    pub(super) scale: f32,
}

/// Rows that begin `stride` numbers apart, of which the first few are used.
#[derive(Debug, Clone, Copy)]
struct Rows<'a> {
    values: &'a [f32],
    stride: usize,
    count: usize,
}

impl ThinAdapter<'_> {
    fn rank(&self) -> usize {
        self.a.len() / self.inner
    }

    /// `out += scale · x · aᵀ · bᵀ` for `low`, what [`low`](Self::low) says of `x`; each sum continued where `out` has it.
    pub(super) fn add_product(&self, arch: Arch, low: &[f32], out: &mut [f32]) {
        let stride = padded(self.rank());
        let low = Rows {
            values: low,
            stride,
            count: low.len() / stride,
        };
        let scaled = |first, part, panel: &mut [f32]| {
            take_transposed(self.b, self.rank(), first, part, panel);
            multiply(panel, self.scale);
        };
        product(
            arch,
            low,
            (self.rank(), self.outputs),
            scaled,
            (out, Start::Out),
        );
    }

    /// Adds the adapter's part to the gradient by `x`; returns the gradients by `a` and by `b`. `low` is what
    /// [`low`](Self::low) says of `x`.
    pub(super) fn add_gradients(
        &self,
        arch: Arch,
        (x, low): (&[f32], &[f32]),
        gradient: &[f32],
        for_x: &mut [f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let (rank, inner, outputs) = (self.rank(), self.inner, self.outputs);
        let count = x.len() / inner;
        let mut low = transposed(low, padded(rank), rank);
        multiply(&mut low, self.scale);
        let mut for_b = vec![0.0; rank * outputs];
        let by_rank = |values| Rows {
            values,
            stride: count,
            count: rank,
        };
        let of_gradient =
            |first, part, panel: &mut [f32]| take(gradient, outputs, first, part, panel);
        product(
            arch,
            by_rank(&low),
            (count, outputs),
            of_gradient,
            (&mut for_b, Start::Zero),
        );
        let for_b = transposed(&for_b, outputs, outputs);

        let mut for_low = vec![0.0; count * padded(rank)];
        let scaled = |first, part, panel: &mut [f32]| {
            take(self.b, rank, first, part, panel);
            multiply(panel, self.scale);
        };
        let rows = Rows {
            values: gradient,
            stride: outputs,
            count,
        };
        product(
            arch,
            rows,
            (outputs, rank),
            scaled,
            (&mut for_low, Start::Zero),
        );
        let rows = Rows {
            values: &for_low,
            stride: padded(rank),
            count,
        };
        let of_a = |first, part, panel: &mut [f32]| take(self.a, inner, first, part, panel);
        product(arch, rows, (rank, inner), of_a, (for_x, Start::Out));
        let for_low = transposed(&for_low, padded(rank), rank);
        let mut for_a = vec![0.0; rank * inner];
        let of_x = |first, part, panel: &mut [f32]| take(x, inner, first, part, panel);
        product(
            arch,
            by_rank(&for_low),
            (count, inner),
            of_x,
            (&mut for_a, Start::Zero),
        );
        (for_a, for_b)
    }

    /// `x · aᵀ`, its rows filled up to whole panels.
    pub(super) fn low(&self, arch: Arch, x: &[f32]) -> Vec<f32> {
        let (rank, inner) = (self.rank(), self.inner);
        let rows = Rows {
            values: x,
            stride: inner,
            count: x.len() / inner,
        };
        let mut low = vec![0.0; rows.count * padded(rank)];
        let of_a =
            |first, part, panel: &mut [f32]| take_transposed(self.a, inner, first, part, panel);
        product(arch, rows, (inner, rank), of_a, (&mut low, Start::Zero));
        low
    }
}

fn padded(count: usize) -> usize {
    count.next_multiple_of(PANEL)
}

/// `out (+)= rows · w` for `w` of inner × width, of which `fill` gives some rows of a panel of columns, by its first column.
/// Rows of `out` are filled up to whole panels.
fn product(
    arch: Arch,
    rows: Rows<'_>,
    (inner, width): (usize, usize),
    fill: impl Fn(usize, Range<usize>, &mut [f32]),
    (out, start): (&mut [f32], Start),
) {
    // With few rows, those of `w` that stay in a cache while all their columns are laid out.
    let depth = if 4 * rows.count < inner { DEPTH } else { inner };
    let mut panel = vec![0.0; depth.min(inner) * PANEL];
    for begin in (0..inner).step_by(depth) {
        let part = begin..inner.min(begin + depth);
        let panel = &mut panel[..part.len() * PANEL];
        for first in (0..width).step_by(PANEL) {
            fill(first, part.clone(), panel);
            PanelProduct {
                x: &rows.values[begin..],
                x_stride: rows.stride,
                rows: rows.count,
                panel,
                out: &mut out[first..],
                out_stride: padded(width),
                start: if begin == 0 { start } else { Start::Out },
                columns: if width - first <= PANEL / 2 {
                    Columns::Half
                } else {
                    Columns::All
                },
            }
            .run(arch);
        }
    }
}

/// Some rows of a matrix of rows of `width`: as many columns of them as it has of a panel's.
fn take(matrix: &[f32], width: usize, first: usize, part: Range<usize>, panel: &mut [f32]) {
    let count = PANEL.min(width.saturating_sub(first));
    let rows = matrix[part.start * width..part.end * width].chunks_exact(width);
    for (row, columns) in rows.zip(panel.chunks_exact_mut(PANEL)) {
        columns[..count].copy_from_slice(&row[first..first + count]);
    }
}

/// The same of the transposed matrix.
fn take_transposed(
    matrix: &[f32],
    width: usize,
    first: usize,
    part: Range<usize>,
    panel: &mut [f32],
) {
    let rows = matrix.chunks_exact(width).skip(first).take(PANEL);
    for (lane, row) in rows.enumerate() {
        for (place, value) in panel[lane..]
            .iter_mut()
            .step_by(PANEL)
            .zip(&row[part.clone()])
        {
            *place = *value;
        }
    }
}

/// The first `width` columns of rows of `stride`, as rows.
fn transposed(matrix: &[f32], stride: usize, width: usize) -> Vec<f32> {
    let count = matrix.len() / stride;
    let mut out = vec![0.0; width * count];
    for (place, row) in matrix.chunks_exact(stride).enumerate() {
        for (value, out) in row[..width]
            .iter()
            .zip(out[place..].iter_mut().step_by(count))
        {
            *out = *value;
        }
    }
    out
}

fn multiply(values: &mut [f32], factor: f32) {
    for value in values {
        *value *= factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::noise::noise;

    /// `left · right`, each given by its element.
    fn plain(
        (rows, inner, width): (usize, usize, usize),
        left: impl Fn(usize, usize) -> f64,
        right: impl Fn(usize, usize) -> f64,
    ) -> Vec<f64> {
        let element = |row: usize, column: usize| -> f64 {
            (0..inner).map(|k| left(row, k) * right(k, column)).sum()
        };
        (0..rows * width)
            .map(|place| element(place / width, place % width))
            .collect()
    }

    fn assert_close(found: &[f32], start: f64, expected: &[f64], what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (found, expected) in found.iter().zip(expected) {
            let error = (f64::from(*found) - start - expected).abs();
            assert!(error < 1e-3, "{what}: {found} is not {expected}");
        }
    }

    #[test]
    fn products_and_gradients_are_those_of_the_definition() {
        let (inner, outputs, scale) = (2 * PANEL, 3 * PANEL, 0.5);
        for (rank, count) in [(1, 1), (3, 5), (16, 13), (PANEL, 12), (PANEL + 1, 40)] {
            let (a, b) = (noise(rank * inner, 1), noise(outputs * rank, 2));
            let (x, gradient) = (noise(count * inner, 3), noise(count * outputs, 4));
            let adapter = ThinAdapter {
                a: &a,
                b: &b,
                inner,
                outputs,
                scale,
            };
            let scale = f64::from(scale);
            let of_a = |rank: usize, k: usize| f64::from(a[rank * inner + k]);
            let of_b = |output: usize, k: usize| scale * f64::from(b[output * rank + k]);
            let of_x = |row: usize, k: usize| f64::from(x[row * inner + k]);
            let of_gradient = |row: usize, k: usize| f64::from(gradient[row * outputs + k]);

            let low = plain((count, inner, rank), of_x, |k, r| of_a(r, k));
            let of_low = |row: usize, k: usize| low[row * rank + k];
            let expected = plain((count, rank, outputs), of_low, |k, o| of_b(o, k));
            let mut out = vec![1.0; count * outputs];
            let thin = adapter.low(Arch::new(), &x);
            adapter.add_product(Arch::new(), &thin, &mut out);
            assert_close(&out, 1.0, &expected, "product");

            let mut for_x = vec![1.0; count * inner];
            let (for_a, for_b) =
                adapter.add_gradients(Arch::new(), (&x, &thin), &gradient, &mut for_x);
            let scaled_low = |row: usize, k: usize| scale * of_low(row, k);
            let expected = plain((outputs, count, rank), |o, r| of_gradient(r, o), scaled_low);
            assert_close(&for_b, 0.0, &expected, "b");
            let for_low = plain((count, outputs, rank), of_gradient, of_b);
            let of_for_low = |row: usize, k: usize| for_low[row * rank + k];
            let expected = plain((rank, count, inner), |k, r| of_for_low(r, k), of_x);
            assert_close(&for_a, 0.0, &expected, "a");
            let expected = plain((count, rank, inner), of_for_low, of_a);
            assert_close(&for_x, 1.0, &expected, "x");
        }
    }
}
