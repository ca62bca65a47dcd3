//! `train sft`: training on conversations that are written down.

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;

use super::experiment::{self, ToolFormat};
use super::logs::{self, LogLimits};
use super::range::NumberRange;
use super::reader::{self, Reader};
use super::training::{self, Checkpoints, HeldOut};
use super::{
    ConfigErrors, ConfigKind, ConfigProblem, ConfigSource, DatasetRef, DatasetRefError, ModelPath,
};

/// `configs/sft/*.toml`, checked.
///
/// Serialises with every default filled in, so that a resumed run can be compared key by key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SupervisedConfig {
    pub experiment: SupervisedExperiment,
    pub sft: Supervised,
    pub checkpoints: Checkpoints,
    /// `[logs]`: no part of what a run is, so a resume may change it.
    #[serde(skip)]
    pub logs: LogLimits,
}

/// `[experiment]`: which model learns, and from what.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SupervisedExperiment {
    pub model_path: ModelPath,
    pub dataset: DatasetRef,
    /// A chat template that is used instead of the model's own; a path from the workspace.
    pub chat_template: Option<Utf8PathBuf>,
    pub tool_format: Option<ToolFormat>,
}

/// `[sft]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Supervised {
    pub lr: f64,
    pub total_epochs: u32,
    /// Train this many steps, whatever `total_epochs` says.
    pub steps: Option<u64>,
    /// Conversations per step.
    pub batch_size: u32,
    pub seed: Option<u64>,
    /// What the loss is measured on while it trains.
    pub held_out: Option<HeldOut>,
}

impl Default for Supervised {
    fn default() -> Self {
        Self {
            lr: 1e-5,
            total_epochs: 1,
            steps: None,
            batch_size: 16,
            seed: None,
            held_out: None,
        }
    }
}

impl SupervisedConfig {
    /// Checks a config with the keys that are set beside its file.
    pub fn of(source: &ConfigSource) -> Result<Self, ConfigErrors> {
        source.check(ConfigKind::Supervised, Self::parse)
    }

    /// Whether a text is such a config, sound or not.
    pub fn is_meant(text: &str) -> bool {
        let document = reader::parse(Utf8Path::new("run.toml"), text);
        document.is_ok_and(|document| document.contains_key(ConfigKind::Supervised.section()))
    }

    /// Checks the text of a config. `file` is only named in messages.
    pub fn parse(file: &Utf8Path, text: &str) -> Result<Self, ConfigErrors> {
        let document = reader::parse(file, text)?;
        let mut reader = Reader::new(file, text, &document, ConfigKind::Supervised)?;
        let experiment = read_experiment(&mut reader);
        let sft = read(&mut reader);
        let checkpoints = training::read_checkpoints(&mut reader);
        let logs = logs::read(&mut reader);
        reader.finish(experiment, |experiment| Self {
            experiment,
            sft,
            checkpoints,
            logs,
        })
    }
}

fn read_experiment(reader: &mut Reader<'_>) -> Option<SupervisedExperiment> {
    let section = reader.section("experiment");
    if !section.present {
        let problem = ConfigProblem::MissingSection {
            section: "experiment",
            required: &["model_path", "dataset"],
        };
        reader.report(0, problem);
        return None;
    }
    reader.require(section, "model_path", "\"builtin/tiny\"");
    reader.require(section, "dataset", "\"data/FILE.jsonl\"");
    for key in ["rollout", "entrypoint", "branch", "commit_sha"] {
        if let Some(entry) = section.entry(key) {
            let problem = ConfigProblem::Unusable {
                section: section.name,
                key: key.to_owned(),
                message: "supervised training runs no code of a project".to_owned(),
                suggestion: Some("leave it out".to_owned()),
            };
            reader.report(entry.key_offset, problem);
        }
    }
    let model_path = reader.parsed(section, "model_path", str::parse::<ModelPath>, |error| {
        Some(error.hint())
    });
    let dataset = reader.parsed(
        section,
        "dataset",
        str::parse::<DatasetRef>,
        DatasetRefError::hint,
    );
    let (chat_template, tool_format) = experiment::read_chat(reader, section);
    Some(SupervisedExperiment {
        model_path: model_path?,
        dataset: dataset?,
        chat_template,
        tool_format,
    })
}

fn read(reader: &mut Reader<'_>) -> Supervised {
    let section = reader.section("sft");
    let default = Supervised::default();
    reader.exclude(section, "eval_dataset", "eval_fraction");
    let dataset = reader.parsed(
        section,
        "eval_dataset",
        str::parse::<DatasetRef>,
        DatasetRefError::hint,
    );
    let fraction = reader.number(section, "eval_fraction", NumberRange::TRUE_SHARE);
    Supervised {
        lr: reader
            .number(section, "lr", NumberRange::POSITIVE)
            .unwrap_or(default.lr),
        total_epochs: reader
            .small_integer(section, "total_epochs", 1)
            .unwrap_or(default.total_epochs),
        steps: reader.integer(section, "steps", 1..=u64::MAX),
        batch_size: reader
            .small_integer(section, "batch_size", 1)
            .unwrap_or(default.batch_size),
        seed: reader.integer(section, "seed", 0..=u64::MAX),
        held_out: dataset
            .map(HeldOut::Dataset)
            .or(fraction.map(HeldOut::Fraction)),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn errors(text: &str) -> String {
        SupervisedConfig::parse("sft.toml".into(), text)
            .expect_err("the config was accepted")
            .render()
    }

    #[test]
    fn a_minimal_config_has_every_default() {
        let text = "[experiment]\nmodel_path = 'builtin/tiny'\ndataset = 'talks'\n[sft]\n";
        let config = SupervisedConfig::parse("sft.toml".into(), text).unwrap();
        assert_eq!(config.sft, Supervised::default());
        assert!(SupervisedConfig::is_meant(text));
        assert!(!SupervisedConfig::is_meant("[training]\n"));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        assert_snapshot!(errors("[experiment]\nmodel_path = 'builtin/tiny'\nrollout = 'a'\n[sft]\nlr = 0\nn = 3\n"), @r#"
        sft.toml:1:1: missing key `dataset` in `[experiment]`
          hint: add `dataset = "data/FILE.jsonl"` to `[experiment]`
        sft.toml:3:1: `rollout` in `[experiment]`: supervised training runs no code of a project
          hint: leave it out
        sft.toml:5:6: `lr` in `[sft]` must be more than 0 and finite, not `0`
        sft.toml:6:1: unknown key `n` in `[sft]`
          hint: `n` belongs in `[evaluation]` of an evaluation config
        "#);
        assert_snapshot!(errors("[experiment]\n[training]\n"), @r"
        sft.toml:2:1: this is a training config: it has `[training]` and no `[sft]`
          hint: use `osmosis train submit`
        ");
    }
}
