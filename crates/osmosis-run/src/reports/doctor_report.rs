//! What `osmosis doctor` found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `data` of `doctor --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// Whether every finding is.
    pub ok: bool,
    pub findings: Vec<DoctorFinding>,
    /// What `model_path` or `--model` can name here without further preparation.
    pub models: Vec<ReadyModel>,
}

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorFinding {
    /// `workspace`, `rollout hello`, …
    pub name: String,
    /// Runs are possible as far as this is concerned.
    pub ok: bool,
    pub text: String,
    pub hint: Option<String>,
    /// What `doctor --fix` would do about it; `null` when there is nothing to do, or it was done.
    pub fix: Option<String>,
}

impl DoctorFinding {
    pub(crate) fn good(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ok: true,
            text: text.into(),
            hint: None,
            fix: None,
        }
    }

    pub(crate) fn bad(
        name: impl Into<String>,
        text: impl Into<String>,
        hint: Option<String>,
    ) -> Self {
        Self {
            ok: false,
            hint,
            ..Self::good(name, text)
        }
    }
}

/// A model that can be named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadyModel {
    /// As `model_path` names it; `MODEL` stands for a name of the server's.
    pub model: String,
    pub kind: ReadyModelKind,
    /// Where it comes from. Never the value of a variable.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadyModelKind {
    Builtin,
    /// A scripted policy of the workspace.
    Script,
    /// A checkpoint of a training run.
    Run,
    /// A checkpoint folder of the workspace.
    Folder,
    /// A GGUF file of the workspace.
    Gguf,
    /// A model server, by variables of the environment.
    Server,
}
