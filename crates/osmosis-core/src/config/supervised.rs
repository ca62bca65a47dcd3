//! `train sft`: training on conversations that are written down.

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;

use super::experiment::{self, ToolFormat};
use super::logs::{self, LogLimits};
use super::lora::{self, Lora};
use super::range::NumberRange;
use super::reader::{self, Reader};
use super::training::{self, Checkpoints, HeldOut};
use super::{
    ConfigErrors, ConfigKind, ConfigProblem, ConfigSource, DatasetRef, DatasetRefError, ModelPath,
};

const LORA: &str = "sft.lora";

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
    /// `[sft.lora]`. Left out of what a run is pinned to when there is none: runs from before there was this resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
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
            lora: None,
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
        refuse_best_without_held_out(&mut reader, &sft);
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
    let lora = lora::read(reader, LORA);
    lora::refuse_dropout(reader, LORA, lora.as_ref());
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
        held_out: HeldOut::read(reader, section),
        lora,
    }
}

/// The best checkpoint is the one with the lowest held-out loss, so it needs one.
fn refuse_best_without_held_out(reader: &mut Reader<'_>, sft: &Supervised) {
    const KEY: &str = "keep_best";
    let section = reader.section("checkpoints");
    if let (None, Some(entry)) = (&sft.held_out, section.entry(KEY)) {
        let problem = ConfigProblem::Unusable {
            section: section.name,
            key: KEY.to_owned(),
            message: "the best checkpoint has the lowest held-out loss, and nothing is held out"
                .to_owned(),
            suggestion: Some(
                "set `eval_dataset` or `eval_fraction` in `[sft]`, or use `keep_last`".to_owned(),
            ),
        };
        reader.report(entry.key_offset, problem);
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::config::{LoraBase, LoraModule};

    fn errors(text: &str) -> String {
        SupervisedConfig::parse("sft.toml".into(), text)
            .expect_err("the config was accepted")
            .render()
    }

    fn config(more: &str) -> String {
        format!("[experiment]\nmodel_path = 'builtin/tiny'\ndataset = 'talks'\n{more}")
    }

    fn parsed(more: &str) -> SupervisedConfig {
        SupervisedConfig::parse("sft.toml".into(), &config(more)).unwrap()
    }

    #[test]
    fn a_minimal_config_has_every_default() {
        assert_eq!(parsed("[sft]\n").sft, Supervised::default());
        assert!(SupervisedConfig::is_meant(&config("[sft]\n")));
        assert!(!SupervisedConfig::is_meant("[training]\n"));
    }

    #[test]
    fn adapters_are_those_of_other_trainings() {
        let lora = parsed("[sft.lora]\n").sft.lora.unwrap();
        assert_eq!(lora, Lora::default());
        let text = "[sft]\nlr = 1e-4\n[sft.lora]\nrank = 4\nalpha = 8\ntarget_modules = ['q_proj']\ndropout = 0\nbase = 'q8_0'\n";
        let lora = parsed(text).sft.lora.unwrap();
        assert_eq!((lora.rank, lora.scale(), lora.base), (4, 2.0, LoraBase::Q8));
        assert_eq!(lora.target_modules, [LoraModule::QProj]);
    }

    #[test]
    fn adapters_that_make_no_sense_are_refused_with_their_place() {
        assert_snapshot!(errors(&config("[sft.lora]\nrank = 0\ntarget_modules = ['lm_head']\ndropout = 0.1\nbase = 'q4'\nlr = 1\n")), @r"
        sft.toml:5:8: `rank` in `[sft.lora]` must be at least 1, not `0`
        sft.toml:6:19: `target_modules` in `[sft.lora]`: there is no module `lm_head`
          hint: choose from `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj` and `down_proj`
        sft.toml:7:11: `dropout` in `[sft.lora]`: embedded models are trained without dropout
          hint: write `dropout = 0`, or remove the key
        sft.toml:8:8: `base` in `[sft.lora]`: unknown value `q4`
          hint: write `f32`, `bf16` or `q8_0`
        sft.toml:9:1: unknown key `lr` in `[sft.lora]`
          hint: `lr` belongs in `[sft]`
        ");
        // Where the other kind of training has it.
        assert_snapshot!(errors(&config("[sft]\nrank = 4\n[training.lora]\nrank = 4\n")), @r"
        sft.toml:5:1: unknown key `rank` in `[sft]`
          hint: `rank` belongs in `[sft.lora]`
        sft.toml:6:2: unknown section `[training.lora]`
          hint: in a config of supervised training it is `[sft.lora]`
        ");
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
        assert_snapshot!(errors(&config("[sft]\n[checkpoints]\nkeep_last = 2\nkeep_best = 1\n")), @r"
        sft.toml:7:1: `keep_best` in `[checkpoints]`: the best checkpoint has the lowest held-out loss, and nothing is held out
          hint: set `eval_dataset` or `eval_fraction` in `[sft]`, or use `keep_last`
        ");
        assert_snapshot!(errors("[experiment]\n[training]\n"), @r"
        sft.toml:2:1: this is a training config: it has `[training]` and no `[sft]`
          hint: use `osmosis train submit`
        ");
    }
}
