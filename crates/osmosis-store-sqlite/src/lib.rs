//! The store in SQLite. Its code moves here from `osmosis-store` next.

pub use osmosis_store::{SqliteOptions, SqliteStore, is_shared, tighten};
