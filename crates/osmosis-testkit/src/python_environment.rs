//! Python environments with the real agent frameworks, made once per machine and shared by every
//! test and by `cargo xtask ci`.

use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest, Sha256};

/// Written last, so that an interrupted installation is noticed.
const DONE: &str = "complete";

/// The interpreter of an environment that holds what `python/requirements-dev.txt` pins, with the
/// OpenAI Agents SDK. Made on first use below cargo's target folder; other processes wait for it.
pub fn python() -> Utf8PathBuf {
    static PYTHON: OnceLock<Utf8PathBuf> = OnceLock::new();
    made_once(&PYTHON, "test-venv", "requirements-dev.txt")
}

/// Like `python()`, with Strands, as `python/requirements-strands-dev.txt` pins it. The two
/// frameworks can't be installed together.
pub fn strands_python() -> Utf8PathBuf {
    static PYTHON: OnceLock<Utf8PathBuf> = OnceLock::new();
    made_once(&PYTHON, "test-strands-venv", "requirements-strands-dev.txt")
}

/// Like `python()`, with LangChain, PydanticAI and smolagents, as `python/requirements-structured-dev.txt` pins them.
pub fn structured_python() -> Utf8PathBuf {
    static PYTHON: OnceLock<Utf8PathBuf> = OnceLock::new();
    made_once(
        &PYTHON,
        "test-structured-venv",
        "requirements-structured-dev.txt",
    )
}

/// The interpreter beside Ray, as `python/requirements-ray.txt` pins it.
pub fn ray_python() -> Utf8PathBuf {
    static PYTHON: OnceLock<Utf8PathBuf> = OnceLock::new();
    made_once(&PYTHON, "test-ray-venv", "requirements-ray.txt")
}

/// `maturin`, which builds the wheel, as `python/requirements-wheel.txt` pins it.
pub fn maturin() -> Utf8PathBuf {
    static PYTHON: OnceLock<Utf8PathBuf> = OnceLock::new();
    made_once(&PYTHON, "test-wheel-venv", "requirements-wheel.txt").with_file_name("maturin")
}

/// The interpreter beside the tools of `cargo xtask dist`, as `python/requirements-dist.txt` pins them.
pub fn dist_python() -> Utf8PathBuf {
    static PYTHON: OnceLock<Utf8PathBuf> = OnceLock::new();
    made_once(&PYTHON, "dist-venv", "requirements-dist.txt")
}

#[expect(
    clippy::panic,
    reason = "a test without its environment can only fail, with the reason"
)]
fn made_once(made: &'static OnceLock<Utf8PathBuf>, name: &str, requirements: &str) -> Utf8PathBuf {
    made.get_or_init(|| match prepare(name, requirements) {
        Ok(python) => python,
        Err(error) => panic!("no python environment for the tests: {error:#}"),
    })
    .clone()
}

/// Makes the folder `NAME-HASH` below the target folder, unless it is there.
fn prepare(name: &str, requirements: &str) -> Result<Utf8PathBuf> {
    let workspace = Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("this crate has moved out of the workspace")?;
    let requirements = workspace.join("python").join(requirements);
    let pinned = std::fs::read(&requirements).with_context(|| format!("reading {requirements}"))?;
    let (base, version) = base_interpreter()?;

    let mut hasher = Sha256::new();
    hasher.update(&pinned);
    hasher.update(&version);
    hasher.update(&base);
    let hash = format!("{:x}", Bytes::copy_from_slice(&hasher.finalize()[..6]));
    let target = target_folder(workspace);
    let folder = target.join(format!("{name}-{hash}"));
    let python = folder.join("bin").join("python");
    if folder.join(DONE).exists() {
        return Ok(python);
    }

    std::fs::create_dir_all(&target).with_context(|| format!("creating {target}"))?;
    let lock = File::create(target.join(format!("{name}-{hash}.lock")))?;
    lock.lock().context("waiting for another process")?;
    if folder.join(DONE).exists() {
        return Ok(python);
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("removing {folder}"))?;
    }
    if has_uv() {
        run(Command::new("uv").args(["venv", "--no-project", "--python", &base, folder.as_str()]))?;
        run(Command::new("uv")
            .args(["pip", "install", "--python", python.as_str(), "-r"])
            .arg(&requirements))?;
    } else {
        run(Command::new(&base).args(["-m", "venv", folder.as_str()]))?;
        run(Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "-r"])
            .arg(&requirements))?;
    }
    std::fs::write(folder.join(DONE), "").context("marking the environment as complete")?;
    Ok(python)
}

fn target_folder(workspace: &Utf8Path) -> Utf8PathBuf {
    match std::env::var("CARGO_TARGET_DIR") {
        Ok(folder) if !folder.is_empty() => workspace.join(folder),
        Ok(_) | Err(_) => workspace.join("target"),
    }
}

/// The first `python` in `PATH` that our SDK supports, and its version.
pub fn base_interpreter() -> Result<(String, String)> {
    let question = "import sys; print(getattr(sys, '_base_executable', None) or sys.executable); \
        print(sys.version); sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))";
    for name in [
        "python3",
        "python",
        "python3.13",
        "python3.12",
        "python3.11",
        "python3.10",
    ] {
        let answer = Command::new(name)
            .args(["-c", question])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let Ok(answer) = answer else { continue };
        if !answer.status.success() {
            continue;
        }
        let text = String::from_utf8(answer.stdout).context("an answer that is no text")?;
        if let Some((executable, version)) = text.split_once('\n') {
            return Ok((executable.to_owned(), version.trim().to_owned()));
        }
    }
    bail!("no python 3.10 to 3.13 in `PATH`")
}

fn has_uv() -> bool {
    Command::new("uv")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs a program to its end; an error with what it printed when it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .env_remove("VIRTUAL_ENV")
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}):\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
