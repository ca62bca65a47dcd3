//! The PostgreSQL store from outside, on a server of its own.
#![expect(
    clippy::unwrap_used,
    reason = "clippy knows tests by their attribute, and these have functions beside them"
)]

mod catalogue;
mod conformance;
mod copies;
mod database;
mod fencing;
mod killed;
mod migrations;
mod nodes;
mod plans;
mod restarts;
mod roles;
mod tls;
