//! The batches of training whose rollouts were not planned beforehand.

use osmosis_core::PolicyVersion;
use osmosis_store::BatchRecord;
use rusqlite::{Connection, params};

use crate::checksum;
use crate::sql::{SqlError, json, number, to_sql};

pub(crate) fn record(connection: &Connection, batch: &BatchRecord) -> Result<(), SqlError> {
    let insert = checksum::BATCHES.insertion(&[
        ("number", "?1"),
        ("policy_version", "?2"),
        ("content", "?3"),
        ("formed_at_ms", "?4"),
        ("acknowledged_at_ms", "?5"),
    ]);
    connection
        .prepare_cached(&format!(
            "INSERT {insert}
             ON CONFLICT (number) DO UPDATE SET policy_version = excluded.policy_version,
                content = excluded.content, formed_at_ms = excluded.formed_at_ms,
                acknowledged_at_ms = excluded.acknowledged_at_ms, checksum = excluded.checksum,
                mac = excluded.mac
             WHERE acknowledged_at_ms IS NULL"
        ))?
        .execute(params![
            to_sql(batch.number)?,
            // Bit for bit, so that any version fits.
            batch.version.0.cast_signed(),
            batch.content.as_str(),
            batch.formed_at_ms,
            batch.acknowledged_at_ms,
        ])?;
    Ok(())
}

pub(crate) fn acknowledge(
    connection: &Connection,
    number: u64,
    at_ms: i64,
) -> Result<bool, SqlError> {
    let changes = checksum::BATCHES.assignments(&[("acknowledged_at_ms", "?1")]);
    let changed = connection
        .prepare_cached(&format!(
            "UPDATE main.batches SET {changes} WHERE number = ?2 AND acknowledged_at_ms IS NULL"
        ))?
        .execute(params![at_ms, to_sql(number)?])?;
    Ok(changed > 0)
}

pub(crate) fn batches(connection: &Connection) -> Result<Vec<BatchRecord>, SqlError> {
    let mut select = connection.prepare_cached(
        "SELECT number, policy_version, content, formed_at_ms, acknowledged_at_ms
         FROM batches ORDER BY number",
    )?;
    let mut rows = select.query([])?;
    let mut batches = Vec::new();
    while let Some(row) = rows.next()? {
        batches.push(BatchRecord {
            number: number(row, 0)?,
            version: PolicyVersion(row.get::<_, i64>(1)?.cast_unsigned()),
            content: json(row, 2)?,
            formed_at_ms: row.get(3)?,
            acknowledged_at_ms: row.get(4)?,
        });
    }
    Ok(batches)
}
