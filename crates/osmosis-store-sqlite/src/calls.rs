//! Model calls: one row each, the bodies in segments, which `bodies` reads.

use std::sync::LazyLock;

use osmosis_core::{Attempt, PolicyVersion, RolloutId, SampleId};
use osmosis_store::authenticity::RecordKey;
use osmosis_store::encoding::{Base, Conversations, join_token_records};
use osmosis_store::{CallPurpose, CallQuery, CallRecord, CallSummary, NewCall, StoreError};
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row, params};

use crate::checksum::CALLS;
use crate::rollouts::call_summary;
use crate::segment::{HEADER_BYTES, Place, SegmentWriter};
use crate::sql::{SqlError, number, optional_number, to_sql};

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

impl CallFailure {
    pub(crate) fn into_sql_error(self) -> SqlError {
        match self {
            Self::Sql(error) => error,
            Self::Segments(error) => SqlError::Refused(error),
        }
    }
}

/// Adds the rows of calls; made ready once for a batch, because looking it up costs a third of using it.
pub(crate) struct CallInsertion<'c> {
    statement: CachedStatement<'c>,
    /// The checksum covers the id, so it is given and not left to SQLite.
    next_id: i64,
    key: Option<RecordKey>,
}

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let numbers: Vec<String> = (1..=CALLS.columns.len()).map(|n| format!("?{n}")).collect();
    let given: Vec<(&str, &str)> = CALLS
        .columns
        .iter()
        .zip(&numbers)
        .map(|(column, number)| (*column, number.as_str()))
        .collect();
    format!("INSERT {}", CALLS.insertion(&given))
});

pub(crate) fn insertion<'c>(
    connection: &'c Connection,
    key: Option<&RecordKey>,
) -> Result<CallInsertion<'c>, SqlError> {
    let last: i64 = connection
        .prepare_cached("SELECT coalesce(max(call_id), 0) FROM main.calls")?
        .query_row([], |row| row.get(0))?;
    Ok(CallInsertion {
        statement: connection.prepare_cached(&INSERT)?,
        next_id: last + 1,
        key: key.cloned(),
    })
}

/// Appends the bodies and adds the row. Nothing is durable before the segments are synced and the
/// transaction is committed.
pub(crate) fn record(
    insert: &mut CallInsertion<'_>,
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
    let tokens = join_token_records(&call.tokens);
    let longest = stored.len().max(call.response.len()).max(tokens.len());
    if longest > u32::MAX as usize {
        return Err(StoreError::refused("the bodies of the call are too large").into());
    }
    let response = call.response.slices();
    let (request_place, response_place, tokens_place) = if call.tokens.is_empty() {
        let [request, response] = segments
            .append([&[stored], &response])
            .map_err(CallFailure::Segments)?;
        (request, response, None)
    } else {
        let [request, response, tokens] = segments
            .append([&[stored], &response, &[&tokens]])
            .map_err(CallFailure::Segments)?;
        (request, response, Some(tokens))
    };
    let body_macs = insert.key.as_ref().map(|key| {
        [
            key.body(&[stored]),
            key.body(&response),
            key.body(&[&tokens]),
        ]
        .concat()
    });
    let chain_length = base.as_ref().map_or(0, |(base, _)| base.chain_length + 1);
    let shared = base.as_ref().map(|(_, shared)| *shared);
    let call_id = insert.next_id;
    insert.statement.execute(params![
        call_id,
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
        tokens_place
            .map(|_| to_sql(tokens.len() as u64))
            .transpose()?,
        call.cached_tokens.map(to_sql).transpose()?,
        call.reasoning_tokens.map(to_sql).transpose()?,
        call.purpose.as_str(),
        body_macs,
    ])?;
    insert.next_id += 1;
    let base = Base {
        call_id,
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
            coalesce(tokens_bytes, response_bytes) FROM main.calls ORDER BY call_id DESC LIMIT 1",
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
    let mut select = connection.prepare_cached(&SELECT_OF_ATTEMPT)?;
    let mut rows = select.query(params![query.rollout_id.as_str(), attempt])?;
    let mut calls = Vec::new();
    while let Some(row) = rows.next()? {
        calls.push(call(row)?);
    }
    Ok(calls)
}

/// The accepted attempt, or the latest that made a call.
pub(super) fn shown_attempt(
    connection: &Connection,
    id: &RolloutId,
) -> Result<Option<u32>, SqlError> {
    let accepted = connection
        .prepare_cached("SELECT attempt FROM rollouts WHERE rollout_id = ?1 AND +state = 'done'")?
        .query_row([id.as_str()], |row| row.get(0))
        .optional()?;
    if accepted.is_some() {
        return Ok(accepted);
    }
    Ok(connection
        .prepare_cached("SELECT max(attempt) FROM calls WHERE rollout_id = ?1")?
        .query_row([id.as_str()], |row| row.get(0))?)
}

/// What [`call`] reads, in its order. To find a column by its name, SQLite is asked for the names of all: that took
/// most of the time of reading a call.
pub(super) const COLUMNS: &str = "call_id, rollout_id, attempt, sample_id, purpose, dialect, model, upstream, \
     policy_version, streamed, status, error, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, \
     queued_at_ms, sent_at_ms, first_byte_at_ms, done_at_ms, token_records";
/// How many these are.
pub(super) const COLUMN_COUNT: usize = 21;

static SELECT_OF_ATTEMPT: LazyLock<String> = LazyLock::new(|| {
    format!("SELECT {COLUMNS} FROM calls WHERE rollout_id = ?1 AND attempt = ?2 ORDER BY call_id")
});

/// A row that begins with [`COLUMNS`].
pub(super) fn call(row: &Row<'_>) -> Result<CallRecord, SqlError> {
    Ok(CallRecord {
        call_id: number(row, 0)?,
        rollout_id: RolloutId::new(row.get::<_, String>(1)?)?,
        attempt: Attempt(number(row, 2)?),
        sample_id: SampleId::new(row.get::<_, String>(3)?)?,
        purpose: purpose(row.get_ref(4)?.as_str()?)?,
        dialect: row.get(5)?,
        model: row.get(6)?,
        upstream: row.get(7)?,
        policy_version: PolicyVersion(row.get::<_, i64>(8)?.cast_unsigned()),
        streamed: row.get(9)?,
        status: number(row, 10)?,
        error: row.get(11)?,
        prompt_tokens: optional_number(row, 12)?,
        completion_tokens: optional_number(row, 13)?,
        cached_tokens: optional_number(row, 14)?,
        reasoning_tokens: optional_number(row, 15)?,
        queued_at_ms: row.get(16)?,
        sent_at_ms: row.get(17)?,
        first_byte_at_ms: row.get(18)?,
        done_at_ms: row.get(19)?,
        token_records: number(row, 20)?,
    })
}

fn purpose(text: &str) -> Result<CallPurpose, SqlError> {
    CallPurpose::parse(text).ok_or_else(|| SqlError::Senseless(format!("purpose `{text}`")))
}
