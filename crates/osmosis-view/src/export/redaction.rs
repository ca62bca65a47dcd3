//! What must not leave with an export.

use camino::Utf8Path;
use osmosis_core::Redactor;
use osmosis_core::config::{EvalConfig, Secrets, TrainConfig};
use osmosis_run::{RunError, secrets};
use osmosis_store::RunKind;

use crate::documents::OpenRun;

/// Variables of ours and of providers that end like this hold keys.
const KEY_SUFFIXES: [&str; 5] = ["_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_ACCESS_KEY"];

/// Takes out the values of the secrets that the runs name, as far as this process can have them, and of every
/// variable that holds a key.
pub(super) fn redactor(runs: &[OpenRun], file: Option<&Utf8Path>) -> Result<Redactor, RunError> {
    let mut values = vec![];
    for run in runs {
        let named = secrets_of(run);
        // None is required here: what this process can't know, it can't find in a text either.
        let known = Secrets {
            required: vec![],
            optional: named
                .required
                .iter()
                .chain(&named.optional)
                .cloned()
                .collect(),
        };
        let found = secrets::collect(&known, file)?;
        values.extend(found.into_iter().map(|(_, value)| value));
    }
    for (name, value) in std::env::vars() {
        let is_key = KEY_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
        // Short values would blot out ordinary words.
        if is_key && value.len() >= 8 {
            values.push(value);
        }
    }
    Ok(Redactor::new(values))
}

fn secrets_of(run: &OpenRun) -> Secrets {
    let text = &run.record.config_toml;
    let secrets = match run.record.kind {
        RunKind::Evaluation => {
            EvalConfig::parse("run.toml".into(), text).map(|config| config.secrets)
        }
        RunKind::Training => {
            TrainConfig::parse("run.toml".into(), text).map(|config| config.secrets)
        }
        RunKind::Serving => return Secrets::default(),
    };
    secrets.unwrap_or_default()
}
