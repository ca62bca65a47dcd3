//! The run's own record, the steps and batches of training; between our types and PostgreSQL's.

use std::fmt;

use osmosis_core::{JsonText, PolicyVersion, RunName};
use osmosis_store::{BatchRecord, RunRecord, RunStatus, StepRecord, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

use crate::connection::Connection;
use crate::error::DbError;
use crate::text;
use crate::transaction::Transaction;

/// A number as PostgreSQL's signed one; refused when it doesn't fit.
pub(crate) fn to_sql(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number)
        .map_err(|_| StoreError::refused(format!("{number} is too large to be stored")))
}

/// A column, by name or by position.
pub(crate) trait Column: RowIndex + Copy + fmt::Display {}
impl<C: RowIndex + Copy + fmt::Display> Column for C {}

/// A number of ours that is stored in a column.
pub(crate) fn number<T: TryFrom<i64>>(row: &Row, column: impl Column) -> Result<T, DbError> {
    let stored: i64 = row.try_get(column)?;
    T::try_from(stored).map_err(|_| DbError::Senseless(format!("column `{column}` holds {stored}")))
}

pub(crate) fn optional_number<T: TryFrom<i64>>(
    row: &Row,
    column: impl Column,
) -> Result<Option<T>, DbError> {
    match row.try_get::<_, Option<i64>>(column)? {
        None => Ok(None),
        Some(_) => number(row, column).map(Some),
    }
}

pub(crate) fn json(row: &Row, column: impl Column) -> Result<JsonText, DbError> {
    Ok(JsonText::parse(row.try_get::<_, String>(column)?)?)
}

pub(crate) fn optional_json(row: &Row, column: impl Column) -> Result<Option<JsonText>, DbError> {
    match row.try_get::<_, Option<String>>(column)? {
        None => Ok(None),
        Some(text) => Ok(Some(JsonText::parse(text)?)),
    }
}

/// The name of a unit variant, as it is in JSON.
pub(crate) fn word<T: Serialize>(value: &T) -> Result<String, StoreError> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => Ok(word),
        Ok(other) => Err(StoreError::refused(format!("`{other}` is not a word"))),
        Err(error) => Err(StoreError::refused(error.to_string())),
    }
}

pub(crate) fn from_word<T: DeserializeOwned>(word: String) -> Result<T, DbError> {
    serde_json::from_value(serde_json::Value::String(word))
        .map_err(|error| DbError::Senseless(error.to_string()))
}

pub(crate) async fn create_run(tx: &Transaction<'_>, run: &RunRecord) -> Result<(), DbError> {
    let made = tx
        .execute(
            "INSERT INTO osmosis.run_records
                (run_id, name, kind, status, created_at_ms, finished_at_ms, config_toml, pinned)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (run_id) DO NOTHING",
            &[
                tx.run_id(),
                &run.name.as_str(),
                &word(&run.kind)?,
                &word(&run.status)?,
                &run.created_at_ms,
                &run.finished_at_ms,
                &text::stored(&run.config_toml),
                &run.pinned.as_str(),
            ],
        )
        .await?;
    if made == 1 {
        return Ok(());
    }
    let there = tx
        .query(
            "SELECT name FROM osmosis.run_records WHERE run_id = $1",
            &[tx.run_id()],
        )
        .await?;
    let name = match there.first() {
        Some(row) => RunName::new(row.try_get::<_, String>(0)?)?,
        None => run.name.clone(),
    };
    Err(StoreError::AlreadyExists(name).into())
}

pub(crate) async fn run(
    connection: &Connection,
    run_id: i32,
) -> Result<Option<RunRecord>, DbError> {
    let row = connection
        .query_optional(
            "SELECT * FROM osmosis.run_records WHERE run_id = $1",
            &[&run_id],
        )
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    Ok(Some(RunRecord {
        name: RunName::new(row.try_get::<_, String>("name")?)?,
        kind: from_word(row.try_get("kind")?)?,
        status: from_word(row.try_get("status")?)?,
        created_at_ms: row.try_get("created_at_ms")?,
        finished_at_ms: row.try_get("finished_at_ms")?,
        config_toml: text::read(row.try_get("config_toml")?),
        pinned: json(&row, "pinned")?,
    }))
}

pub(crate) async fn set_status(tx: &Transaction<'_>, status: RunStatus) -> Result<(), DbError> {
    let is_final = match status {
        RunStatus::Finished => true,
        RunStatus::Running | RunStatus::Interrupted => false,
    };
    let changed = tx
        .execute(
            "UPDATE osmosis.run_records SET status = $2,
                finished_at_ms = CASE WHEN $3 THEN coalesce($4::bigint, osmosis.now_ms()) END
             WHERE run_id = $1",
            &[tx.run_id(), &word(&status)?, &is_final, &tx.now_ms()],
        )
        .await?;
    if changed == 0 {
        return Err(StoreError::refused("the run has no record yet").into());
    }
    Ok(())
}

pub(crate) async fn record_step(tx: &Transaction<'_>, step: &StepRecord) -> Result<(), DbError> {
    tx.execute(
        "INSERT INTO osmosis.steps (run_id, step, policy_version, metrics, finished_at_ms)
         VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (run_id, step) DO UPDATE SET policy_version = excluded.policy_version,
            metrics = excluded.metrics, finished_at_ms = excluded.finished_at_ms",
        &[
            tx.run_id(),
            &to_sql(step.step)?,
            // Bit for bit, so that any version fits.
            &step.version.0.cast_signed(),
            &step.metrics.as_str(),
            &step.finished_at_ms,
        ],
    )
    .await?;
    Ok(())
}

pub(crate) async fn steps(
    connection: &Connection,
    run_id: i32,
) -> Result<Vec<StepRecord>, DbError> {
    connection
        .query(
            "SELECT step, policy_version, metrics, finished_at_ms FROM osmosis.steps WHERE run_id = $1
             ORDER BY step",
            &[&run_id],
        )
        .await?
        .iter()
        .map(|row| {
            Ok(StepRecord {
                step: number(row, 0)?,
                version: PolicyVersion(row.try_get::<_, i64>(1)?.cast_unsigned()),
                metrics: json(row, 2)?,
                finished_at_ms: row.try_get(3)?,
            })
        })
        .collect()
}

pub(crate) async fn record_batch(tx: &Transaction<'_>, batch: &BatchRecord) -> Result<(), DbError> {
    tx.execute(
        "INSERT INTO osmosis.batches AS batches
            (run_id, number, policy_version, content, formed_at_ms, acknowledged_at_ms)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (run_id, number) DO UPDATE SET policy_version = excluded.policy_version,
            content = excluded.content, formed_at_ms = excluded.formed_at_ms,
            acknowledged_at_ms = excluded.acknowledged_at_ms
         WHERE batches.acknowledged_at_ms IS NULL",
        &[
            tx.run_id(),
            &to_sql(batch.number)?,
            &batch.version.0.cast_signed(),
            &batch.content.as_str(),
            &batch.formed_at_ms,
            &batch.acknowledged_at_ms,
        ],
    )
    .await?;
    Ok(())
}

pub(crate) async fn acknowledge_batch(
    tx: &Transaction<'_>,
    (number, at_ms): &(u64, i64),
) -> Result<bool, DbError> {
    let changed = tx
        .execute(
            "UPDATE osmosis.batches SET acknowledged_at_ms = $3
             WHERE run_id = $1 AND number = $2 AND acknowledged_at_ms IS NULL",
            &[tx.run_id(), &to_sql(*number)?, at_ms],
        )
        .await?;
    Ok(changed > 0)
}

pub(crate) async fn batches(
    connection: &Connection,
    run_id: i32,
) -> Result<Vec<BatchRecord>, DbError> {
    connection
        .query(
            "SELECT number, policy_version, content, formed_at_ms, acknowledged_at_ms FROM osmosis.batches
             WHERE run_id = $1 ORDER BY number",
            &[&run_id],
        )
        .await?
        .iter()
        .map(|row| {
            Ok(BatchRecord {
                number: number(row, 0)?,
                version: PolicyVersion(row.try_get::<_, i64>(1)?.cast_unsigned()),
                content: json(row, 2)?,
                formed_at_ms: row.try_get(3)?,
                acknowledged_at_ms: row.try_get(4)?,
            })
        })
        .collect()
}
