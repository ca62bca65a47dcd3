//! The SQLite store from outside.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "clippy knows tests by their attribute, and these have functions beside them"
)]

mod catalogue;
mod conformance;
mod crash;
mod damage;
mod fencing;
mod folder;
mod killed;
