//! `cargo xtask`: what developers of this repository run. Users never need it.

mod bench;
mod ci;
mod direction;
mod licences;

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
    Ci {
        /// Only the steps whose name contains this text
        #[arg(long)]
        only: Option<String>,
    },
    /// Build for release and run a program of `benches/`
    Bench {
        /// Its name, without `.py`
        name: String,
        /// Print CPU, commit and date first, and tables as markdown, for `docs/benchmarks.md`
        #[arg(long)]
        markdown: bool,
        /// Arguments for the program
        arguments: Vec<String>,
    },
    /// Check that dependencies between our crates point one way
    Direction,
    /// Check licences and sources of all dependencies
    Licences,
}

#[expect(
    clippy::print_stderr,
    reason = "a command line program reports to the terminal"
)]
fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Ci { only } => ci::run(only.as_deref()),
        Command::Bench {
            name,
            markdown,
            arguments,
        } => bench::run(&name, markdown, &arguments),
        Command::Direction => direction::check(),
        Command::Licences => licences::check(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
