//! `cargo xtask bench NAME`: measures the release build.

use std::process::Command;

use anyhow::{Result, bail};
use osmosis_testkit::python_environment;

use crate::ci::{cargo, command, root};

pub(crate) fn run(name: &str, arguments: &[String]) -> Result<()> {
    let root = root()?;
    let program = root.join("benches").join(format!("{name}.py"));
    if !program.is_file() {
        bail!("`{program}` is not there; `benches/` holds the programs");
    }
    cargo(&root, &["build", "--release", "--locked"])?;
    let target =
        std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| root.join("target").to_string());
    command(
        Command::new(python_environment::python())
            .arg(program)
            .args(["--osmosis", &format!("{target}/release/osmosis")])
            .args(arguments),
    )
}
