//! The bodies of model calls.

use std::collections::HashMap;
use std::pin::pin;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use osmosis_core::{RolloutId, SampleId};
use osmosis_store::encoding::{MAX_CHAIN, Shared, part_token_records};
use osmosis_store::{CallBody, CallPurpose, CallRecord};
use tokio_postgres::Row;

use crate::calls::{REQUEST, RESPONSE, TOKENS, call, checksum, shown_attempt};
use crate::connection::Connection;
use crate::error::DbError;
use crate::records::{number, optional_number, to_sql};

const CHAIN: &str = "
    WITH RECURSIVE chain AS (
        SELECT 0 AS depth, calls.* FROM osmosis.calls AS calls WHERE run_id = $1 AND call_id = $2
        UNION ALL
        SELECT chain.depth + 1, calls.* FROM chain
        JOIN osmosis.calls AS calls ON calls.run_id = $1 AND calls.call_id = chain.base_call_id
        WHERE chain.depth < $3
    )
    SELECT call_id, base_call_id, shared_prefix_bytes, shared_suffix_bytes, request_bytes, response_bytes, tokens_bytes,
        token_records, compressed, checksum, request, CASE WHEN depth = 0 THEN response ELSE '' END AS response,
        CASE WHEN depth = 0 THEN tokens ELSE '' END AS tokens
    FROM chain ORDER BY depth DESC";

pub(crate) async fn body(
    connection: &Connection,
    run_id: i32,
    call_id: u64,
) -> Result<Option<CallBody>, DbError> {
    let Ok(id) = to_sql(call_id) else {
        return Ok(None);
    };
    let most = i32::try_from(MAX_CHAIN).unwrap_or(i32::MAX);
    let rows = connection.query(CHAIN, &[&run_id, &id, &most]).await?;
    let mut known: Option<(u64, Bytes)> = None;
    for (n, row) in rows.iter().enumerate() {
        let stored = Stored::of(row)?;
        let request = stored.request(known.as_ref().map(|(id, request)| (*id, request)))?;
        if n + 1 == rows.len() {
            return stored.body(request).map(Some);
        }
        known = Some((stored.call_id, request));
    }
    Ok(None)
}

/// The call and the bodies that a row holds.
pub(crate) struct Stored<'r> {
    row: &'r Row,
    pub(crate) call_id: u64,
    base_call_id: Option<u64>,
    shared: Shared,
    compressed: i16,
}

impl<'r> Stored<'r> {
    pub(crate) fn of(row: &'r Row) -> Result<Self, DbError> {
        Ok(Self {
            row,
            call_id: number(row, "call_id")?,
            base_call_id: optional_number(row, "base_call_id")?,
            shared: Shared {
                prefix: number(row, "shared_prefix_bytes")?,
                suffix: number(row, "shared_suffix_bytes")?,
            },
            compressed: row.try_get("compressed")?,
        })
    }

    fn senseless(&self, what: &str) -> DbError {
        DbError::Senseless(format!(
            "the {what} of call {} does not fit together",
            self.call_id
        ))
    }

    fn unpacked(&self, column: &str, bit: i16) -> Result<Bytes, DbError> {
        let stored: &[u8] = self.row.try_get(column)?;
        if self.compressed & bit == 0 {
            return Ok(Bytes::copy_from_slice(stored));
        }
        // What the frame says is its length; ours are below this by far.
        let most = 1 << 30;
        let length = zstd::zstd_safe::get_frame_content_size(stored)
            .ok()
            .flatten()
            .and_then(|length| usize::try_from(length).ok())
            .filter(|length| *length <= most)
            .ok_or_else(|| self.senseless(column))?;
        zstd::bulk::decompress(stored, length)
            .map(Bytes::from)
            .map_err(|_| self.senseless(column))
    }

    /// The whole request; `base` is the call before it.
    pub(crate) fn request(&self, base: Option<(u64, &Bytes)>) -> Result<Bytes, DbError> {
        let middle = self.unpacked("request", REQUEST)?;
        let request = match self.base_call_id {
            None => middle,
            Some(wanted) => {
                let (_, base) = base.filter(|(id, _)| *id == wanted).ok_or_else(|| {
                    DbError::Senseless(format!(
                        "call {wanted} is missing, which call {} extends",
                        self.call_id
                    ))
                })?;
                let joined = self.shared.join(base, &middle);
                joined.ok_or_else(|| self.senseless("request"))?.into()
            }
        };
        if request.len() != number::<usize>(self.row, "request_bytes")? {
            return Err(self.senseless("request"));
        }
        Ok(request)
    }

    /// With the response and the tokens, which are checked with the request against their checksum.
    pub(crate) fn body(&self, request: Bytes) -> Result<CallBody, DbError> {
        let response = self.unpacked("response", RESPONSE)?;
        let tokens = self.unpacked("tokens", TOKENS)?;
        let stored: i64 = self.row.try_get("checksum")?;
        if i64::from(checksum(&request, &response, &tokens)) != stored {
            return Err(DbError::Senseless(format!(
                "call {} does not have its checksum",
                self.call_id
            )));
        }
        Ok(CallBody {
            request,
            response,
            tokens: part_token_records(tokens, number(self.row, "token_records")?)
                .ok_or_else(|| self.senseless("token records"))?,
        })
    }
}

/// Reads calls that come in order, each of which may extend the last one of its conversation.
#[derive(Default)]
pub(crate) struct InOrder {
    last: HashMap<SampleId, (u64, Bytes)>,
}

impl InOrder {
    pub(crate) async fn read(
        &mut self,
        connection: &Connection,
        run_id: i32,
        row: &Row,
    ) -> Result<(CallRecord, CallBody), DbError> {
        let call = call(row)?;
        let stored = Stored::of(row)?;
        let last = self.last.get(&call.sample_id);
        let fits = last.is_some_and(|(id, _)| Some(*id) == stored.base_call_id);
        let body = if fits || stored.base_call_id.is_none() {
            stored.body(stored.request(last.map(|(id, request)| (*id, request)))?)?
        } else {
            body(connection, run_id, stored.call_id)
                .await?
                .ok_or_else(|| DbError::Senseless(format!("call {} is gone", stored.call_id)))?
        };
        let known = (stored.call_id, body.request.clone());
        self.last.insert(call.sample_id.clone(), known);
        Ok((call, body))
    }
}

const CALLS_OF_ATTEMPT: &str =
    "SELECT * FROM osmosis.calls WHERE run_id = $1 AND rollout_id = $2 AND attempt = $3
    ORDER BY call_id";

/// Hands the calls of the shown attempt of a rollout to `visit`, with their bodies.
pub(crate) async fn visit(
    connection: &Connection,
    run_id: i32,
    id: &RolloutId,
    purpose: CallPurpose,
    sender: &tokio::sync::mpsc::Sender<(CallRecord, CallBody)>,
) -> Result<(), DbError> {
    let Some(attempt) = shown_attempt(connection, run_id, id).await? else {
        return Ok(());
    };
    let rows = connection
        .stream(CALLS_OF_ATTEMPT, &[&run_id, &id.as_str(), &attempt])
        .await?;
    let mut rows = pin!(rows);
    let mut in_order = InOrder::default();
    while let Some(row) = rows.try_next().await? {
        let (call, body) = in_order.read(connection, run_id, &row).await?;
        if call.purpose == purpose && sender.send((call, body)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// The token records of the policy's calls in the attempt that is shown.
pub(crate) async fn token_records(
    connection: &Connection,
    run_id: i32,
    id: &RolloutId,
) -> Result<Vec<(SampleId, Bytes)>, DbError> {
    let Some(attempt) = shown_attempt(connection, run_id, id).await? else {
        return Ok(Vec::new());
    };
    let rows = connection
        .query(
            "SELECT call_id, NULL::bigint AS base_call_id, 0::bigint AS shared_prefix_bytes,
                0::bigint AS shared_suffix_bytes, compressed, sample_id, token_records, tokens
             FROM osmosis.calls
             WHERE run_id = $1 AND rollout_id = $2 AND attempt = $3 AND token_records > 0 AND purpose = 'policy'
             ORDER BY call_id",
            &[&run_id, &id.as_str(), &attempt],
        )
        .await?;
    let mut records = Vec::new();
    for row in &rows {
        let sample = SampleId::new(row.try_get::<_, String>("sample_id")?)?;
        let stored = Stored::of(row)?;
        let tokens = stored.unpacked("tokens", TOKENS)?;
        let of_call = part_token_records(tokens, number(row, "token_records")?)
            .ok_or_else(|| stored.senseless("token records"))?;
        records.extend(of_call.into_iter().map(|record| (sample.clone(), record)));
    }
    Ok(records)
}
