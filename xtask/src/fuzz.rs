//! `cargo xtask fuzz`: builds the programs of `fuzz/` and runs each of them for a while.
//!
//! They are built by the stable compiler with the coverage instrumentation of LLVM, as `cargo fuzz` does with
//! `-s none`; nothing else has to be installed than a C++ compiler for libFuzzer.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};

use crate::ci::{command, root};

/// Counters at every edge, and what comparisons compare.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// The longest input; the largest seed is a parquet file of 14 kB.
const MAX_BYTES: usize = 16 << 10;

/// An input that takes more memory or time than this is a crash.
const MAX_MEBIBYTES: u32 = 2048;
const MAX_SECONDS: u32 = 20;

/// A folder that is in memory, where there is one.
const MEMORY_FOLDER: &str = "/dev/shm";

/// What one program did.
struct Ran {
    name: String,
    executions: u64,
    took: Duration,
    mebibytes: u64,
    corpus: usize,
    crashes: Vec<Utf8PathBuf>,
    failed: bool,
}

#[expect(
    clippy::print_stdout,
    reason = "a command line program reports to the terminal"
)]
pub(crate) fn run(minutes_each: f64, only: Option<&str>, build_only: bool) -> Result<()> {
    let root = root()?.join("fuzz");
    let names = targets(&root, only)?;
    let programs = build(&root, &names)?;
    if build_only {
        return Ok(());
    }
    let seconds = (minutes_each * 60.0).round().max(1.0);
    let mut all = vec![];
    for name in names {
        println!("\n== {name}");
        let ran = fuzz(&root, &programs, name, seconds)?;
        all.push(ran);
    }
    println!("\n| target | executions | seconds | executions/s | MiB at most | corpus | crashes |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for ran in &all {
        let seconds = ran.took.as_secs_f64();
        println!(
            "| {} | {} | {seconds:.0} | {:.0} | {} | {} | {} |",
            ran.name,
            ran.executions,
            ran.executions as f64 / seconds.max(0.001),
            ran.mebibytes,
            ran.corpus,
            ran.crashes.len()
        );
    }
    let bad: Vec<&Ran> = all
        .iter()
        .filter(|ran| ran.failed || !ran.crashes.is_empty())
        .collect();
    if bad.is_empty() {
        return Ok(());
    }
    for ran in &bad {
        for crash in &ran.crashes {
            println!("{}: {crash}", ran.name);
        }
    }
    bail!("{} of {} programs found something", bad.len(), all.len())
}

/// The programs whose name contains `only`.
fn targets(root: &Utf8Path, only: Option<&str>) -> Result<Vec<String>> {
    let mut names = vec![];
    for entry in root.join("fuzz_targets").read_dir_utf8()? {
        let entry = entry?;
        if let Some(name) = entry.file_name().strip_suffix(".rs")
            && only.is_none_or(|text| name.contains(text))
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    if names.is_empty() {
        bail!(
            "no program has a name that contains `{}`",
            only.unwrap_or_default()
        );
    }
    Ok(names)
}

/// Builds the programs; the folder they are in.
fn build(root: &Utf8Path, names: &[String]) -> Result<Utf8PathBuf> {
    // The versions that the workspace has: what is fuzzed is what is shipped.
    let lock = root.join("Cargo.lock");
    if !lock.exists() {
        fs::copy(root.join("../Cargo.lock"), &lock).context("Cargo.lock of the workspace")?;
    }
    let host = host()?;
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(root)
        // With a target named, the flags are for the programs and not for what builds them.
        .args(["build", "--release", "--target", &host])
        .env("RUSTFLAGS", FLAGS);
    for name in names {
        cargo.args(["--bin", name]);
    }
    command(&mut cargo)?;
    Ok(root.join("target").join(host).join("release"))
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc does not name its host")
}

fn fuzz(root: &Utf8Path, programs: &Utf8Path, name: String, seconds: f64) -> Result<Ran> {
    let corpus = root.join("corpus").join(&name);
    let artifacts = root.join("artifacts").join(&name);
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder)?;
    }
    let before = files(&artifacts)?;
    let began = Instant::now();
    let mut program = Command::new(programs.join(&name));
    // Some write their input to a file first, thousands of times a second.
    if Utf8Path::new(MEMORY_FOLDER).is_dir() {
        program.env("TMPDIR", MEMORY_FOLDER);
    }
    let output = program
        .current_dir(root)
        .args([corpus.as_str(), root.join("seeds").join(&name).as_str()])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={MAX_BYTES}"))
        .arg(format!("-rss_limit_mb={MAX_MEBIBYTES}"))
        .arg(format!("-timeout={MAX_SECONDS}"))
        .arg(format!("-artifact_prefix={artifacts}/"))
        .args(["-dict=words.dict", "-print_final_stats=1", "-verbosity=1"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{name} could not be started"))?;
    let took = began.elapsed();
    let text = String::from_utf8_lossy(&output.stderr);
    let stat = |key: &str| {
        let line = text.lines().rev().find(|line| line.contains(key))?;
        line.rsplit(' ').next()?.trim().parse::<u64>().ok()
    };
    let crashes: Vec<Utf8PathBuf> = files(&artifacts)?
        .into_iter()
        .filter(|file| !before.contains(file))
        .collect();
    if !output.status.success() {
        show_end(&text);
    }
    Ok(Ran {
        executions: stat("stat::number_of_executed_units").unwrap_or(0),
        mebibytes: stat("stat::peak_rss_mb").unwrap_or(0),
        corpus: files(&corpus)?.len(),
        failed: !output.status.success(),
        name,
        took,
        crashes,
    })
}

/// What the program said last: the panic and where it came from.
#[expect(
    clippy::print_stdout,
    reason = "a command line program reports to the terminal"
)]
fn show_end(text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(60)..] {
        println!("{line}");
    }
}

fn files(folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>> {
    let mut files = vec![];
    for entry in folder.read_dir_utf8()? {
        files.push(entry?.path().to_owned());
    }
    Ok(files)
}
