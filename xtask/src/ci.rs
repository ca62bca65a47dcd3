//! `cargo xtask ci`: the README's test command.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;

type Step = (&'static str, fn(&Utf8Path) -> Result<()>);

const STEPS: [Step; 16] = [
    ("rust format", |root| {
        cargo(root, &["fmt", "--all", "--check"])
    }),
    ("dependency direction", |_| crate::direction::check()),
    ("dependency licences", |_| crate::licences::check()),
    ("dependency upkeep", |_| crate::dependencies::check()),
    ("rust lints", |root| {
        cargo(
            root,
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "-D",
                "warnings",
            ],
        )
    }),
    ("python environment", |_| {
        python_environment::python();
        Ok(())
    }),
    ("python direction", |_| crate::python_direction::check()),
    ("python format", |root| {
        python(root, &["-m", "ruff", "format", "--check", "."])
    }),
    ("python lints", |root| {
        python(root, &["-m", "ruff", "check", "."])
    }),
    ("python types", |root| python(root, &["-m", "mypy"])),
    ("python tests", |root| python(root, &["-m", "pytest", "-q"])),
    ("strands tests", strands_tests),
    ("rust build", |root| {
        cargo(root, &["build", "--workspace", "--all-targets", "--locked"])
    }),
    ("rust tests", rust_tests),
    ("rust doc tests", |root| {
        cargo(root, &["test", "--workspace", "--doc", "--locked"])
    }),
    ("torture", |_| {
        crate::torture::run(&crate::torture::Options::short())
    }),
];

#[expect(
    clippy::print_stdout,
    reason = "a command line program reports to the terminal"
)]
pub(crate) fn run(only: Option<&str>) -> Result<()> {
    let root = root()?;
    let began = Instant::now();
    let mut times: Vec<(&str, Duration)> = vec![];
    for (name, step) in STEPS {
        if only.is_some_and(|text| !name.contains(text)) {
            continue;
        }
        println!("\n== {name}");
        let start = Instant::now();
        step(&root).with_context(|| format!("step `{name}`"))?;
        times.push((name, start.elapsed()));
    }
    if times.is_empty() {
        bail!(
            "no step has a name that contains `{}`",
            only.unwrap_or_default()
        );
    }
    println!("\n== all {} steps passed", times.len());
    for (name, time) in times {
        println!("{:>7.1} s  {name}", time.as_secs_f64());
    }
    println!("{:>7.1} s  in all", began.elapsed().as_secs_f64());
    Ok(())
}

pub(crate) fn root() -> Result<Utf8PathBuf> {
    let here = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .map(Utf8Path::to_owned)
        .context("xtask has no parent folder")
}

/// With nextest when it is installed, which runs each test in a process of its own.
#[expect(
    clippy::print_stdout,
    reason = "a command line program reports to the terminal"
)]
fn rust_tests(root: &Utf8Path) -> Result<()> {
    let nextest = Command::new("cargo")
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    if nextest {
        return cargo(root, &["nextest", "run", "--workspace", "--locked"]);
    }
    println!("cargo-nextest is not installed: using cargo test");
    cargo(root, &["test", "--workspace", "--all-targets", "--locked"])
}

pub(crate) fn cargo(root: &Utf8Path, arguments: &[&str]) -> Result<()> {
    command(Command::new("cargo").current_dir(root).args(arguments))
}

fn python(root: &Utf8Path, arguments: &[&str]) -> Result<()> {
    command(
        Command::new(python_environment::python())
            .current_dir(root.join("python"))
            .args(arguments),
    )
}

/// What the other environment, which has no Strands, can't check.
fn strands_tests(root: &Utf8Path) -> Result<()> {
    let python = python_environment::strands_python();
    let files = [
        "tests/test_contract.py",
        "tests/test_strands.py",
        "tests/test_troubleshooting.py",
        "tests/test_worker_strands.py",
    ];
    let run = |arguments: &[&str]| {
        command(
            Command::new(&python)
                .current_dir(root.join("python"))
                .args(arguments),
        )
    };
    run(&["-m", "mypy"])?;
    run(&[&["-m", "pytest", "-q"], &files[..]].concat())
}

pub(crate) fn command(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{} could not be started", command.get_program().display()))?;
    if !status.success() {
        bail!("{} {}", command.get_program().display(), status);
    }
    Ok(())
}
