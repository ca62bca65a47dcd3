//! Runs from their beginning to their end, without a front end.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod sampled_elsewhere;
mod scripted_run;
mod ways_out;
