//! What must hold for any bytes whatever, of segment files: for the programs in `fuzz/`, and for their seeds in a
//! test.

pub use crate::segment_fuzzing::segments;

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../../fuzz/run_seeds.rs");

    #[test]
    fn every_seed_of_the_fuzzers_and_its_changes_pass() {
        run_seeds(&[("segments", segments)]);
    }
}
