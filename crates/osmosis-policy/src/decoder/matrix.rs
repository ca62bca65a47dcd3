//! Rows of numbers.

use super::kernel::PANEL;

/// Rows with room behind each, so that kernels may write whole panels and rows do not fall on the same
/// cache lines when the width is a power of two. Keeps its memory when it is reshaped.
#[derive(Debug, Default)]
pub(crate) struct Matrix {
    rows: usize,
    width: usize,
    values: Vec<f32>,
}

impl Matrix {
    /// Rows that lie end to end.
    pub(crate) fn of_rows(values: &[f32], width: usize) -> Self {
        let mut matrix = Self::default();
        matrix.reshape(values.len() / width, width);
        for (row, values) in values.chunks_exact(width).enumerate() {
            matrix.row_mut(row).copy_from_slice(values);
        }
        matrix
    }

    /// Makes it hold `rows` × `width` numbers; what they are is not said.
    pub(crate) fn reshape(&mut self, rows: usize, width: usize) {
        self.rows = rows;
        self.width = width;
        self.values.resize(rows * stride(width), 0.0);
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn stride(&self) -> usize {
        stride(self.width)
    }

    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.stride()..][..self.width]
    }

    pub(crate) fn all_rows(&self) -> impl Iterator<Item = &[f32]> {
        (0..self.rows).map(|row| self.row(row))
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let (stride, width) = (self.stride(), self.width);
        &mut self.values[row * stride..][..width]
    }

    /// The row with the room behind it.
    pub(crate) fn padded_row_mut(&mut self, row: usize) -> &mut [f32] {
        let stride = self.stride();
        &mut self.values[row * stride..][..stride]
    }
}

fn stride(width: usize) -> usize {
    width.next_multiple_of(PANEL) + PANEL / 2
}
