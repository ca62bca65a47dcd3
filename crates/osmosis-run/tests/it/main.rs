//! Runs from their beginning to their end, without a front end.

mod scripted_run;
mod ways_out;
