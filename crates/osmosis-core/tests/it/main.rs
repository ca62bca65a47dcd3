//! Tests of `osmosis-core` from outside.
#![expect(
    clippy::unwrap_used,
    reason = "a test that can't go on has failed; clippy only knows this of `#[test]` functions"
)]

mod golden_frames;
mod verdicts;
