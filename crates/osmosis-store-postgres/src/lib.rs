//! The store in PostgreSQL: many runs in one database, which several processes read and write.
//!
//! Implements the traits of [`osmosis_store`] and passes its conformance suite. One process *controls* a run (an
//! advisory lock, and an epoch that every transaction of it checks); others may join it as nodes, which claim and
//! complete rollouts. Leases are counted by the clock of the database. Nothing but `osmosis-run` and tests may name this
//! crate, nothing of PostgreSQL may be seen through it, and no password may be in an error, a log or a `Debug`.
//!
//! ```no_run
//! # async fn example() -> Result<(), osmosis_store::StoreError> {
//! use osmosis_core::RunName;
//! use osmosis_store::{Catalogue as _, RunKey, RunKind, StoreUrl};
//! use osmosis_store_postgres::{PostgresCatalogue, PostgresOptions};
//!
//! let url = StoreUrl::parse("postgres://ada@db.example.org/evaluations")?;
//! let catalogue = PostgresCatalogue::at(&url, PostgresOptions::default())?;
//! for run in catalogue.list(RunKind::Evaluation).await? {
//!     println!("{} is at {}", run.key.name, run.url);
//! }
//! # Ok(())
//! # }
//! ```

mod address;
mod bodies;
mod calls;
mod catalogue;
mod completions;
mod connection;
mod error;
mod pending;
mod presence;
mod queue;
mod readers;
mod records;
mod requests;
mod roles;
mod rollouts;
mod salvage;
mod schema;
mod shared;
mod store;
mod text;
mod tls;
mod transaction;
mod verify;
mod writer;

pub use catalogue::PostgresCatalogue;
pub use store::{PostgresOptions, PostgresStore};
