//! Requests to a rollout server.

use bytes::Bytes;
use osmosis_core::RolloutId;
use osmosis_store::{RequestNote, RequestRecord};
use rusqlite::{Connection, Row, params};

use crate::sql::{SqlError, number};

pub(crate) fn keep(
    connection: &Connection,
    rollout: &RolloutId,
    sealed: &[u8],
) -> Result<(), SqlError> {
    connection
        .prepare_cached(
            "INSERT INTO requests (rollout_id, sealed) VALUES (?1, ?2)
             ON CONFLICT (rollout_id) DO UPDATE SET sealed = excluded.sealed
             WHERE settled_at_ms IS NULL",
        )?
        .execute(params![rollout.as_str(), sealed])?;
    Ok(())
}

pub(crate) fn note(
    connection: &Connection,
    now_ms: i64,
    rollout: &RolloutId,
    note: &RequestNote,
) -> Result<(), SqlError> {
    let sql = match note {
        RequestNote::Sealed(sealed) => return keep(connection, rollout, sealed),
        RequestNote::CancelAsked => {
            "UPDATE requests SET cancel_asked_at_ms = coalesce(cancel_asked_at_ms, ?2)
             WHERE rollout_id = ?1"
        }
        RequestNote::AgentDone => {
            "UPDATE requests SET agent_done_at_ms = coalesce(agent_done_at_ms, ?2)
             WHERE rollout_id = ?1"
        }
        RequestNote::CompletionDelivered => {
            "UPDATE requests SET completion_delivered_at_ms = coalesce(completion_delivered_at_ms, ?2)
             WHERE rollout_id = ?1"
        }
        RequestNote::Settled => {
            "UPDATE requests SET settled_at_ms = coalesce(settled_at_ms, ?2), sealed = NULL
             WHERE rollout_id = ?1"
        }
    };
    connection
        .prepare_cached(sql)?
        .execute(params![rollout.as_str(), now_ms])?;
    Ok(())
}

const COLUMNS: &str = "requests.rollout_id AS rollout_id, row_index, sealed, cancel_asked_at_ms,
    agent_done_at_ms, completion_delivered_at_ms, settled_at_ms";

pub(crate) fn request(
    connection: &Connection,
    rollout: &RolloutId,
) -> Result<Option<RequestRecord>, SqlError> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM requests JOIN rollouts USING (rollout_id)
         WHERE requests.rollout_id = ?1"
    ))?;
    let mut rows = select.query([rollout.as_str()])?;
    rows.next()?.map(read).transpose()
}

pub(crate) fn unsettled(connection: &Connection) -> Result<Vec<RequestRecord>, SqlError> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM requests JOIN rollouts USING (rollout_id)
         WHERE settled_at_ms IS NULL ORDER BY row_index"
    ))?;
    let mut rows = select.query([])?;
    let mut requests = Vec::new();
    while let Some(row) = rows.next()? {
        requests.push(read(row)?);
    }
    Ok(requests)
}

fn read(row: &Row<'_>) -> Result<RequestRecord, SqlError> {
    let is_set = |column: &str| row.get(column).map(|at: Option<i64>| at.is_some());
    Ok(RequestRecord {
        rollout_id: RolloutId::new(row.get::<_, String>("rollout_id")?)?,
        row_index: number(row, "row_index")?,
        sealed: row.get::<_, Option<Vec<u8>>>("sealed")?.map(Bytes::from),
        cancel_asked: is_set("cancel_asked_at_ms")?,
        agent_done: is_set("agent_done_at_ms")?,
        completion_delivered: is_set("completion_delivered_at_ms")?,
        settled: is_set("settled_at_ms")?,
    })
}
