//! The store in SQLite: one run in one folder, with `run.db`, `segments/` and `run.lock`.
//!
//! Implements the traits of [`osmosis_store`] and passes its conformance suite; whether a run is still what was
//! written, and what can be kept of a damaged one, is here too. Nothing but `osmosis-run` and tests may name this
//! crate, and nothing of SQLite may be seen through it: errors and reports are those of the API.
//!
//! ```
//! # async fn example(folder: &camino::Utf8Path) -> Result<(), osmosis_store::StoreError> {
//! use std::time::Duration;
//! use osmosis_store::Recovery;
//! use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
//!
//! let store = SqliteStore::open(folder, SqliteOptions::default())?;
//! store.recover(Recovery::AfterTakeover).await?;
//! for claim in store.claim("engine", 8, Duration::from_secs(60)).await? {
//!     println!("{} is ours, attempt {}", claim.id, claim.attempt);
//! }
//! store.close().await
//! # }
//! ```

mod appended_file;
#[cfg(test)]
mod attack_tests;
mod authentic;
mod batches;
mod bodies;
mod calls;
mod catalogue;
mod checksum;
mod fence;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod lock;
mod private;
mod queue;
mod reader;
mod requests;
mod rollouts;
mod salvage;
mod schema;
mod segment;
#[cfg(any(test, feature = "fuzzing"))]
mod segment_fuzzing;
mod sql;
mod steps;
mod store;
mod text_index;
mod verify;
mod watched;
mod writer;

pub use catalogue::SqliteCatalogue;
pub use private::{change_mode, is_shared, tighten};
pub use store::{SqliteOptions, SqliteStore};
pub use text_index::{IndexedRollout, SearchedText, TextIndex};
