//! The one product everything heavy is made of: a block of rows times a panel of columns.
//!
//! Every element of the result is one chain of fused multiply-adds over the inner dimension, in order. SIMD
//! runs across the columns and registers hold several rows, so how many rows come together changes the speed
//! and never a bit of the result. A fused multiply-add rounds once, so the width of the registers does not
//! matter either.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a dispatched function gets its instruction set"
)]

use pulp::{Arch, Simd, WithSimd};

/// Columns in a panel. Two registers with AVX-512, four with AVX2, eight with NEON.
pub(crate) const PANEL: usize = 32;

/// `out[r, ..PANEL] (+)= Σ_k x[r, k] · panel[k, ..PANEL]` for `rows` rows.
#[derive(Debug)]
pub(crate) struct PanelProduct<'a> {
    /// Row `r` begins at `r * x_stride`; as many of its numbers are used as the panel has rows.
    pub(crate) x: &'a [f32],
    pub(crate) x_stride: usize,
    pub(crate) rows: usize,
    /// `[inner, PANEL]`
    pub(crate) panel: &'a [f32],
    /// Row `r` begins at `r * out_stride`.
    pub(crate) out: &'a mut [f32],
    pub(crate) out_stride: usize,
    pub(crate) start: Start,
    pub(crate) columns: Columns,
}

/// Which columns of a panel are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Columns {
    All,
    /// The first half; the others are left as they are.
    Half,
}

/// Where the chains begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Zero,
    /// At what `out` holds: goes on with a chain that was begun before.
    Out,
}

impl PanelProduct<'_> {
    pub(crate) fn run(self, arch: Arch) {
        arch.dispatch(self);
    }
}

impl WithSimd for PanelProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // The most rows whose accumulators fit the registers; the branches are decided at compile time.
        match (PANEL / S::F32_LANES, self.columns) {
            (2, Columns::All) => self.blocks::<S, 2, 1, 12>(simd),
            (2, Columns::Half) => self.blocks::<S, 1, 1, 12>(simd),
            (4, Columns::All) => self.blocks::<S, 2, 2, 6>(simd),
            (4, Columns::Half) => self.blocks::<S, 2, 1, 6>(simd),
            (8, Columns::All) => self.blocks::<S, 4, 2, 6>(simd),
            (8, Columns::Half) => self.blocks::<S, 4, 1, 6>(simd),
            (_, Columns::All) => self.blocks::<S, 1, { PANEL }, 4>(simd),
            (_, Columns::Half) => self.blocks::<S, 1, { PANEL / 2 }, 4>(simd),
        }
    }
}

impl PanelProduct<'_> {
    /// `V` registers of columns at a time, `PARTS` times, and at most `MOST` rows at a time. Blocks are of nearly
    /// equal size: a block of one or two rows takes as long as one of four.
    #[inline(always)]
    fn blocks<S: Simd, const V: usize, const PARTS: usize, const MOST: usize>(mut self, simd: S) {
        let mut row = 0;
        while row < self.rows {
            let left = self.rows - row;
            let rows = left.div_ceil(left.div_ceil(MOST));
            for part in 0..PARTS {
                match rows {
                    1 => self.tile::<S, 1, V>(simd, row, part),
                    2 => self.tile::<S, 2, V>(simd, row, part),
                    3 => self.tile::<S, 3, V>(simd, row, part),
                    4 => self.tile::<S, 4, V>(simd, row, part),
                    5 => self.tile::<S, 5, V>(simd, row, part),
                    6 => self.tile::<S, 6, V>(simd, row, part),
                    7 => self.tile::<S, 7, V>(simd, row, part),
                    8 => self.tile::<S, 8, V>(simd, row, part),
                    9 => self.tile::<S, 9, V>(simd, row, part),
                    10 => self.tile::<S, 10, V>(simd, row, part),
                    11 => self.tile::<S, 11, V>(simd, row, part),
                    _ => self.tile::<S, 12, V>(simd, row, part),
                }
            }
            row += rows;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const M: usize, const V: usize>(&mut self, simd: S, row: usize, part: usize) {
        let lanes = S::F32_LANES;
        let registers = PANEL / lanes;
        let (panel, _) = S::as_simd_f32s(self.panel);
        let inner = panel.len() / registers;
        let x: [&[f32]; M] = std::array::from_fn(|m| &self.x[(row + m) * self.x_stride..][..inner]);
        let mut sums = [[simd.splat_f32s(0.0); V]; M];
        if self.start == Start::Out {
            for (m, sums) in sums.iter_mut().enumerate() {
                let out = &self.out[(row + m) * self.out_stride + part * V * lanes..][..V * lanes];
                let (out, _) = S::as_simd_f32s(out);
                // Not `copy_from_slice`, here and below: it would keep the sums in memory instead of registers, and a
                // store after each multiply-add takes as long as two of them.
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = out[v];
                }
            }
        }
        // The range tells the compiler that `k` is within the rows.
        for (k, columns) in (0..inner).zip(panel.chunks_exact(registers)) {
            let columns: [S::f32s; V] = std::array::from_fn(|v| columns[part * V + v]);
            for m in 0..M {
                let factor = simd.splat_f32s(x[m][k]);
                for v in 0..V {
                    sums[m][v] = simd.mul_add_f32s(factor, columns[v], sums[m][v]);
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            let out = &mut self.out[(row + m) * self.out_stride + part * V * lanes..][..V * lanes];
            let (out, _) = S::as_mut_simd_f32s(out);
            for (v, sum) in sums.iter().enumerate() {
                out[v] = *sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::noise::noise;

    /// The definition, spelled out.
    fn plain(x: &[f32], x_stride: usize, rows: usize, panel: &[f32], start: f32) -> Vec<f32> {
        let mut out = vec![start; rows * PANEL];
        for r in 0..rows {
            for (k, columns) in panel.chunks_exact(PANEL).enumerate() {
                for (o, column) in columns.iter().enumerate() {
                    let sum = &mut out[r * PANEL + o];
                    *sum = x[r * x_stride + k].mul_add(*column, *sum);
                }
            }
        }
        out
    }

    #[test]
    fn every_number_of_rows_gives_the_bits_of_the_definition() {
        let (inner, stride) = (37, 41);
        let panel = noise(inner * PANEL, 1);
        for rows in 1..=27 {
            let x = noise(rows * stride, 2);
            for (start, first) in [(Start::Zero, 0.0), (Start::Out, 0.7)] {
                let mut out = vec![first; rows * PANEL];
                PanelProduct {
                    x: &x,
                    x_stride: stride,
                    rows,
                    panel: &panel,
                    out: &mut out,
                    out_stride: PANEL,
                    start,
                    columns: Columns::All,
                }
                .run(Arch::new());
                let expected = plain(&x, stride, rows, &panel, first);
                assert!(
                    out.iter()
                        .zip(&expected)
                        .all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{rows} rows, {start:?}"
                );
            }
        }
    }

    #[test]
    fn half_of_the_columns_are_those_of_all_and_the_others_are_left() {
        let (inner, rows) = (21, 14);
        let (panel, x) = (noise(inner * PANEL, 5), noise(rows * inner, 6));
        let product = |columns: Columns| {
            let mut out = vec![0.5; rows * PANEL];
            PanelProduct {
                x: &x,
                x_stride: inner,
                rows,
                panel: &panel,
                out: &mut out,
                out_stride: PANEL,
                start: Start::Zero,
                columns,
            }
            .run(Arch::new());
            out
        };
        let (all, half) = (product(Columns::All), product(Columns::Half));
        for (all, half) in all.chunks_exact(PANEL).zip(half.chunks_exact(PANEL)) {
            assert_eq!(half[..PANEL / 2], all[..PANEL / 2]);
            assert_eq!(half[PANEL / 2..], [0.5; PANEL / 2]);
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let (inner, rows) = (19, 13);
        let (panel, x) = (noise(inner * PANEL, 3), noise(rows * inner, 4));
        let product = |out: &mut Vec<f32>, scalar: bool| {
            let product = PanelProduct {
                x: &x,
                x_stride: inner,
                rows,
                panel: &panel,
                out,
                out_stride: PANEL,
                start: Start::Zero,
                columns: Columns::All,
            };
            if scalar {
                pulp::Scalar::new().vectorize(product);
            } else {
                product.run(Arch::new());
            }
        };
        let (mut scalar, mut best) = (vec![0.0; rows * PANEL], vec![0.0; rows * PANEL]);
        product(&mut scalar, true);
        product(&mut best, false);
        assert_eq!(scalar, best);
    }
}
