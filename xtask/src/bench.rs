//! `cargo xtask bench NAME`: measures the program as it is published, and says what was measured where.

use std::fmt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use camino::Utf8Path;
use osmosis_testkit::python_environment;

use crate::ci::{cargo, command, root};
use crate::dist::PUBLISHED;

/// The one that measures no program, but the statistics: `docs/compare.md` has its table.
const VERDICTS: &str = "verdicts";

/// What a program is asked for when it prints its tables as markdown.
const MARKDOWN: &str = "--markdown";

#[expect(
    clippy::print_stdout,
    reason = "a command line program reports to the terminal"
)]
pub(crate) fn run(name: &str, markdown: bool, arguments: &[String]) -> Result<()> {
    let root = root()?;
    if name == VERDICTS {
        return verdicts(&root, arguments);
    }
    let program = root.join("benches").join(format!("{name}.py"));
    if !program.is_file() {
        bail!("`{program}` is not there; `benches/` holds the programs");
    }
    cargo(
        &root,
        &[&["build", "--profile", "dist", "--locked"], &PUBLISHED[..]].concat(),
    )?;
    let target =
        std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| root.join("target").to_string());
    let mut measure = Command::new(python_environment::python());
    measure
        .arg(&program)
        .args(["--osmosis", &format!("{target}/dist/osmosis")])
        .args(arguments);
    if !markdown {
        return command(&mut measure);
    }
    println!("{}\n", Provenance::here(&root)?);
    println!(
        "`cargo xtask bench {name}{}{}`:\n",
        if arguments.is_empty() { "" } else { " -- " },
        arguments.join(" ")
    );
    // Others print for people; their text is shown as it is.
    let prints_markdown = std::fs::read_to_string(&program)?.contains(&format!("\"{MARKDOWN}\""));
    if prints_markdown {
        return command(measure.arg(MARKDOWN));
    }
    println!("```text");
    let measured = command(&mut measure);
    println!("```");
    measured
}

/// Simulates comparisons of equal policies, and writes how often they get a verdict into the documentation.
fn verdicts(root: &Utf8Path, arguments: &[String]) -> Result<()> {
    let example = "run --release --locked -p osmosis-core --example verdicts --";
    let mut line: Vec<&str> = example.split(' ').collect();
    line.extend(arguments.iter().map(String::as_str));
    line.push("docs/compare.md");
    cargo(root, &line)
}

/// Where numbers come from. A table without it can't be compared with anything.
#[derive(Debug)]
struct Provenance {
    processor: String,
    cores: usize,
    commit: String,
    dirty: bool,
    date: String,
}

impl Provenance {
    fn here(root: &Utf8Path) -> Result<Self> {
        let said = |program: &str, arguments: &[&str]| {
            let output = Command::new(program)
                .current_dir(root)
                .args(arguments)
                .output();
            let output = output.with_context(|| format!("`{program}` can't be run"))?;
            if !output.status.success() {
                bail!("`{program} {}` failed", arguments.join(" "));
            }
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Ok(Self {
            processor: model(&processors).unwrap_or_else(|| "unknown CPU".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            commit: said("git", &["rev-parse", "--short=10", "HEAD"])?,
            dirty: !said("git", &["status", "--porcelain"])?.is_empty(),
            date: said("date", &["-u", "+%Y-%m-%d"])?,
        })
    }
}

/// The first processor's, as Linux tells it. Virtual machines often leave the name vague.
fn model(processors: &str) -> Option<String> {
    let value = |wanted: &str| {
        processors
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim() == wanted)
            .map(|(_, value)| value.trim())
    };
    let name = value("model name")?;
    let number = |name| value(name).unwrap_or("?");
    Some(format!(
        "{name} (family {}, model {})",
        number("cpu family"),
        number("model")
    ))
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            processor,
            cores,
            commit,
            dirty,
            date,
        } = self;
        let changed = if *dirty { " with changes" } else { "" };
        write!(
            f,
            "*{processor}, {cores} cores; commit {commit}{changed}; {date}.*"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_processor_commit_and_date() {
        let told = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: A CPU\n\nmodel name\t: B\n";
        let of = |dirty| Provenance {
            processor: model(told).unwrap(),
            cores: 2,
            commit: "0123456789".to_owned(),
            dirty,
            date: "2026-11-17".to_owned(),
        };
        assert_eq!(
            of(false).to_string(),
            "*A CPU (family 25, model 1), 2 cores; commit 0123456789; 2026-11-17.*"
        );
        assert!(of(true).to_string().contains("0123456789 with changes;"));
        assert_eq!(model("flags: sse2"), None);
    }
}
