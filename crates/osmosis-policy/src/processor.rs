//! What kind of processor computes. Equal bits are promised on one kind alone: with other instructions, or
//! caches of other sizes, the same sums are added up in another order.

use std::any::type_name;
use std::fmt;

use pulp::{Arch, Simd, WithSimd};

/// A kind of processor, as far as it decides about bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processor {
    /// As the system calls it, which tells the sizes of its caches apart.
    pub model: String,
    /// The instruction set that the kernels chose.
    pub instructions: String,
}

impl Processor {
    /// The one this runs on.
    pub fn here() -> Self {
        // Elsewhere than on Linux the architecture has to do.
        let told = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            model: model(&told).unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            instructions: Arch::new().dispatch(Instructions),
        }
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.model, self.instructions)
    }
}

/// `x86-64-v3, 8 lanes`, for the instruction set that is dispatched to.
struct Instructions;

impl WithSimd for Instructions {
    type Output = String;

    fn with_simd<S: Simd>(self, _simd: S) -> String {
        let name = type_name::<S>();
        let name = name.rsplit("::").next().unwrap_or(name);
        let name = match name {
            "V3" => "x86-64-v3",
            "V4" => "x86-64-v4",
            other => other,
        };
        format!("{name}, {} lanes", S::F32_LANES)
    }
}

/// `A CPU, family 25, model 1`: virtual machines often leave the name vague.
fn model(told: &str) -> Option<String> {
    let value = |wanted: &str| {
        told.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim() == wanted)
            .map(|(_, value)| value.trim())
    };
    let name = value("model name")?;
    Some(match (value("cpu family"), value("model")) {
        (Some(family), Some(model)) => format!("{name}, family {family}, model {model}"),
        _ => name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_model_and_instructions() {
        let here = Processor::here();
        assert_eq!(here, Processor::here());
        assert!(!here.model.is_empty());
        assert!(here.instructions.ends_with(" lanes"), "{here}");
        let told = "processor : 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: A CPU @ 2 GHz\n\nmodel name : B\n";
        assert_eq!(
            model(told).as_deref(),
            Some("A CPU @ 2 GHz, family 25, model 1")
        );
        assert_eq!(model("model name : B\n").as_deref(), Some("B"));
        assert_eq!(model("Features : asimd\n"), None);
    }
}
