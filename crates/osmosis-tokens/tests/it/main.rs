//! The crate from outside.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that can't go on has failed; clippy only knows this of `#[test]` functions"
)]

mod checkpoints;
mod constraints;
mod conversations;
mod families;
mod gguf;
mod gguf_metadata;
mod ids;
mod published;
mod tools;
mod toy;
mod trees;
