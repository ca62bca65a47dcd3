//! The operations of the decoder, each with its gradient.
//!
//! Generic over f32 and f64: training runs in f32, the checks by finite differences in f64.

#![expect(
    clippy::inline_always,
    reason = "vectors are as wide as the caller allows only when inlined"
)]

/// Defines a function that is compiled for each instruction set, and runs as the best one this machine has.
///
/// Everything it calls must be inlined into it to get the wider vectors, and a closure can't be told to
/// be, so the arguments travel in a struct.
macro_rules! kernel {
    (
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $type:ty),+ $(,)?) -> $output:ty $body:block
    ) => {
        $(#[$attribute])*
        fn $name<'a, T: Real>($($argument: $type),+) -> $output {
            struct Kernel<'a, T> {
                $($argument: $type),+
            }
            impl<'a, T: Real> pulp::WithSimd for Kernel<'a, T> {
                type Output = $output;
                #[inline(always)]
                fn with_simd<S: pulp::Simd>(self, _simd: S) -> $output {
                    let Self { $($argument),+ } = self;
                    $body
                }
            }
            pulp::Arch::new().dispatch(Kernel { $($argument),+ })
        }
    };
}

mod attention;
mod frozen;
mod linear;
mod logprob;
mod multiply;
mod norm;
mod real;
mod reduce;
mod rope;
mod select;
mod swiglu;
#[cfg(test)]
mod tests;
mod thin;

pub(super) use attention::Attention;
pub(super) use frozen::{AdaptedLinear, FrozenLinear, Place};
pub(super) use linear::{Add, AddBias, Linear};
pub(super) use logprob::TokenLogprob;
pub(super) use norm::RmsNorm;
pub(super) use real::Real;
pub(super) use rope::{Rope, RopeTable};
pub(super) use select::Select;
pub(super) use swiglu::SwiGlu;
