//! The `osmosis` binary.

use std::process::ExitCode;

/// Bodies are made by one thread and freed by another, which the system's allocator is slow at.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    osmosis_cli::run()
}
