//! The tables, in the schema `osmosis` of a database. They are a public promise: people read them with `psql`, and an
//! old database stays readable. A change is a new entry in [`MIGRATIONS`], never an edit of one.
//!
//! The columns are those of the SQLite backend, with `run_id` before them; `schema/version_1.sql` and those after it say what is
//! different.
//! A text that holds a NUL byte, which PostgreSQL can't store, is escaped, see [`super::text`].

use osmosis_store::StoreError;

use crate::connection::Connection;
use crate::error::DbError;

/// Entry `n` takes a database from version n to n + 1.
const MIGRATIONS: &[&str] = &[
    include_str!("schema/version_1.sql"),
    include_str!("schema/version_2.sql"),
    include_str!("schema/version_3.sql"),
];

/// The version this program writes.
pub(crate) const KNOWN_VERSION: i64 = MIGRATIONS.len().cast_signed() as i64;

/// Guards the first migration of a database. Later ones lock the row that has the version, which no node can.
const MIGRATION_LOCK: i64 = 0x4f53_4d4f_0000_0001;

/// The version of the tables; `None` when there are none.
pub(crate) async fn version(connection: &Connection) -> Result<Option<i64>, DbError> {
    // Tables that the role may not use are there all the same, and reading them says what is wrong.
    let there: bool = connection
        .query_one(
            "SELECT to_regclass('osmosis.schema_version') IS NOT NULL",
            &[],
        )
        .await?
        .try_get(0)?;
    if !there {
        return Ok(None);
    }
    let found = connection
        .query("SELECT version FROM osmosis.schema_version", &[])
        .await?;
    let Some(row) = found.first() else {
        return Ok(None);
    };
    Ok(Some(i64::from(row.try_get::<_, i32>(0)?)))
}

/// Whether a reader, which must not change tables, can make sense of the database. `false` when it holds none. What a
/// reader reads is there since the first version.
pub(crate) async fn check_readable(connection: &Connection) -> Result<bool, DbError> {
    match version(connection).await? {
        None => Ok(false),
        Some(1..=KNOWN_VERSION) => Ok(true),
        Some(found) => Err(other_version(connection, found).into()),
    }
}

/// Whether somebody who writes, and must not change tables, knows them all. `false` when there are none.
pub(crate) async fn check_writable(connection: &Connection) -> Result<bool, DbError> {
    match version(connection).await? {
        None => Ok(false),
        Some(KNOWN_VERSION) => Ok(true),
        Some(found) => Err(other_version(connection, found).into()),
    }
}

/// Brings a database to [`KNOWN_VERSION`].
pub(crate) async fn migrate(connection: &Connection) -> Result<(), DbError> {
    if version(connection).await? == Some(KNOWN_VERSION) {
        return Ok(());
    }
    let encoding: String = connection
        .query_one("SELECT current_setting('server_encoding')", &[])
        .await?
        .try_get(0)?;
    if encoding != "UTF8" {
        return Err(StoreError::refused(format!(
            "`{}` has the encoding {encoding}; create the database with `ENCODING 'UTF8'`",
            connection.shown()
        ))
        .into());
    }
    connection.batch("BEGIN").await?;
    let migrated = migrate_in_transaction(connection).await;
    let end = if migrated.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    let ended = connection.batch(end).await;
    migrated.and(ended)
}

async fn migrate_in_transaction(connection: &Connection) -> Result<(), DbError> {
    if version(connection).await?.is_none() {
        connection
            .query("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK])
            .await?;
    }
    // Somebody else may have done it meanwhile.
    if version(connection).await?.is_some() {
        connection
            .query("SELECT version FROM osmosis.schema_version FOR UPDATE", &[])
            .await?;
    }
    let found = version(connection).await?;
    let start = usize::try_from(found.unwrap_or(0)).unwrap_or(usize::MAX);
    let Some(steps) = MIGRATIONS.get(start..) else {
        return Err(other_version(connection, found.unwrap_or(0)).into());
    };
    if found.is_none() {
        connection
            .batch(
                "CREATE SCHEMA IF NOT EXISTS osmosis;
                 CREATE TABLE osmosis.schema_version (
                    only_one  boolean PRIMARY KEY DEFAULT true CHECK (only_one),
                    version   integer NOT NULL
                 );
                 INSERT INTO osmosis.schema_version (version) VALUES (0);",
            )
            .await?;
    }
    for step in steps {
        connection.batch(step).await?;
        connection
            .batch("UPDATE osmosis.schema_version SET version = version + 1")
            .await?;
    }
    Ok(())
}

fn other_version(connection: &Connection, found: i64) -> StoreError {
    StoreError::SchemaVersion {
        path: connection.shown().into(),
        found,
        known: KNOWN_VERSION,
    }
}
