//! Squares of panels turned round, so that the kernel can multiply with the weights the other way.
//!
//! The numbers of a large matrix come from memory, each once in a while: few instructions let many of them be on their
//! way at a time.

#![cfg_attr(
    target_arch = "x86_64",
    expect(
        clippy::inline_always,
        reason = "only what is inlined into a dispatched function gets its instruction set"
    )
)]

use std::array;

use pulp::Arch;

use super::kernel::PANEL;

/// As many rows of a panel as it has columns.
pub(super) type Square = [[f32; PANEL]; PANEL];

/// The columns of a square as rows.
pub(super) fn transpose(arch: Arch, square: &Square, out: &mut Square) {
    match arch {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => simd.vectorize(wide::Transposition { simd, square, out }),
        _ => transpose_plainly(square, out),
    }
}

/// Says that these numbers are read soon, where a processor can be told.
pub(super) fn fetch_ahead(arch: Arch, numbers: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if let Arch::V4(simd) = arch {
        for line in numbers.chunks(wide::LANES) {
            simd.sse
                ._mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (arch, numbers);
}

/// In squares that fit the registers of any machine.
fn transpose_plainly(square: &Square, out: &mut Square) {
    const SIDE: usize = 4;
    for (group, rows) in square.as_chunks::<SIDE>().0.iter().enumerate() {
        for (lanes, out) in out.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
            let part: [[f32; SIDE]; SIDE] =
                array::from_fn(|row| array::from_fn(|lane| rows[row][lanes * SIDE + lane]));
            for (lane, out) in out.iter_mut().enumerate() {
                let column: [f32; SIDE] = array::from_fn(|row| part[row][lane]);
                out[group * SIDE..][..SIDE].copy_from_slice(&column);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use core::arch::x86_64::__m512;
    use std::array;

    use pulp::NullaryFnOnce;
    use pulp::bytemuck::cast;
    use pulp::x86::V4;

    use super::Square;

    pub(super) const LANES: usize = 16;

    /// With registers of 16 numbers.
    pub(super) struct Transposition<'a> {
        pub(super) simd: V4,
        pub(super) square: &'a Square,
        pub(super) out: &'a mut Square,
    }

    impl NullaryFnOnce for Transposition<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            for (down, rows) in self.square.as_chunks::<LANES>().0.iter().enumerate() {
                for (right, out) in self.out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                    let part = array::from_fn(|row| cast(rows[row].as_chunks::<LANES>().0[right]));
                    for (column, quarters) in turned(self.simd, part).into_iter().enumerate() {
                        for (quarter, numbers) in quarters.into_iter().enumerate() {
                            let out = &mut out[4 * quarter + column];
                            out.as_chunks_mut::<LANES>().0[down] = cast(numbers);
                        }
                    }
                }
            }
        }
    }

    /// Row `4 q + c` of the result is at `[c][q]`.
    #[inline(always)]
    fn turned(simd: V4, rows: [__m512; LANES]) -> [[__m512; 4]; 4] {
        let avx = simd.avx512f;
        // Squares of two numbers, then of four; each quarter of a register is by itself.
        let fours: [[__m512; 4]; 4] = array::from_fn(|group| {
            let [a, b, c, d] = array::from_fn(|row| rows[4 * group + row]);
            let (low, high) = (
                [(a, b), (c, d)].map(|(a, b)| cast(avx._mm512_unpacklo_ps(a, b))),
                [(a, b), (c, d)].map(|(a, b)| cast(avx._mm512_unpackhi_ps(a, b))),
            );
            [
                cast(avx._mm512_unpacklo_pd(low[0], low[1])),
                cast(avx._mm512_unpackhi_pd(low[0], low[1])),
                cast(avx._mm512_unpacklo_pd(high[0], high[1])),
                cast(avx._mm512_unpackhi_pd(high[0], high[1])),
            ]
        });
        // Then the quarters: the even ones of all groups, and the odd ones.
        array::from_fn(|column| {
            let [a, b, c, d] = fours.map(|group| group[column]);
            let even = [(a, b), (c, d)].map(|(a, b)| avx._mm512_shuffle_f32x4::<0x88>(a, b));
            let odd = [(a, b), (c, d)].map(|(a, b)| avx._mm512_shuffle_f32x4::<0xdd>(a, b));
            [
                avx._mm512_shuffle_f32x4::<0x88>(even[0], even[1]),
                avx._mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]),
                avx._mm512_shuffle_f32x4::<0xdd>(even[0], even[1]),
                avx._mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]),
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::noise::noise;

    #[test]
    fn columns_become_rows() {
        let numbers = noise(PANEL * PANEL, 1);
        let square: &Square = &numbers.as_chunks::<PANEL>().0.try_into().unwrap();
        let (mut best, mut plain) = ([[0.0; PANEL]; PANEL], [[0.0; PANEL]; PANEL]);
        transpose(Arch::new(), square, &mut best);
        transpose_plainly(square, &mut plain);
        for (row, numbers) in square.iter().enumerate() {
            for (column, number) in numbers.iter().enumerate() {
                assert_eq!(best[column][row].to_bits(), number.to_bits());
                assert_eq!(plain[column][row].to_bits(), number.to_bits());
            }
        }
    }
}
