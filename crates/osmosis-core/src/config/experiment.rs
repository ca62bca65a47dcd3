use camino::Utf8PathBuf;
use serde::Serialize;

use super::reader::Reader;
use super::section::Section;
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
    /// A chat template that is used instead of the model's own; a path from the workspace.
    pub chat_template: Option<Utf8PathBuf>,
    /// How tools are written into prompts, where the chat template is not to do it.
    pub tool_format: Option<ToolFormat>,
}

/// `tool_format`: a way to offer tools that needs no support by the chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFormat {
    /// Tools as JSON between `<tools>` tags in the system message, calls between `<tool_call>` tags, results
    /// between `<tool_response>` tags.
    Hermes,
}

impl ToolFormat {
    /// By the words of configs and arguments.
    pub const NAMED: &[(&str, Self)] = &[("hermes", Self::Hermes)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
        }
    }
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
    let (chat_template, tool_format) = read_chat(reader, section);
    if let Some(ModelPath::Script(_)) = model_path {
        refuse_for_script(reader, section);
    }

    Some(Experiment {
        rollout: rollout?,
        entrypoint: entrypoint?,
        model_path: model_path?,
        dataset: dataset?,
        branch,
        commit_sha,
        chat_template,
        tool_format,
    })
}

/// How a model is talked to, where it is not left to the model.
pub(super) fn read_chat<'d>(
    reader: &mut Reader<'d>,
    section: Section<'d>,
) -> (Option<Utf8PathBuf>, Option<ToolFormat>) {
    let chat_template = reader.parsed(section, "chat_template", parse_template, |_| {
        Some("name a file from the workspace, like `templates/chat.jinja`".to_owned())
    });
    let tool_format = reader.parsed(section, "tool_format", parse_tool_format, |_| {
        Some("write `hermes`".to_owned())
    });
    (chat_template, tool_format)
}

/// A scripted policy has no prompts, so these keys would change nothing.
fn refuse_for_script<'d>(reader: &mut Reader<'d>, section: Section<'d>) {
    for key in ["chat_template", "tool_format"] {
        if let Some(entry) = section.entry(key) {
            let problem = ConfigProblem::Unusable {
                section: "experiment",
                key: key.to_owned(),
                message: "a scripted policy renders no prompts".to_owned(),
                suggestion: Some("remove it, or set another `model_path`".to_owned()),
            };
            reader.report(entry.key_offset, problem);
        }
    }
}

fn parse_template(text: &str) -> Result<Utf8PathBuf, String> {
    if text.contains('\0') || text.ends_with('/') {
        return Err(format!("`{}` is not a file name", text.escape_debug()));
    }
    Ok(Utf8PathBuf::from(text))
}

fn parse_tool_format(text: &str) -> Result<ToolFormat, String> {
    let named = ToolFormat::NAMED.iter().find(|(word, _)| *word == text);
    named
        .map(|(_, format)| *format)
        .ok_or_else(|| format!("unknown tool format `{}`", text.escape_debug()))
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
