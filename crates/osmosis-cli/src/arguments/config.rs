//! Where the keys of a config come from: its file, and flags that set keys beside it.

use camino::Utf8PathBuf;
use clap::Args;
use osmosis_core::config::{ConfigSource, Override};
use osmosis_run::RunError;

use crate::workspace::read_config;

/// The entrypoint of a run without a config file.
const DEFAULT_ENTRYPOINT: &str = "main.py";

/// A config file, flags for its required keys, and `--set` for every other.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConfigArguments {
    /// Config file (TOML); not needed with --rollout, --dataset and --model
    #[arg(
        value_name = "CFG",
        required_unless_present_any = ["rollout", "dataset", "model", "settings"]
    )]
    pub(crate) config: Option<Utf8PathBuf>,

    /// Project to run: a folder below `rollouts/` [overrides `rollout` of the config]
    #[arg(long, value_name = "NAME")]
    pub(crate) rollout: Option<String>,

    /// File of the project with the workflow [overrides `entrypoint`; without a config: main.py]
    #[arg(long, value_name = "FILE")]
    pub(crate) entrypoint: Option<String>,

    /// Dataset, as a path from the workspace or a name in `data/` [overrides `dataset`]
    #[arg(long, value_name = "FILE")]
    pub(crate) dataset: Option<String>,

    /// Set any key of the config: `evaluation.pass_threshold=0.5`, `workflow.style=short`. VALUE is
    /// written as in TOML, and a bare word is a string; may be repeated
    #[arg(
        id = "settings",
        long = "set",
        value_name = "SECTION.KEY=VALUE",
        value_parser = parse_setting
    )]
    pub(crate) settings: Vec<Override>,
}

impl ConfigArguments {
    /// The config with these flags and `more` set beside it.
    pub(crate) fn source(&self, more: Vec<Override>) -> Result<ConfigSource, RunError> {
        let mut source = match &self.config {
            Some(file) => {
                let (path, text) = read_config(file)?;
                ConfigSource::of_file(path, text)
            }
            None => ConfigSource::default(),
        };
        let entrypoint = self.entrypoint.as_deref();
        let is_set = |key: &str| self.settings.iter().any(|one| one.sets("experiment", key));
        let entrypoint = match entrypoint {
            None if self.config.is_none() && !is_set("entrypoint") => Some(DEFAULT_ENTRYPOINT),
            given => given,
        };
        let flags = [
            ("--rollout", "rollout", self.rollout.as_deref()),
            ("--entrypoint", "entrypoint", entrypoint),
            ("--dataset", "dataset", self.dataset.as_deref()),
        ];
        for (flag, key, value) in flags {
            if let Some(value) = value {
                let setting = Override::by_flag(flag, value, ("experiment", key), value);
                source.overrides.push(setting);
            }
        }
        source.overrides.extend(more);
        source.overrides.extend(self.settings.iter().cloned());
        Ok(source)
    }

    /// What messages call the config.
    pub(crate) fn place(&self) -> &str {
        self.config
            .as_deref()
            .map_or("the command line", |file| file.as_str())
    }
}

/// `--model`, as a setting.
pub(crate) fn model_setting(model: &str) -> Override {
    Override::by_flag("--model", model, ("experiment", "model_path"), model)
}

/// A flag whose value is a number, as a setting.
pub(crate) fn number_setting(
    flag: &str,
    key: (&str, &str),
    number: Option<u64>,
) -> Option<Override> {
    let number = number?;
    // Larger ones are no TOML integers; no run has as many of anything.
    let value = i64::try_from(number).unwrap_or(i64::MAX);
    Some(Override::by_flag(flag, number, key, value))
}

pub(crate) fn parse_setting(text: &str) -> Result<Override, String> {
    Override::parse(text).map_err(|error| format!("{error}; {}", error.hint()))
}
