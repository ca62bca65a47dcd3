//! Is a run as it was written? PostgreSQL sees to its own files; what is checked here is what we made of them: that bodies
//! unpack to what their checksum says, and that tables agree with each other.

use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::TryStreamExt as _;
use osmosis_store::{CheckedCounts, ProgressVisitor, VerifyProgress, VerifyReport};

use crate::bodies::InOrder;
use crate::connection::Connection;
use crate::error::DbError;
use crate::records::number;
use crate::schema;

/// Calls between two reports of progress.
const REPORT_EVERY: u64 = 1000;

/// Each finds rows that contradict others: who, and what is wrong with them.
const CONTRADICTIONS: [(&str, &str); 4] = [
    (
        "SELECT 'rollout ' || rollout_id FROM osmosis.rollouts
         WHERE run_id = $1 AND (state = 'done') <> (outcome IS NOT NULL)",
        "its state and its outcome contradict each other",
    ),
    (
        "SELECT DISTINCT 'rollout ' || rollout_id FROM osmosis.rollouts JOIN osmosis.samples USING (run_id, rollout_id)
         WHERE run_id = $1 AND state <> 'done'",
        "it has samples but no result",
    ),
    (
        "SELECT DISTINCT 'samples of ' || rollout_id FROM osmosis.samples AS samples WHERE run_id = $1 AND NOT EXISTS (
            SELECT 1 FROM osmosis.rollouts AS rollouts
            WHERE rollouts.run_id = $1 AND rollouts.rollout_id = samples.rollout_id)",
        "their rollout is not there",
    ),
    (
        "SELECT 'the numbers of calls' FROM osmosis.call_ids
         WHERE run_id = $1 AND next_id <= (SELECT max(call_id) FROM osmosis.calls WHERE run_id = $1)",
        "the next number was given already",
    ),
];

pub(crate) async fn verify(
    connection: &Connection,
    run_id: i32,
    progress: &mut ProgressVisitor,
) -> Result<VerifyReport, DbError> {
    let mut report = VerifyReport {
        schema_version: schema::version(connection).await?,
        checked: counts(connection, run_id).await?,
        ..VerifyReport::default()
    };
    for (sql, message) in CONTRADICTIONS {
        for row in connection.query(sql, &[&run_id]).await? {
            report.add(row.try_get::<_, String>(0)?, message);
        }
    }
    for (call_id, message) in damaged_calls(connection, run_id, progress).await? {
        report.add(format!("call {call_id}"), message);
    }
    Ok(report)
}

async fn counts(connection: &Connection, run_id: i32) -> Result<CheckedCounts, DbError> {
    let row = connection
        .query_one(
            "SELECT (SELECT count(*) FROM osmosis.rows WHERE run_id = $1),
                (SELECT count(*) FROM osmosis.rollouts WHERE run_id = $1),
                (SELECT count(*) FROM osmosis.samples WHERE run_id = $1),
                (SELECT count(*) FROM osmosis.calls WHERE run_id = $1),
                (SELECT count(*) FROM osmosis.steps WHERE run_id = $1),
                (SELECT count(*) FROM osmosis.batches WHERE run_id = $1),
                (SELECT coalesce(sum(octet_length(request) + octet_length(response) + octet_length(tokens)), 0)
                    FROM osmosis.calls WHERE run_id = $1)::bigint",
            &[&run_id],
        )
        .await?;
    Ok(CheckedCounts {
        rows: number(&row, 0)?,
        rollouts: number(&row, 1)?,
        samples: number(&row, 2)?,
        calls: number(&row, 3)?,
        steps: number(&row, 4)?,
        batches: number(&row, 5)?,
        body_bytes: number(&row, 6)?,
    })
}

/// Calls whose bodies can't be put together, with the reason.
pub(crate) async fn damaged_calls(
    connection: &Connection,
    run_id: i32,
    progress: &mut ProgressVisitor,
) -> Result<BTreeMap<i64, String>, DbError> {
    let total: u64 = counts(connection, run_id).await?.calls;
    let mut damaged = BTreeMap::new();
    let rows = connection
        .stream(
            "SELECT * FROM osmosis.calls WHERE run_id = $1 ORDER BY rollout_id, attempt, call_id",
            &[&run_id],
        )
        .await?;
    let mut rows = pin!(rows);
    let mut attempt: Option<(String, i64)> = None;
    let mut in_order = InOrder::default();
    let mut done: u64 = 0;
    while let Some(row) = rows.try_next().await? {
        let of = (row.try_get("rollout_id")?, row.try_get("attempt")?);
        if attempt.as_ref() != Some(&of) {
            in_order = InOrder::default();
            attempt = Some(of);
        }
        match in_order.read(connection, run_id, &row).await {
            Ok(_) => {}
            Err(DbError::Senseless(message)) => {
                damaged.insert(row.try_get("call_id")?, message);
            }
            Err(error) => return Err(error),
        }
        done += 1;
        if done.is_multiple_of(REPORT_EVERY) {
            progress(VerifyProgress { done, total });
        }
    }
    progress(VerifyProgress { done, total });
    Ok(damaged)
}
