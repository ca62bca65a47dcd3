//! Requests to a rollout server.

use bytes::Bytes;
use osmosis_core::RolloutId;
use osmosis_store::{RequestNote, RequestRecord};
use tokio_postgres::Row;

use crate::connection::Connection;
use crate::error::DbError;
use crate::records::number;
use crate::transaction::Transaction;

pub(crate) async fn keep(
    tx: &Transaction<'_>,
    rollout: &RolloutId,
    sealed: &[u8],
) -> Result<(), DbError> {
    tx.execute(
        "INSERT INTO osmosis.requests AS requests (run_id, rollout_id, sealed) VALUES ($1, $2, $3)
         ON CONFLICT (run_id, rollout_id) DO UPDATE SET sealed = excluded.sealed
         WHERE requests.settled_at_ms IS NULL",
        &[tx.run_id(), &rollout.as_str(), &sealed],
    )
    .await?;
    Ok(())
}

pub(crate) async fn note(
    tx: &Transaction<'_>,
    (rollout, note): &(RolloutId, RequestNote),
) -> Result<(), DbError> {
    let sql = match note {
        RequestNote::Sealed(sealed) => return keep(tx, rollout, sealed).await,
        RequestNote::CancelAsked => {
            "UPDATE osmosis.requests
             SET cancel_asked_at_ms = coalesce(cancel_asked_at_ms, $3::bigint, osmosis.now_ms())
             WHERE run_id = $1 AND rollout_id = $2"
        }
        RequestNote::AgentDone => {
            "UPDATE osmosis.requests SET agent_done_at_ms = coalesce(agent_done_at_ms, $3::bigint, osmosis.now_ms())
             WHERE run_id = $1 AND rollout_id = $2"
        }
        RequestNote::CompletionDelivered => {
            "UPDATE osmosis.requests
             SET completion_delivered_at_ms = coalesce(completion_delivered_at_ms, $3::bigint, osmosis.now_ms())
             WHERE run_id = $1 AND rollout_id = $2"
        }
        RequestNote::Settled => {
            "UPDATE osmosis.requests
             SET settled_at_ms = coalesce(settled_at_ms, $3::bigint, osmosis.now_ms()), sealed = NULL
             WHERE run_id = $1 AND rollout_id = $2"
        }
    };
    tx.execute(sql, &[tx.run_id(), &rollout.as_str(), &tx.now_ms()])
        .await?;
    Ok(())
}

pub(crate) async fn request(
    connection: &Connection,
    run_id: i32,
    rollout: &RolloutId,
) -> Result<Option<RequestRecord>, DbError> {
    let row = connection
        .query_optional(
            "SELECT requests.*, row_index FROM osmosis.requests AS requests
             JOIN osmosis.rollouts USING (run_id, rollout_id)
             WHERE requests.run_id = $1 AND requests.rollout_id = $2",
            &[&run_id, &rollout.as_str()],
        )
        .await?;
    row.as_ref().map(read).transpose()
}

pub(crate) async fn unsettled(
    connection: &Connection,
    run_id: i32,
) -> Result<Vec<RequestRecord>, DbError> {
    connection
        .query(
            "SELECT requests.*, row_index FROM osmosis.requests AS requests
             JOIN osmosis.rollouts USING (run_id, rollout_id)
             WHERE requests.run_id = $1 AND settled_at_ms IS NULL ORDER BY row_index",
            &[&run_id],
        )
        .await?
        .iter()
        .map(read)
        .collect()
}

fn read(row: &Row) -> Result<RequestRecord, DbError> {
    let is_set = |column: &str| -> Result<bool, DbError> {
        Ok(row.try_get::<_, Option<i64>>(column)?.is_some())
    };
    Ok(RequestRecord {
        rollout_id: RolloutId::new(row.try_get::<_, String>("rollout_id")?)?,
        row_index: number(row, "row_index")?,
        sealed: row
            .try_get::<_, Option<Vec<u8>>>("sealed")?
            .map(Bytes::from),
        cancel_asked: is_set("cancel_asked_at_ms")?,
        agent_done: is_set("agent_done_at_ms")?,
        completion_delivered: is_set("completion_delivered_at_ms")?,
        settled: is_set("settled_at_ms")?,
    })
}
