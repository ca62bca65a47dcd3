//! What a node has to have of a run beside its record: files by digest, and a manifest of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use osmosis_core::JsonText;
use osmosis_store::{PackageFile, SharedRun};
use serde::{Deserialize, Serialize};

use crate::digested_files::DigestedFile;
use crate::source_digest::bytes_digest;
use crate::{RunError, RunErrorKind};

/// The format of manifests that this program writes.
const FORMAT: u32 = 1;

/// The script that plays the model, when `model_path` is a script.
pub const MODEL_SCRIPT: &str = "model_script";
/// The script that plays the judge, when `judge_model` is a script.
pub const JUDGE_SCRIPT: &str = "judge_script";
/// The chat template of `[experiment]`, as text.
pub const CHAT_TEMPLATE: &str = "chat_template";

/// The indices of the rows that a training holds out, a JSON list.
pub const HELD_OUT_ROWS: &str = "held_out_rows";

/// More than this is no source code.
pub const MOST_BYTES: usize = 256 << 20;

/// The manifest of a run's package, a JSON object in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePackage {
    pub format: u32,
    /// `--seed`: where the random numbers of embedded policies start.
    #[serde(default)]
    pub seed: u64,
    /// The files of a node's workspace, by their path in it.
    #[serde(default)]
    pub files: BTreeMap<String, DigestedFile>,
    /// Other contents by name, each with its SHA-256: scripts, chat templates, tokenizers.
    #[serde(default)]
    pub attachments: BTreeMap<String, String>,
}

/// A package in the making.
#[derive(Debug, Clone, Default)]
pub struct PackageBuilder {
    package: NodePackage,
    contents: BTreeMap<String, Bytes>,
}

impl PackageBuilder {
    pub fn new(seed: u64) -> Self {
        Self {
            package: NodePackage {
                format: FORMAT,
                seed,
                ..NodePackage::default()
            },
            contents: BTreeMap::new(),
        }
    }

    /// Adds a file of the workspace, by its path from the workspace's folder.
    pub fn add_file(&mut self, path: &str, content: Bytes, executable: bool) {
        let sha256 = self.keep(content);
        let packed = DigestedFile { sha256, executable };
        self.package.files.insert(path.to_owned(), packed);
    }

    /// Adds what is no file of the workspace.
    pub fn attach(&mut self, name: &str, content: Bytes) {
        let sha256 = self.keep(content);
        self.package.attachments.insert(name.to_owned(), sha256);
    }

    fn keep(&mut self, content: Bytes) -> String {
        let sha256 = bytes_digest(&content);
        self.contents.insert(sha256.clone(), content);
        sha256
    }

    /// Puts the package into the store.
    pub async fn publish(self, shared: &dyn SharedRun) -> Result<(), RunError> {
        let bytes: usize = self.contents.values().map(Bytes::len).sum();
        if bytes > MOST_BYTES {
            return Err(RunError::failed(
                RunErrorKind::Store,
                format!(
                    "the files that nodes need of this project have {} MB; at most {} MB are kept in the store",
                    bytes >> 20,
                    MOST_BYTES >> 20
                ),
            )
            .hint("list what the agent does not run in the project's `.osmosisignore`"));
        }
        let files = self.contents.into_iter();
        let files = files.map(|(sha256, content)| PackageFile { sha256, content });
        let manifest = JsonText::of(&self.package)
            .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
        shared.put_package(manifest, files.collect()).await?;
        Ok(())
    }
}

impl NodePackage {
    /// Reads a manifest.
    pub fn read(manifest: &JsonText) -> Result<Self, RunError> {
        let damaged = |message: String| RunError::failed(RunErrorKind::RunDamaged, message);
        let package: Self = manifest
            .read()
            .map_err(|error| damaged(format!("the run's package: {error}")))?;
        if package.format != FORMAT {
            return Err(damaged(format!(
                "the run's package has format {}; this program knows {FORMAT}",
                package.format
            ))
            .hint("use the version of osmosis that began the run"));
        }
        Ok(package)
    }

    /// A file or attachment, as it was packed.
    pub async fn content(shared: &dyn SharedRun, sha256: &str) -> Result<Bytes, RunError> {
        let damaged = |message: &str| {
            RunError::failed(
                RunErrorKind::RunDamaged,
                format!("the run's package: {message} `{sha256}`"),
            )
        };
        let content = shared.package_file(sha256).await?;
        let content = content.ok_or_else(|| damaged("there is no file"))?;
        if bytes_digest(&content) != sha256 {
            return Err(damaged("other content than that of"));
        }
        Ok(content)
    }
}
