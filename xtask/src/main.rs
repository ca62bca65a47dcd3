//! `cargo xtask`: what developers of this repository run. Users never need it.

mod bench;
mod ci;
mod dependencies;
mod direction;
mod dist;
mod fuzz;
mod licences;
mod python_direction;
mod tiny;
mod torch;
mod torture;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every check: formatting, lints, tests of Rust and Python, dependency rules
    #[command(
        after_help = "Example:\n  cargo xtask ci\n  cargo xtask ci --only python\n  cargo xtask ci --quick\n\nWith --quick: formatting, dependency rules, lints of the crates that changed and of those that build on\nthem, unit tests of the crates that changed (no test that starts a process), and Python's linters."
    )]
    Ci {
        /// Only the steps whose name contains this text
        #[arg(long)]
        only: Option<String>,
        /// Only what changed since the branch left `--base`, and only what takes seconds
        #[arg(long)]
        quick: bool,
        /// With `--quick`: the branch to compare with; uncommitted files count as changed
        #[arg(long, value_name = "REV", default_value = "main", requires = "quick")]
        base: String,
    },
    /// Build as for a release (profile `dist`) and run a program of `benches/`
    #[command(
        after_help = "Example:\n  cargo xtask bench verdicts\n\n`verdicts` is no program of `benches/`: it simulates comparisons of equal policies and writes its table into\ndocs/compare.md. An argument sets the pairs of runs per cell (1000)."
    )]
    Bench {
        /// Its name, without `.py`
        name: String,
        /// Print CPU, commit and date first, and tables as markdown, for `docs/benchmarks.md`
        #[arg(long)]
        markdown: bool,
        /// Arguments for the program
        arguments: Vec<String>,
    },
    /// Check that dependencies between our crates, and between our Python modules, point one way
    Direction,
    /// Check that no dependency is unmaintained, or there twice without a reason
    Dependencies,
    /// Check licences and sources of all dependencies
    Licences,
    /// Make the files of a release: wheel, archive, debug information, bill of materials, checksums
    #[command(
        after_help = "Example:\n  cargo xtask dist\n  cargo xtask dist --native --out /tmp/dist\n\nThe wheel runs on every Linux with the glibc of `--glibc` or a newer one; zig, which is installed with it, links\nagainst that version. Needs `objcopy` and GNU `tar`."
    )]
    Dist(dist::Options),
    /// Build the programs of `fuzz/`, run each for a while, and print a table
    #[command(
        after_help = "Example:\n  cargo xtask fuzz --minutes-each 10\n  cargo xtask fuzz --minutes-each 0.5 --only gguf"
    )]
    Fuzz {
        /// How long each program runs
        #[arg(long, default_value_t = 1.0, value_name = "N")]
        minutes_each: f64,
        /// Only the programs whose name contains this text
        #[arg(long)]
        only: Option<String>,
        /// Stop after building
        #[arg(long)]
        build: bool,
    },
    Torture(torture::Options),
    /// Train a small model with real torch, peft and vLLM on the CPU (installs gigabytes, takes minutes; not in `ci`)
    #[command(
        after_help = "Example:\n  cargo xtask torch\n  cargo xtask torch --environments /tmp/envs -- --weights full --steps 20"
    )]
    Torch(torch::Options),
    /// Make the weights of `builtin/tiny` and the rows of `examples/calculator` again (minutes)
    Tiny {
        /// Write nothing; fail unless the shipped weights have the same inputs and, on the kind of
        /// processor they were made on, the same bits
        #[arg(long)]
        check: bool,
    },
}

#[expect(
    clippy::print_stderr,
    reason = "a command line program reports to the terminal"
)]
fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Ci {
            only,
            quick: true,
            base,
        } => ci::run_quick(&base, only.as_deref()),
        Command::Ci { only, .. } => ci::run(only.as_deref()),
        Command::Bench {
            name,
            markdown,
            arguments,
        } => bench::run(&name, markdown, &arguments),
        Command::Direction => direction::check().and_then(|()| python_direction::check()),
        Command::Dependencies => dependencies::check(),
        Command::Licences => licences::check(),
        Command::Dist(options) => dist::run(&options),
        Command::Fuzz {
            minutes_each,
            only,
            build,
        } => fuzz::run(minutes_each, only.as_deref(), build),
        Command::Tiny { check } => tiny::run(check),
        Command::Torch(options) => torch::run(&options),
        Command::Torture(options) => torture::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
