//! Sums and maxima in lanes, which the compiler may not make of a plain loop over floats. The lanes are
//! fixed, so the result does not depend on the machine's vectors.

use super::Real;

const LANES: usize = 16;

#[inline(always)]
pub(super) fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            lanes[lane] = lanes[lane].plus_product(a[lane], b[lane]);
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane = lane.plus_product(*a, *b);
    }
    total(&lanes)
}

#[inline(always)]
pub(super) fn sum<T: Real>(values: &[T]) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] += block[lane];
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += *value;
    }
    total(&lanes)
}

/// The largest of at least one value.
#[inline(always)]
pub(super) fn largest<T: Real>(values: &[T]) -> T {
    let mut lanes = [values[0]; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] = block[lane].larger(lanes[lane]);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = value.larger(*lane);
    }
    let mut largest = lanes[0];
    for lane in lanes {
        largest = lane.larger(largest);
    }
    largest
}

#[inline(always)]
fn total<T: Real>(lanes: &[T; LANES]) -> T {
    let mut sum = T::ZERO;
    for lane in lanes {
        sum += *lane;
    }
    sum
}
