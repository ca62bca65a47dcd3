use serde::Serialize;

use super::reader::Reader;
use super::{ConfigProblem, DatasetRef, DatasetRefError, Entrypoint, ModelPath};
use crate::RolloutName;

/// `[experiment]`: what is run, on what, with which model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Experiment {
    pub rollout: RolloutName,
    pub entrypoint: Entrypoint,
    pub model_path: ModelPath,
    pub dataset: DatasetRef,
    /// The branch that HEAD of the workspace's repository must be on.
    pub branch: Option<String>,
    /// The commit that HEAD must be: 7 to 64 lower-case hex digits, a prefix of its name.
    pub commit_sha: Option<String>,
}

const REQUIRED: &[&str] = &["rollout", "entrypoint", "model_path", "dataset"];

pub(super) fn read(reader: &mut Reader<'_>) -> Option<Experiment> {
    let section = reader.section("experiment");
    if !section.present {
        reader.report(
            0,
            ConfigProblem::MissingSection {
                section: "experiment",
                required: REQUIRED,
            },
        );
        return None;
    }
    reader.require(section, "rollout", "\"NAME\"");
    reader.require(section, "entrypoint", "\"main.py\"");
    reader.require(section, "model_path", "\"openai/MODEL\"");
    reader.require(section, "dataset", "\"data/FILE.jsonl\"");

    let rollout = reader.parsed(
        section,
        "rollout",
        |text| RolloutName::new(text),
        |_| Some("name a folder directly below `rollouts/`".to_owned()),
    );
    let entrypoint = reader.parsed(section, "entrypoint", str::parse::<Entrypoint>, |error| {
        Some(error.hint())
    });
    let model_path = reader.parsed(section, "model_path", str::parse::<ModelPath>, |error| {
        Some(error.hint())
    });
    let dataset = reader.parsed(
        section,
        "dataset",
        str::parse::<DatasetRef>,
        DatasetRefError::hint,
    );
    reader.exclude(section, "branch", "commit_sha");
    let branch = reader.parsed(section, "branch", parse_branch, |_| None);
    let commit_sha = reader.parsed(section, "commit_sha", parse_commit, |_| None);

    Some(Experiment {
        rollout: rollout?,
        entrypoint: entrypoint?,
        model_path: model_path?,
        dataset: dataset?,
        branch,
        commit_sha,
    })
}

fn parse_branch(text: &str) -> Result<String, String> {
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("`{}` is no branch name", text.escape_debug()));
    }
    Ok(text.to_owned())
}

fn parse_commit(text: &str) -> Result<String, String> {
    if !(7..=64).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(format!(
            "`{}` is not 7 to 64 hex digits",
            text.escape_debug()
        ));
    }
    Ok(text.to_ascii_lowercase())
}
