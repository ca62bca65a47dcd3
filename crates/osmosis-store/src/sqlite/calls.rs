//! Model calls: one row each, the bodies in segments.

use bytes::{Buf as _, Bytes};
use camino::Utf8Path;
use osmosis_core::{Attempt, PolicyVersion, RolloutId, SampleId};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::delta::{Base, Conversations, MAX_CHAIN, Shared};
use super::rollouts::call_summary;
use super::segment::{HEADER_BYTES, Place, SegmentReader, SegmentWriter};
use super::sql::{SqlError, number, optional_number, to_sql};
use crate::{CallBody, CallPurpose, CallQuery, CallRecord, CallSummary, NewCall, StoreError};

/// Why a call was not recorded.
pub(crate) enum CallFailure {
    Sql(SqlError),
    /// The segments can't be written; no other call can be recorded either.
    Segments(StoreError),
}

impl<E: Into<SqlError>> From<E> for CallFailure {
    fn from(error: E) -> Self {
        Self::Sql(error.into())
    }
}

/// Appends the bodies and adds the row. Nothing is durable before the segments are synced and the
/// transaction is committed.
pub(crate) fn record(
    connection: &Connection,
    segments: &mut SegmentWriter,
    conversations: &mut Conversations,
    call: &NewCall,
) -> Result<(), CallFailure> {
    let base = conversations
        .base(&call.rollout_id, call.attempt, &call.sample_id)
        .and_then(|base| Some((base, base.shared_with(&call.request)?)));
    let stored: &[u8] = match &base {
        Some((_, shared)) => shared.middle(&call.request),
        None => &call.request,
    };
    let tokens = joined(&call.tokens);
    let longest = stored.len().max(call.response.len()).max(tokens.len());
    if longest > u32::MAX as usize {
        return Err(StoreError::refused("the bodies of the call are too large").into());
    }
    let (request_place, response_place, tokens_place) = if call.tokens.is_empty() {
        let [request, response] = segments
            .append([stored, &call.response])
            .map_err(CallFailure::Segments)?;
        (request, response, None)
    } else {
        let [request, response, tokens] = segments
            .append([stored, &call.response, &tokens])
            .map_err(CallFailure::Segments)?;
        (request, response, Some(tokens))
    };
    let chain_length = base.as_ref().map_or(0, |(base, _)| base.chain_length + 1);
    let shared = base.as_ref().map(|(_, shared)| *shared);
    connection
        .prepare_cached(
            "INSERT INTO calls (rollout_id, attempt, sample_id, dialect, model, upstream,
                policy_version, streamed, status, error, prompt_tokens, completion_tokens,
                queued_at_ms, sent_at_ms, first_byte_at_ms, done_at_ms, request_bytes,
                response_bytes, segment, request_offset, response_offset, base_call_id,
                shared_prefix_bytes, shared_suffix_bytes, chain_length, token_records,
                tokens_offset, tokens_bytes, cached_tokens, reasoning_tokens, purpose)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
                ?, ?, ?)",
        )?
        .execute(params![
            call.rollout_id.as_str(),
            call.attempt.0,
            call.sample_id.as_str(),
            call.dialect,
            call.model,
            call.upstream,
            // Bit for bit, so that any version fits.
            call.policy_version.0.cast_signed(),
            call.streamed,
            call.status,
            call.error,
            call.prompt_tokens.map(to_sql).transpose()?,
            call.completion_tokens.map(to_sql).transpose()?,
            call.queued_at_ms,
            call.sent_at_ms,
            call.first_byte_at_ms,
            call.done_at_ms,
            to_sql(call.request.len() as u64)?,
            to_sql(call.response.len() as u64)?,
            request_place.segment,
            to_sql(request_place.offset)?,
            to_sql(response_place.offset)?,
            base.as_ref().map(|(base, _)| base.call_id),
            to_sql(shared.map_or(0, |s| s.prefix as u64))?,
            to_sql(shared.map_or(0, |s| s.suffix as u64))?,
            chain_length,
            to_sql(call.tokens.len() as u64)?,
            tokens_place.map(|place| to_sql(place.offset)).transpose()?,
            tokens_place.map(|_| to_sql(tokens.len() as u64)).transpose()?,
            call.cached_tokens.map(to_sql).transpose()?,
            call.reasoning_tokens.map(to_sql).transpose()?,
            call.purpose.as_str(),
        ])?;
    let base = Base {
        call_id: connection.last_insert_rowid(),
        chain_length,
        request: call.request.clone(),
    };
    conversations.remember(&call.rollout_id, call.attempt, &call.sample_id, base);
    Ok(())
}

pub(crate) fn totals(connection: &Connection) -> Result<CallSummary, SqlError> {
    let mut select = connection.prepare_cached(
        "SELECT count(*) FILTER (WHERE purpose = 'policy') AS model_calls,
            coalesce(sum(prompt_tokens) FILTER (WHERE purpose = 'policy'), 0) AS prompt_tokens,
            coalesce(sum(completion_tokens) FILTER (WHERE purpose = 'policy'), 0) AS completion_tokens,
            sum(cached_tokens) FILTER (WHERE purpose = 'policy') AS cached_tokens,
            sum(reasoning_tokens) FILTER (WHERE purpose = 'policy') AS reasoning_tokens,
            count(*) FILTER (WHERE purpose = 'judge') AS judge_calls,
            coalesce(sum(prompt_tokens) FILTER (WHERE purpose = 'judge'), 0) AS judge_prompt_tokens,
            coalesce(sum(completion_tokens) FILTER (WHERE purpose = 'judge'), 0)
                AS judge_completion_tokens
         FROM calls",
    )?;
    let mut rows = select.query([])?;
    match rows.next()? {
        None => Ok(CallSummary::default()),
        Some(row) => call_summary(row),
    }
}

/// The end of the last record that the database refers to.
pub(crate) fn referenced_end(connection: &Connection) -> Result<Option<Place>, SqlError> {
    let mut select = connection.prepare(
        "SELECT segment, coalesce(tokens_offset, response_offset),
            coalesce(tokens_bytes, response_bytes) FROM calls ORDER BY call_id DESC LIMIT 1",
    )?;
    let mut rows = select.query([])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let offset: u64 = number(row, 1)?;
    let length: u64 = number(row, 2)?;
    Ok(Some(Place {
        segment: number(row, 0)?,
        offset: offset + HEADER_BYTES + length,
    }))
}

pub(crate) fn calls(
    connection: &Connection,
    query: &CallQuery,
) -> Result<Vec<CallRecord>, SqlError> {
    let attempt = match query.attempt {
        Some(attempt) => Some(attempt.0),
        None => shown_attempt(connection, &query.rollout_id)?,
    };
    let Some(attempt) = attempt else {
        return Ok(Vec::new());
    };
    let mut select = connection.prepare_cached(
        "SELECT * FROM calls WHERE rollout_id = ?1 AND attempt = ?2 ORDER BY call_id",
    )?;
    let mut rows = select.query(params![query.rollout_id.as_str(), attempt])?;
    let mut calls = Vec::new();
    while let Some(row) = rows.next()? {
        calls.push(call(row)?);
    }
    Ok(calls)
}

/// The accepted attempt, or the latest that made a call.
fn shown_attempt(connection: &Connection, id: &RolloutId) -> Result<Option<u32>, SqlError> {
    let accepted = connection
        .prepare_cached("SELECT attempt FROM rollouts WHERE rollout_id = ?1 AND state = 'done'")?
        .query_row([id.as_str()], |row| row.get(0))
        .optional()?;
    if accepted.is_some() {
        return Ok(accepted);
    }
    Ok(connection
        .prepare_cached("SELECT max(attempt) FROM calls WHERE rollout_id = ?1")?
        .query_row([id.as_str()], |row| row.get(0))?)
}

fn call(row: &Row<'_>) -> Result<CallRecord, SqlError> {
    Ok(CallRecord {
        call_id: number(row, "call_id")?,
        rollout_id: RolloutId::new(row.get::<_, String>("rollout_id")?)?,
        attempt: Attempt(number(row, "attempt")?),
        sample_id: SampleId::new(row.get::<_, String>("sample_id")?)?,
        purpose: purpose(row.get_ref("purpose")?.as_str()?)?,
        dialect: row.get("dialect")?,
        model: row.get("model")?,
        upstream: row.get("upstream")?,
        policy_version: PolicyVersion(row.get::<_, i64>("policy_version")?.cast_unsigned()),
        streamed: row.get("streamed")?,
        status: number(row, "status")?,
        error: row.get("error")?,
        prompt_tokens: optional_number(row, "prompt_tokens")?,
        completion_tokens: optional_number(row, "completion_tokens")?,
        cached_tokens: optional_number(row, "cached_tokens")?,
        reasoning_tokens: optional_number(row, "reasoning_tokens")?,
        queued_at_ms: row.get("queued_at_ms")?,
        sent_at_ms: row.get("sent_at_ms")?,
        first_byte_at_ms: row.get("first_byte_at_ms")?,
        done_at_ms: row.get("done_at_ms")?,
        token_records: number(row, "token_records")?,
    })
}

fn purpose(text: &str) -> Result<CallPurpose, SqlError> {
    CallPurpose::parse(text).ok_or_else(|| SqlError::Senseless(format!("purpose `{text}`")))
}

/// Where the bodies of a call are, and how they are told.
struct Stored {
    request: Place,
    response: Place,
    base_call_id: Option<i64>,
    shared: Shared,
    request_bytes: usize,
    response_bytes: usize,
    tokens: Option<Place>,
    token_records: usize,
}

pub(crate) fn body(
    connection: &Connection,
    segments: &Utf8Path,
    call_id: u64,
) -> Result<Option<CallBody>, SqlError> {
    let Some(wanted) = stored(connection, to_sql(call_id)?)? else {
        return Ok(None);
    };
    let mut segments = SegmentReader::new(segments);
    let response = segments.read(wanted.response)?;
    if response.len() != wanted.response_bytes {
        return Err(SqlError::Senseless(format!(
            "the response of call {call_id} has the wrong length"
        )));
    }
    let tokens = match wanted.tokens {
        None => Vec::new(),
        Some(place) => parted(segments.read(place)?.into(), wanted.token_records)
            .ok_or_else(|| senseless_tokens(call_id))?,
    };
    // From the call back to the one that is stored whole, then forward again.
    let mut chain = vec![wanted];
    while let Some(base) = chain.last().and_then(|last| last.base_call_id) {
        if chain.len() > MAX_CHAIN as usize {
            return Err(SqlError::Senseless(format!(
                "call {call_id} is told by too many others"
            )));
        }
        chain.push(stored(connection, base)?.ok_or_else(|| {
            SqlError::Senseless(format!(
                "call {base} is missing, which call {call_id} extends"
            ))
        })?);
    }
    let mut request = Vec::new();
    for link in chain.iter().rev() {
        let middle = segments.read(link.request)?;
        request = link
            .shared
            .join(&request, &middle)
            .filter(|request| request.len() == link.request_bytes)
            .ok_or_else(|| {
                SqlError::Senseless(format!(
                    "the request of call {call_id} does not fit together"
                ))
            })?;
    }
    Ok(Some(CallBody {
        request: request.into(),
        response: response.into(),
        tokens,
    }))
}

fn stored(connection: &Connection, call_id: i64) -> Result<Option<Stored>, SqlError> {
    let mut select = connection.prepare_cached(
        "SELECT segment, request_offset, response_offset, base_call_id, shared_prefix_bytes,
            shared_suffix_bytes, request_bytes, response_bytes, tokens_offset, token_records
         FROM calls WHERE call_id = ?1",
    )?;
    let mut rows = select.query([call_id])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let segment = number(row, 0)?;
    Ok(Some(Stored {
        request: Place {
            segment,
            offset: number(row, 1)?,
        },
        response: Place {
            segment,
            offset: number(row, 2)?,
        },
        base_call_id: row.get(3)?,
        shared: Shared {
            prefix: number(row, 4)?,
            suffix: number(row, 5)?,
        },
        request_bytes: number(row, 6)?,
        response_bytes: number(row, 7)?,
        tokens: optional_number(row, 8)?.map(|offset| Place { segment, offset }),
        token_records: number(row, 9)?,
    }))
}

/// The token records of the policy's calls in the attempt that [`calls`] would list.
pub(crate) fn token_records(
    connection: &Connection,
    segments: &Utf8Path,
    id: &RolloutId,
) -> Result<Vec<(SampleId, Bytes)>, SqlError> {
    let Some(attempt) = shown_attempt(connection, id)? else {
        return Ok(Vec::new());
    };
    let mut select = connection.prepare_cached(
        "SELECT call_id, sample_id, segment, tokens_offset, token_records FROM calls
         WHERE rollout_id = ?1 AND attempt = ?2 AND tokens_offset IS NOT NULL AND purpose = 'policy'
         ORDER BY call_id",
    )?;
    let mut rows = select.query(params![id.as_str(), attempt])?;
    let mut segments = SegmentReader::new(segments);
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let sample = SampleId::new(row.get::<_, String>(1)?)?;
        let place = Place {
            segment: number(row, 2)?,
            offset: number(row, 3)?,
        };
        let Some(of_call) = parted(segments.read(place)?.into(), number(row, 4)?) else {
            return Err(senseless_tokens(number(row, 0)?));
        };
        records.extend(of_call.into_iter().map(|record| (sample.clone(), record)));
    }
    Ok(records)
}

/// Records as one payload, each with its length before it.
fn joined(records: &[Bytes]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(records.iter().map(|record| record.len() + 4).sum());
    for record in records {
        // A payload that is too long for its length is refused before it is stored.
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        payload.extend_from_slice(&length.to_le_bytes());
        payload.extend_from_slice(record);
    }
    payload
}

/// What [`joined`] joined; `None` when it is not that.
fn parted(mut payload: Bytes, count: usize) -> Option<Vec<Bytes>> {
    let mut records = Vec::new();
    while !payload.is_empty() {
        let length = usize::try_from(payload.try_get_u32_le().ok()?).ok()?;
        if length > payload.len() {
            return None;
        }
        records.push(payload.split_to(length));
    }
    (records.len() == count).then_some(records)
}

fn senseless_tokens(call_id: u64) -> SqlError {
    SqlError::Senseless(format!(
        "the token records of call {call_id} do not fit together"
    ))
}
