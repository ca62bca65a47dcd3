//! The gateway as agents and the engine see it: over HTTP, through sessions, into a store.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a fixture that fails is a failed test"
)]

mod announcing;
mod connections;
mod control;
mod deadlines;
mod dialect_clients;
mod dialects;
mod durability;
mod embedded;
mod embedded_properties;
mod embedded_records;
mod engine_server;
mod fixture;
mod fleet;
mod generate;
mod identity;
mod memory_store;
mod native;
mod outside;
mod plain;
mod policy_conformance;
mod pool;
mod probe;
mod python_client;
mod remote_engine;
mod reported_tokens;
mod rust_client;
mod sampled;
mod scripted;
mod session_keys;
mod spans;
mod streaming;
mod structured;
mod structured_frameworks;
mod token_endpoint;
mod tools;
mod toy;
mod upstream;
