//! A worker process as the engine sees it: this binary starts itself as one.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that can't go on must fail"
)]

mod engine;
mod guest;

mod ending;
mod grading;
mod loading;
mod printing;
mod running;
