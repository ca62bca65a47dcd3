//! The gateway as agents and the engine see it: over HTTP, through doors, into a store.

#![expect(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod doors;
mod fixture;
mod identity;
mod memory_store;
mod plain;
mod scripted;
mod streaming;
mod upstream;
