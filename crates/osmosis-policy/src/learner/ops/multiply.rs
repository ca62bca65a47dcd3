//! Products of the small, oddly laid out matrices of attention.

use super::Real;

/// A view of a matrix: the element of row `i` and column `j` is at `i · row_step + j · column_step`.
#[derive(Clone, Copy)]
pub(super) struct View<'a, T> {
    pub(super) values: &'a [T],
    pub(super) row_step: usize,
    pub(super) column_step: usize,
}

/// Rows that are contiguous in themselves.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    pub(super) values: &'a [T],
    pub(super) step: usize,
}

/// `out += left · right`, for `rows` rows of `width` elements in `out`, which are `step` apart, and `inner`
/// rows in `right`.
#[inline(always)]
pub(super) fn add_product<T: Real>(
    out: &mut [T],
    step: usize,
    (rows, inner, width): (usize, usize, usize),
    left: View<'_, T>,
    right: Rows<'_, T>,
) {
    let mut row = 0;
    while row + 4 <= rows {
        columns::<T, 4>(
            &mut out[row * step..],
            step,
            inner,
            width,
            left.skip_rows(row),
            right,
        );
        row += 4;
    }
    while row < rows {
        columns::<T, 1>(
            &mut out[row * step..],
            step,
            inner,
            width,
            left.skip_rows(row),
            right,
        );
        row += 1;
    }
}

impl<T> View<'_, T> {
    #[inline(always)]
    fn skip_rows(self, row: usize) -> Self {
        Self {
            values: &self.values[row * self.row_step..],
            ..self
        }
    }
}

impl<T> Rows<'_, T> {
    #[inline(always)]
    fn skip_columns(self, column: usize) -> Self {
        Self {
            values: &self.values[column..],
            ..self
        }
    }
}

#[inline(always)]
fn columns<T: Real, const ROWS: usize>(
    out: &mut [T],
    step: usize,
    inner: usize,
    width: usize,
    left: View<'_, T>,
    right: Rows<'_, T>,
) {
    let mut column = 0;
    while column + 16 <= width {
        tile::<T, ROWS, 16>(
            &mut out[column..],
            step,
            inner,
            left,
            right.skip_columns(column),
        );
        column += 16;
    }
    if column + 8 <= width {
        tile::<T, ROWS, 8>(
            &mut out[column..],
            step,
            inner,
            left,
            right.skip_columns(column),
        );
        column += 8;
    }
    while column < width {
        tile::<T, ROWS, 1>(
            &mut out[column..],
            step,
            inner,
            left,
            right.skip_columns(column),
        );
        column += 1;
    }
}

/// A part of the result that fits into registers.
#[inline(always)]
fn tile<T: Real, const ROWS: usize, const WIDTH: usize>(
    out: &mut [T],
    step: usize,
    inner: usize,
    left: View<'_, T>,
    right: Rows<'_, T>,
) {
    let mut sums = [[T::ZERO; WIDTH]; ROWS];
    for index in 0..inner {
        let line = &right.values[index * right.step..][..WIDTH];
        for (row, sums) in sums.iter_mut().enumerate() {
            let factor = left.values[row * left.row_step + index * left.column_step];
            for lane in 0..WIDTH {
                sums[lane] = sums[lane].plus_product(factor, line[lane]);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (out, sum) in out[row * step..][..WIDTH].iter_mut().zip(sums) {
            *out += *sum;
        }
    }
}
