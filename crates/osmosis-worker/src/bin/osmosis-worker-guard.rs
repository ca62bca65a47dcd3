//! A guard on its own, for tests of this crate: `osmosis` is its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    osmosis_worker::guard::run_if_asked().unwrap_or(ExitCode::from(2))
}
