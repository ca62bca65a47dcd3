//! The steps of training.

use osmosis_core::PolicyVersion;
use osmosis_store::StepRecord;
use rusqlite::{Connection, params};

use crate::checksum;
use crate::sql::{SqlError, json, number, to_sql};

pub(crate) fn record(connection: &Connection, step: &StepRecord) -> Result<(), SqlError> {
    let insert = checksum::STEPS.insertion(&[
        ("step", "?1"),
        ("policy_version", "?2"),
        ("metrics", "?3"),
        ("finished_at_ms", "?4"),
    ]);
    connection
        .prepare_cached(&format!(
            "INSERT {insert}
             ON CONFLICT (step) DO UPDATE SET policy_version = excluded.policy_version,
                metrics = excluded.metrics, finished_at_ms = excluded.finished_at_ms,
                checksum = excluded.checksum, mac = excluded.mac"
        ))?
        .execute(params![
            to_sql(step.step)?,
            // Bit for bit, so that any version fits.
            step.version.0.cast_signed(),
            step.metrics.as_str(),
            step.finished_at_ms,
        ])?;
    Ok(())
}

pub(crate) fn steps(connection: &Connection) -> Result<Vec<StepRecord>, SqlError> {
    let mut select = connection.prepare_cached(
        "SELECT step, policy_version, metrics, finished_at_ms FROM steps ORDER BY step",
    )?;
    let mut rows = select.query([])?;
    let mut steps = Vec::new();
    while let Some(row) = rows.next()? {
        steps.push(StepRecord {
            step: number(row, 0)?,
            version: PolicyVersion(row.get::<_, i64>(1)?.cast_unsigned()),
            metrics: json(row, 2)?,
            finished_at_ms: row.get(3)?,
        });
    }
    Ok(steps)
}
