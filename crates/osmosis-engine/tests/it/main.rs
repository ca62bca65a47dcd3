//! The engine alone: a queue in memory, an executor and sessions that do as they are told, and paused time.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that can't go on must fail"
)]

mod driving;
mod executor_conformance;
mod fake_executor;
mod fake_sessions;
mod house;
mod memory_queue;
mod others;
mod regrading;
mod retries;
mod serving;
mod silent_store;
