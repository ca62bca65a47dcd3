//! Files that a command made, beside those of runs.

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `resource` of `rollout init --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MadeProject {
    /// Its name.
    pub rollout: String,
    #[schemars(with = "String")]
    pub workspace: Utf8PathBuf,
    /// What `eval submit` takes, from the workspace's folder; the paths below are as well.
    pub config: String,
    /// What `train submit` takes.
    pub training_config: String,
    #[schemars(with = "Vec<String>")]
    pub files: Vec<Utf8PathBuf>,
}

/// The `resource` of `man --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WrittenPages {
    /// The folder with the manual pages.
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
}
