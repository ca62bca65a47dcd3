//! Training as a whole: a real store, gateway and worker process. What depends on gradients is trained with a
//! model of a few thousand numbers, the rest with one that costs nothing.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that can't go on must fail"
)]

mod announced;
mod asynchronous;
mod changes;
mod checkpoint_files;
mod chosen_rows;
mod early_end;
mod gate;
mod guest;
mod held_out;
mod interruption;
mod learner_conformance;
mod learning;
mod model;
mod run;
mod supervised;
mod trouble;
