//! The columns of a linear layer, in panels of numbers of one type.
//!
//! Whatever the type, the kernel gets a panel of f32: compressed ones are widened when it is their turn, into memory
//! that stays in a cache. So a product has the same order of additions, and the same bits, as one with the widened
//! numbers would.

use osmosis_core::config::LoraBase;
use rayon::prelude::*;

use super::kernel::PANEL;

/// Numbers along the inner dimension that share a scale.
const BLOCK: usize = 32;

/// `[panel, inner, PANEL]`; the last panel is filled up with zeros.
#[derive(Debug)]
pub(super) enum Panels {
    F32(Vec<f32>),
    /// The upper halves of f32.
    Bf16(Vec<u16>),
    Q8 {
        numbers: Vec<i8>,
        /// `[panel, inner / BLOCK, PANEL]`
        scales: Vec<f32>,
    },
}

impl Panels {
    /// `columns` have `inner` numbers each.
    pub(super) fn pack(base: LoraBase, inner: usize, columns: &[&[f32]]) -> Self {
        match base {
            LoraBase::F32 => Self::F32(packed(inner, columns, |column, out| {
                for (place, weight) in out.zip(column) {
                    *place = *weight;
                }
            })),
            LoraBase::Bf16 => Self::Bf16(packed(inner, columns, |column, out| {
                for (place, weight) in out.zip(column) {
                    *place = bf16(*weight);
                }
            })),
            LoraBase::Q8 => Self::Q8 {
                numbers: packed(inner, columns, |column, out| {
                    let numbers = column.chunks(BLOCK).flat_map(|block| {
                        let scale = scale(block);
                        block.iter().map(move |weight| quantised(*weight, scale))
                    });
                    for (place, number) in out.zip(numbers) {
                        *place = number;
                    }
                }),
                scales: packed(inner.div_ceil(BLOCK), columns, |column, out| {
                    for (place, block) in out.zip(column.chunks(BLOCK)) {
                        *place = scale(block);
                    }
                }),
            },
        }
    }

    /// One panel, widened into `room` if need be.
    #[inline]
    pub(super) fn panel<'a>(
        &'a self,
        index: usize,
        inner: usize,
        room: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let size = inner * PANEL;
        match self {
            Self::F32(numbers) => &numbers[index * size..][..size],
            Self::Bf16(numbers) => {
                room.resize(size, 0.0);
                for (wide, number) in room.iter_mut().zip(&numbers[index * size..][..size]) {
                    *wide = f32::from_bits(u32::from(*number) << 16);
                }
                room
            }
            Self::Q8 { numbers, scales } => {
                room.resize(size, 0.0);
                let blocks = inner.div_ceil(BLOCK) * PANEL;
                let scales = &scales[index * blocks..][..blocks];
                for ((wide, numbers), scales) in room
                    .chunks_mut(BLOCK * PANEL)
                    .zip(numbers[index * size..][..size].chunks(BLOCK * PANEL))
                    .zip(scales.chunks_exact(PANEL))
                {
                    for (wide, numbers) in wide
                        .chunks_exact_mut(PANEL)
                        .zip(numbers.chunks_exact(PANEL))
                    {
                        for ((wide, number), scale) in wide.iter_mut().zip(numbers).zip(scales) {
                            *wide = f32::from(*number) * scale;
                        }
                    }
                }
                room
            }
        }
    }

    /// One column.
    pub(super) fn column(&self, index: usize, inner: usize, out: &mut [f32]) {
        let (panel, lane) = (index / PANEL, index % PANEL);
        let first = panel * inner * PANEL + lane;
        match self {
            Self::F32(numbers) => {
                for (out, number) in out.iter_mut().zip(numbers[first..].iter().step_by(PANEL)) {
                    *out = *number;
                }
            }
            Self::Bf16(numbers) => {
                for (out, number) in out.iter_mut().zip(numbers[first..].iter().step_by(PANEL)) {
                    *out = f32::from_bits(u32::from(*number) << 16);
                }
            }
            Self::Q8 { numbers, scales } => {
                let scales = &scales[panel * inner.div_ceil(BLOCK) * PANEL + lane..];
                let numbers = numbers[first..].iter().step_by(PANEL);
                for (place, (out, number)) in out.iter_mut().zip(numbers).enumerate() {
                    *out = f32::from(*number) * scales[place / BLOCK * PANEL];
                }
            }
        }
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len() * 4,
            Self::Bf16(numbers) => numbers.len() * 2,
            Self::Q8 { numbers, scales } => numbers.len() + scales.len() * 4,
        }
    }
}

/// Lays columns side by side; `write` gets a column and its places.
fn packed<T: Copy + Default + Send + Sync>(
    inner: usize,
    columns: &[&[f32]],
    write: impl Fn(&[f32], std::iter::StepBy<std::slice::IterMut<'_, T>>) + Sync,
) -> Vec<T> {
    let mut panels = vec![T::default(); columns.len().div_ceil(PANEL) * inner * PANEL];
    panels
        .par_chunks_exact_mut(inner * PANEL)
        .zip(columns.par_chunks(PANEL))
        .for_each(|(panel, columns)| {
            for (lane, column) in columns.iter().enumerate() {
                write(column, panel[lane..].iter_mut().step_by(PANEL));
            }
        });
    panels
}

/// The numbers that a matrix of rows of `inner` has once it was packed.
pub(crate) fn rounded(base: LoraBase, inner: usize, values: &[f32]) -> Vec<f32> {
    match base {
        LoraBase::F32 => values.to_vec(),
        LoraBase::Bf16 => values
            .iter()
            .map(|value| f32::from_bits(u32::from(bf16(*value)) << 16))
            .collect(),
        LoraBase::Q8 => values
            .chunks(inner)
            .flat_map(|row| row.chunks(BLOCK))
            .flat_map(|block| {
                let scale = scale(block);
                block
                    .iter()
                    .map(move |value| f32::from(quantised(*value, scale)) * scale)
            })
            .collect(),
    }
}

/// To nearest, of two equally near ones to the even one. Weights are finite.
fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let odd = (bits >> 16) & 1;
    let upper = bits.wrapping_add(0x7fff + odd) >> 16;
    u16::try_from(upper & 0xffff).unwrap_or(u16::MAX)
}

/// As GGUF's `q8_0`, but not rounded to f16.
fn scale(block: &[f32]) -> f32 {
    block
        .iter()
        .fold(0.0, |most: f32, value| most.max(value.abs()))
        / 127.0
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the scale is chosen so that they fit; `as` saturates"
)]
fn quantised(value: f32, scale: f32) -> i8 {
    if scale == 0.0 {
        return 0;
    }
    (value / scale).round() as i8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::noise::noise;

    #[test]
    fn panels_hold_the_rounded_numbers_whichever_way_they_are_read() {
        // Neither a whole number of panels nor of blocks.
        let (inner, outputs) = (45, 70);
        let values = noise(inner * outputs, 7);
        let columns: Vec<&[f32]> = values.chunks_exact(inner).collect();
        for base in LoraBase::ALL {
            let panels = Panels::pack(base, inner, &columns);
            let expected = rounded(base, inner, &values);
            let mut room = Vec::new();
            for (index, expected) in expected.chunks_exact(inner).enumerate() {
                let mut column = vec![0.0; inner];
                panels.column(index, inner, &mut column);
                assert_eq!(column, expected, "{base:?} {index}");
                let panel = panels.panel(index / PANEL, inner, &mut room);
                let lane = panel[index % PANEL..].iter().step_by(PANEL);
                assert!(lane.eq(expected), "{base:?} {index}");
            }
            let bound = match base {
                LoraBase::F32 => 0.0,
                LoraBase::Bf16 => 1.0 / 256.0,
                LoraBase::Q8 => 0.5 / 127.0,
            };
            let far = values.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let farthest = far.fold(0.0, f32::max);
            assert!(farthest <= bound, "{base:?}: {farthest}");
            assert_eq!(base == LoraBase::F32, farthest == 0.0);
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (bits, expected) in [
            (0x3f80_0000_u32, 0x3f80_u16),
            (0x3f80_7fff, 0x3f80),
            (0x3f80_8000, 0x3f80),
            (0x3f81_8000, 0x3f82),
            (0x3f80_8001, 0x3f81),
            (0xbf81_8000, 0xbf82),
        ] {
            assert_eq!(bf16(f32::from_bits(bits)), expected, "{bits:x}");
        }
    }

    #[test]
    fn a_block_of_zeros_stays_one() {
        assert_eq!(rounded(LoraBase::Q8, 32, &[0.0; 64]), [0.0; 64]);
    }
}
