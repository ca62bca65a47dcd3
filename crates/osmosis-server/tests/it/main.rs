//! The rollout server as a controller meets it: real HTTP in both directions, a real store, gateway and
//! worker process.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that can't go on must fail"
)]

mod accepting;
mod attached;
mod callbacks;
mod cancelling;
mod draining;
mod entering;
mod executor_conformance;
mod guest;
mod receiver;
mod remote;
mod remote_puppet;
mod restarting;
mod running;
mod serving;
mod training;
