//! One linear layer whose weights lie as the kernel reads them, for the sampler and for the learner's frozen weights.

use std::ops::Range;

use osmosis_core::config::LoraBase;
use pulp::Arch;
use rayon::prelude::*;

use super::kernel::{Columns, PANEL, PanelProduct, Start};
use super::matrix::Matrix;
use super::panels::Panels;
use super::transposition::{Square, fetch_ahead, transpose};

/// A linear layer, its columns in panels.
#[derive(Debug)]
pub(crate) struct Linear {
    inner: usize,
    outputs: usize,
    panels: Panels,
    /// Empty without a bias, else filled up like the panels.
    bias: Vec<f32>,
}

impl Linear {
    /// Several `[outputs, inner]` matrices become one layer whose outputs follow each other.
    pub(super) fn pack(base: LoraBase, inner: usize, parts: &[&[f32]], biases: &[&[f32]]) -> Self {
        let outputs = parts.iter().map(|part| part.len()).sum::<usize>() / inner;
        let columns: Vec<&[f32]> = parts
            .iter()
            .flat_map(|part| part.chunks_exact(inner))
            .collect();
        let panels = Panels::pack(base, inner, &columns);
        let mut bias = biases.concat();
        if !bias.is_empty() {
            bias.resize(outputs.next_multiple_of(PANEL), 0.0);
        }
        Self {
            inner,
            outputs,
            panels,
            bias,
        }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    fn panel_count(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    pub(crate) fn inner(&self) -> usize {
        self.inner
    }

    pub(crate) fn bytes(&self) -> usize {
        self.panels.bytes() + self.bias.len() * 4
    }

    /// The biases of some outputs; empty when there are none.
    pub(crate) fn biases(&self, outputs: Range<usize>) -> &[f32] {
        self.bias.get(outputs).unwrap_or_default()
    }

    /// The weights of one output.
    pub(crate) fn column(&self, output: usize, out: &mut [f32]) {
        self.panels.column(output, self.inner, out);
    }

    /// The weights of some outputs, one row each.
    pub(crate) fn rows(&self, outputs: Range<usize>) -> Vec<f32> {
        /// As many numbers of all lanes of a panel as fit the nearest cache twice.
        const DEPTH: usize = 32;
        let inner = self.inner;
        let mut rows = vec![0.0; outputs.len() * inner];
        let mut room = Vec::new();
        for index in outputs.start / PANEL..outputs.end.div_ceil(PANEL) {
            let panel = self.panels.panel(index, inner, &mut room);
            let first = index * PANEL;
            let lanes = outputs.start.max(first)..outputs.end.min(first + PANEL);
            let rows = &mut rows[(lanes.start - outputs.start) * inner..][..lanes.len() * inner];
            for depth in (0..inner).step_by(DEPTH) {
                let depths = depth..inner.min(depth + DEPTH);
                for (row, lane) in rows.chunks_exact_mut(inner).zip(lanes.clone()) {
                    let numbers = panel[depth * PANEL + lane - first..].iter().step_by(PANEL);
                    for (place, number) in row[depths.clone()].iter_mut().zip(numbers) {
                        *place = *number;
                    }
                }
            }
        }
        rows
    }

    /// Whether [`forward`](Self::forward) and [`backward`](Self::backward) can take these outputs as they are: all of
    /// the matrix consists of whole panels.
    pub(crate) fn has_whole_panels(&self, outputs: &Range<usize>) -> bool {
        [outputs.start, outputs.end, self.inner]
            .iter()
            .all(|count| count.is_multiple_of(PANEL))
    }

    /// `x · wᵀ + bias` for some outputs, from and into rows that lie end to end: what [`apply`](Self::apply) computes, bit
    /// for bit, on one thread.
    pub(crate) fn forward(&self, arch: Arch, outputs: &Range<usize>, x: &[f32]) -> Vec<f32> {
        let (x, width) = (Matrix::of_rows(x, self.inner), outputs.len());
        let rows = x.rows();
        let biases = self.biases(outputs.clone());
        let (mut out, start) = if biases.is_empty() {
            (vec![0.0; rows * width], Start::Zero)
        } else {
            (biases.repeat(rows), Start::Out)
        };
        let mut room = Vec::new();
        for (place, panel) in panels_of(outputs).enumerate() {
            PanelProduct {
                x: x.values(),
                x_stride: x.stride(),
                rows,
                panel: self.panels.panel(panel, self.inner, &mut room),
                out: &mut out[place * PANEL..],
                out_stride: width,
                start,
                columns: Columns::All,
            }
            .run(arch);
        }
        out
    }

    /// `gradient · w` for some outputs: the gradient by what came in.
    pub(crate) fn backward(
        &self,
        arch: Arch,
        outputs: &Range<usize>,
        gradient: &[f32],
    ) -> Vec<f32> {
        /// Panels that are added up at a time: a part of the result is read and written once for all of them.
        const DEPTH: usize = 4;
        /// Rows after which more of the next weights is fetched.
        const ROWS: usize = 24;
        let gradient = Matrix::of_rows(gradient, outputs.len());
        let (rows, inner) = (gradient.rows(), self.inner);
        let mut out = vec![0.0; rows * inner];
        let mut rooms: [Vec<f32>; DEPTH] = Default::default();
        let mut turned = vec![[[0.0; PANEL]; PANEL]; DEPTH];
        let indices: Vec<usize> = panels_of(outputs).collect();
        for (place, indices) in indices.chunks(DEPTH).enumerate() {
            let panels: Vec<&[Square]> = indices
                .iter()
                .zip(&mut rooms)
                .map(|(index, room)| {
                    let panel = self.panels.panel(*index, inner, room);
                    panel.as_chunks::<PANEL>().0.as_chunks::<PANEL>().0
                })
                .collect();
            let turned = &mut turned[..panels.len()];
            let x = &gradient.values()[place * DEPTH * PANEL..];
            for square in 0..inner / PANEL {
                for (panel, turned) in panels.iter().zip(&mut *turned) {
                    transpose(arch, &panel[square], turned);
                }
                let next = panels.iter().filter_map(|panel| panel.get(square + 1));
                let next: Vec<&[f32]> = next.map(|square| square.as_flattened()).collect();
                for first in (0..rows).step_by(ROWS) {
                    let part = PANEL * PANEL * first / rows..PANEL * PANEL * (first + ROWS) / rows;
                    for next in &next {
                        fetch_ahead(arch, &next[part.start..part.end.min(next.len())]);
                    }
                    PanelProduct {
                        x: &x[first * gradient.stride()..],
                        x_stride: gradient.stride(),
                        rows: ROWS.min(rows - first),
                        panel: turned.as_flattened().as_flattened(),
                        out: &mut out[first * inner + square * PANEL..],
                        out_stride: inner,
                        start: if place == 0 { Start::Zero } else { Start::Out },
                        columns: Columns::All,
                    }
                    .run(arch);
                }
            }
        }
        out
    }

    /// `out = x · w + bias`.
    pub(crate) fn apply(&self, arch: Arch, threads: usize, x: &Matrix, out: &mut Matrix) {
        out.reshape(x.rows(), self.outputs);
        self.run(arch, threads, x, out, Begin::Fresh);
    }

    /// `out += x · w`: goes on with the chains of additions that another product began. There is no bias.
    pub(crate) fn add_to(&self, arch: Arch, threads: usize, x: &Matrix, out: &mut Matrix) {
        self.run(arch, threads, x, out, Begin::Out);
    }

    /// Split over rows when there are many, else over outputs.
    fn run(&self, arch: Arch, threads: usize, x: &Matrix, out: &mut Matrix, begin: Begin) {
        const ROWS_PER_PIECE: usize = 16;
        let rows = x.rows();
        let stride = out.stride();
        if threads == 1 {
            self.product(
                arch,
                x,
                0..rows,
                0..self.panel_count(),
                out.values_mut(),
                stride,
                begin,
            );
        } else if rows >= ROWS_PER_PIECE * threads {
            let piece = rows.div_ceil(threads);
            out.values_mut()
                .par_chunks_mut(piece * stride)
                .enumerate()
                .for_each(|(index, out)| {
                    let first = index * piece;
                    self.product(
                        arch,
                        x,
                        first..(first + piece).min(rows),
                        0..self.panel_count(),
                        out,
                        stride,
                        begin,
                    );
                });
        } else {
            let panels = self.panel_count().div_ceil(threads * 2).max(1);
            let width = panels * PANEL;
            let mut slabs = vec![0.0; self.panel_count().div_ceil(panels) * rows * width];
            if begin == Begin::Out {
                for (index, slab) in slabs.chunks_exact_mut(rows * width).enumerate() {
                    for (row, piece) in slab.chunks_exact_mut(width).enumerate() {
                        let out = &out.padded_row_mut(row)[index * width..];
                        let count = out.len().min(width);
                        piece[..count].copy_from_slice(&out[..count]);
                    }
                }
            }
            slabs
                .par_chunks_mut(rows * width)
                .enumerate()
                .for_each(|(index, slab)| {
                    let first = index * panels;
                    self.product(
                        arch,
                        x,
                        0..rows,
                        first..(first + panels).min(self.panel_count()),
                        slab,
                        width,
                        begin,
                    );
                });
            for (index, slab) in slabs.chunks_exact(rows * width).enumerate() {
                for (row, piece) in slab.chunks_exact(width).enumerate() {
                    let out = &mut out.padded_row_mut(row)[index * width..];
                    let count = out.len().min(width);
                    out[..count].copy_from_slice(&piece[..count]);
                }
            }
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a struct for the only caller would say nothing more"
    )]
    fn product(
        &self,
        arch: Arch,
        x: &Matrix,
        rows: Range<usize>,
        panels: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
        begin: Begin,
    ) {
        let mut room = Vec::new();
        let x_rows = &x.values()[rows.start * x.stride()..];
        for (index, panel) in panels.enumerate() {
            let out = &mut out[index * PANEL..];
            let start = if begin == Begin::Out {
                Start::Out
            } else if self.bias.is_empty() {
                Start::Zero
            } else {
                let bias = &self.bias[panel * PANEL..][..PANEL];
                for row in 0..rows.len() {
                    out[row * out_stride..][..PANEL].copy_from_slice(bias);
                }
                Start::Out
            };
            PanelProduct {
                x: x_rows,
                x_stride: x.stride(),
                rows: rows.len(),
                panel: self.panels.panel(panel, self.inner, &mut room),
                out,
                out_stride,
                start,
                columns: Columns::All,
            }
            .run(arch);
        }
    }
}

/// What a product does with what its result already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    Fresh,
    Out,
}

/// The panels that hold these outputs, which begin and end with one.
fn panels_of(outputs: &Range<usize>) -> Range<usize> {
    outputs.start / PANEL..outputs.end.div_ceil(PANEL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::noise::noise;

    #[test]
    fn products_of_some_outputs_are_those_of_all() {
        let (inner, outputs, rows) = (64, 6 * PANEL, 15);
        let weights = noise(inner * outputs, 1);
        let biases = noise(outputs, 2);
        let x = noise(rows * inner, 3);
        let some = PANEL..6 * PANEL;
        for base in LoraBase::ALL {
            for biases in [&[][..], &[&biases[..]]] {
                let linear = Linear::pack(base, inner, &[&weights], biases);
                assert!(linear.has_whole_panels(&some));
                let mut all = Matrix::default();
                linear.apply(Arch::new(), 1, &Matrix::of_rows(&x, inner), &mut all);
                let expected: Vec<f32> = all
                    .all_rows()
                    .flat_map(|row| row[some.clone()].to_vec())
                    .collect();
                assert_eq!(linear.forward(Arch::new(), &some, &x), expected, "{base:?}");
            }
        }
    }

    #[test]
    fn the_gradient_by_what_came_in_is_the_product_with_the_weights() {
        let (inner, outputs, rows) = (96, 7 * PANEL, 13);
        let weights = noise(inner * outputs, 4);
        // More panels than are added up at a time, and not a multiple of them.
        let some = PANEL..7 * PANEL;
        let gradient = noise(rows * some.len(), 5);
        for base in LoraBase::ALL {
            let linear = Linear::pack(base, inner, &[&weights], &[]);
            let rounded = super::super::rounded(base, inner, &weights);
            let found = linear.backward(Arch::new(), &some, &gradient);
            for (row, found) in found.chunks_exact(inner).enumerate() {
                for (place, found) in found.iter().enumerate() {
                    let expected: f64 = some
                        .clone()
                        .zip(&gradient[row * some.len()..])
                        .map(|(output, slope)| {
                            f64::from(*slope) * f64::from(rounded[output * inner + place])
                        })
                        .sum();
                    let apart = (f64::from(*found) - expected).abs();
                    assert!(
                        apart < 1e-4,
                        "{base:?}, {row}, {place}: {found}, not {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_matrix_of_parts_of_panels_is_not_taken() {
        let linear = Linear::pack(LoraBase::F32, 48, &[&noise(48 * 64, 6)], &[]);
        assert!(!linear.has_whole_panels(&(0..64)), "the inner dimension");
        let linear = Linear::pack(LoraBase::F32, 32, &[&noise(32 * 64, 6)], &[]);
        assert!(linear.has_whole_panels(&(0..64)));
        assert!(!linear.has_whole_panels(&(0..40)));
        assert!(!linear.has_whole_panels(&(8..64)));
    }
}
