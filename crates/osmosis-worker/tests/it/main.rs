//! The worker pool against guests that misbehave, and environments against a real interpreter.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that can't go on must fail"
)]

mod environment_reuse;
mod environment_search;
mod executor_conformance;
mod fake_machine;
mod guard;
mod harness;
mod intruders;
mod launching;
mod pool_attached;
mod pool_deadlines;
mod pool_faults;
mod pool_start;
mod pool_tasks;
mod real_sdk;
mod worker_user;
