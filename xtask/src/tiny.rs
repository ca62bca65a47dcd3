//! `cargo xtask tiny`: makes `builtin/tiny` and the rows of `examples/calculator` again.

use anyhow::Result;

use crate::ci::{cargo, root};

const MODEL: &str = "crates/osmosis-policy/builtin/tiny.safetensors";
const DATA: &str = "examples/calculator/data";

/// Writes the files, or with `check` compares the model with the one that is there.
pub(crate) fn run(check: bool) -> Result<()> {
    let arguments: &[&str] = if check {
        &["--check", MODEL]
    } else {
        &["--out", MODEL, "--data", DATA]
    };
    let build = [
        "run",
        "--release",
        "--locked",
        "-p",
        "osmosis-policy",
        "--example",
        "make_tiny",
        "--",
    ];
    cargo(&root()?, &[&build, arguments].concat())
}
