//! The small operations between the products. All are fixed functions of one row, whatever the batch.
//!
//! Plain loops, compiled for each instruction set: each operation is a struct because only what is inlined
//! into [`WithSimd::with_simd`] gets the wider registers.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a dispatched function gets its instruction set"
)]

use pulp::{Arch, Simd, WithSimd};

/// Partial sums of a reduction: fixed, so that the order of additions does not depend on the processor.
const LANES: usize = 16;

/// `out = x / rms(x) · weight`.
pub(crate) fn rms_norm(arch: Arch, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    out.copy_from_slice(x);
    rms_norm_in_place(arch, out, weight, epsilon);
}

/// The same in place.
pub(crate) fn rms_norm_in_place(arch: Arch, x: &mut [f32], weight: &[f32], epsilon: f32) {
    arch.dispatch(RmsNorm { x, weight, epsilon });
}

struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl WithSimd for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let scale = 1.0 / (sum_of_squares(self.x) / self.x.len() as f32 + self.epsilon).sqrt();
        for (x, weight) in self.x.iter_mut().zip(self.weight) {
            *x = *x * scale * weight;
        }
    }
}

#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for piece in whole {
        for (sum, x) in sums.iter_mut().zip(piece) {
            *sum = x.mul_add(*x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum = x.mul_add(*x, *sum);
    }
    total(sums)
}

/// Adds the lanes pairwise.
#[inline(always)]
fn total(mut sums: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

/// `x += y`.
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `out = silu(gate) · up`.
pub(crate) fn gated(arch: Arch, gate: &[f32], up: &[f32], out: &mut [f32]) {
    arch.dispatch(Gated { gate, up, out });
}

struct Gated<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        for ((out, gate), up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

/// Turns the first half of a head against its second half.
pub(crate) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(head.len() / 2);
    for (((first, second), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        let (a, b) = (*first, *second);
        *first = a * cos - b * sin;
        *second = b * cos + a * sin;
    }
}

/// Scores become weights: `softmax(scores · scale)` over the first `count`; the rest becomes 0.
pub(crate) fn softmax(arch: Arch, scores: &mut [f32], count: usize, scale: f32) {
    arch.dispatch(Softmax {
        scores,
        count,
        scale,
    });
}

struct Softmax<'a> {
    scores: &'a mut [f32],
    count: usize,
    scale: f32,
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let (seen, rest) = self.scores.split_at_mut(self.count);
        let largest = max(seen) * self.scale;
        let mut sums = [0.0; LANES];
        let (whole, tail) = seen.as_chunks_mut::<LANES>();
        for piece in whole {
            for (score, sum) in piece.iter_mut().zip(&mut sums) {
                *score = exp(score.mul_add(self.scale, -largest));
                *sum += *score;
            }
        }
        for (score, sum) in tail.iter_mut().zip(&mut sums) {
            *score = exp(score.mul_add(self.scale, -largest));
            *sum += *score;
        }
        let share = 1.0 / total(sums);
        for score in seen {
            *score *= share;
        }
        rest.fill(0.0);
    }
}

#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for piece in whole {
        for (most, x) in most.iter_mut().zip(piece) {
            *most = if *x > *most { *x } else { *most };
        }
    }
    let most = most.into_iter().chain(rest.iter().copied());
    most.fold(f32::NEG_INFINITY, |most, x| if x > most { x } else { most })
}

/// `e^x` to about one unit in the last place, in a form that the compiler turns into SIMD. Not a number stays
/// not a number; what is below the smallest normal number becomes that number.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding this rounds to a whole number in the low bits of the mantissa.
    const ROUNDER: f32 = 12_582_912.0;
    // ln 2 in two pieces, so that the reduction loses nothing.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUNDER);
    let whole = rounded - ROUNDER;
    let rest = whole.mul_add(-LN_2_HIGH, x);
    let rest = whole.mul_add(-LN_2_LOW, rest);
    let mut series = 1.987_569_1e-4;
    for coefficient in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        0.166_666_66,
        0.5,
    ] {
        series = rest.mul_add(series, coefficient);
    }
    let fraction = (rest * rest).mul_add(series, rest) + 1.0;
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(0x3f80_0000));
    fraction * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_to_a_few_ten_millionths() {
        let mut worst: f64 = 0.0;
        let mut x = -86.9_f32;
        while x < 87.9 {
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
            x += 0.003_7;
        }
        assert!(worst < 3e-7, "{worst}");
        assert_eq!(exp(0.0).to_bits(), 1.0_f32.to_bits());
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-1e9) < 1e-37);
    }

    #[test]
    fn softmax_sums_to_one_and_clears_what_is_not_seen() {
        let mut scores: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin() * 5.0).collect();
        softmax(Arch::new(), &mut scores, 35, 0.5);
        let sum: f32 = scores.iter().sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(scores[35..], [0.0; 5]);
    }
}
