//! What must hold for any bytes whatever, of segment files: for the programs in `fuzz/`, and for their seeds in a
//! test.

pub use crate::sqlite::fuzzing::segments;

#[cfg(test)]
mod tests {
    use super::*;

    /// The inputs that the fuzzers start from, and every one that once broke something.
    #[test]
    fn every_seed_of_the_fuzzers_passes() {
        let targets: [(&str, fn(&[u8])); 1] = [("segments", segments)];
        for (name, target) in targets {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/");
            let mut ran = 0;
            for entry in std::fs::read_dir(format!("{folder}{name}")).unwrap() {
                target(&std::fs::read(entry.unwrap().path()).unwrap());
                ran += 1;
            }
            assert!(ran > 0, "there are no seeds for {name}");
        }
    }
}
