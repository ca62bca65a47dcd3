//! What must hold for any bytes whatever, of workers and of config files: for the programs in `fuzz/`, and for
//! their seeds in a test.

use camino::Utf8Path;

use crate::config::{ConfigErrors, EvalConfig, TrainConfig};
use crate::frame::{self, FromWorker, ToWorker};

/// A frame that can be read is written and read again as the same one.
pub fn frames(body: &[u8]) {
    if let Ok(read) = frame::decode::<FromWorker>(body) {
        let written = frame::encode(&read).unwrap_or_default();
        assert_eq!(frame::decode::<FromWorker>(&written).ok(), Some(read));
    }
    if let Ok(read) = frame::decode::<ToWorker>(body) {
        let written = frame::encode(&read).unwrap_or_default();
        assert_eq!(frame::decode::<ToWorker>(&written).ok(), Some(read));
    }
}

/// A config is read, or every one of its problems has a message.
pub fn configs(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let file = Utf8Path::new("c.toml");
    told(EvalConfig::parse(file, text));
    told(TrainConfig::parse(file, text));
}

fn told<T>(parsed: Result<T, ConfigErrors>) {
    if let Err(errors) = parsed {
        assert!(!errors.0.is_empty() && !errors.render().is_empty());
        assert!(errors.0.iter().all(|error| !error.to_string().is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../../fuzz/run_seeds.rs");

    #[test]
    fn every_seed_of_the_fuzzers_and_its_changes_pass() {
        run_seeds(&[("frames", frames), ("configs", configs)]);
    }
}
