//! Training as a whole: a real store, gateway, sampler, learner and worker process, with a model of a few
//! thousand numbers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that can't go on must fail"
)]

mod announced;
mod asynchronous;
mod changes;
mod guest;
mod held_out;
mod interruption;
mod learning;
mod model;
mod run;
mod trouble;
