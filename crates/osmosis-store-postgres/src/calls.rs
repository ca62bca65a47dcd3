//! Model calls: one row each, with their bodies, told by what is new and compressed.

use std::borrow::Cow;

use futures_util::future::BoxFuture;
use osmosis_core::{Attempt, PolicyVersion, RolloutId, SampleId};
use osmosis_store::encoding::{Base, Conversations, join_token_records};
use osmosis_store::{CallPurpose, CallQuery, CallRecord, CallSummary, NewCall, StoreError};
use tokio_postgres::Row;

use crate::connection::Connection;
use crate::error::DbError;
use crate::records::{number, optional_number, to_sql};
use crate::rollouts::call_summary;
use crate::text;
use crate::transaction::{Transaction, Work};

/// Numbers that are reserved at once, so that members of a run don't wait for each other at every commit.
const RESERVED: i64 = 512;

/// Bits of the column `compressed`.
pub(crate) const REQUEST: i16 = 1;
pub(crate) const RESPONSE: i16 = 2;
pub(crate) const TOKENS: i16 = 4;

/// Fewer bytes are stored as they are.
const WORTH_COMPRESSING: usize = 200;
/// Of zstd: higher ones cost more time than they save room for bodies of some kilobytes.
const LEVEL: i32 = 1;
/// What one value of PostgreSQL can hold, with room for what is around it.
const MAX_BODY_BYTES: usize = 1000 * 1000 * 1000;

/// Numbers for calls that are ours.
#[derive(Debug, Default)]
pub(crate) struct CallIds {
    next: i64,
    end: i64,
}

impl CallIds {
    pub(crate) fn left(&self) -> usize {
        usize::try_from(self.end - self.next).unwrap_or(0)
    }

    pub(crate) fn take(&mut self) -> Result<i64, StoreError> {
        if self.next == self.end {
            return Err(StoreError::refused("no number is left for a call"));
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    /// In a transaction of its own: the row is locked for a moment only.
    pub(crate) async fn reserve(
        connection: &Connection,
        run_id: i32,
        at_least: usize,
    ) -> Result<Self, DbError> {
        let count = RESERVED.max(i64::try_from(at_least).unwrap_or(i64::MAX));
        let row = connection
            .query_optional(
                "UPDATE osmosis.call_ids SET next_id = next_id + $2 WHERE run_id = $1 RETURNING next_id",
                &[&run_id, &count],
            )
            .await?;
        let Some(row) = row else {
            return Err(StoreError::refused("the run is gone").into());
        };
        let end: i64 = row.try_get(0)?;
        Ok(Self {
            next: end - count,
            end,
        })
    }
}

/// A call as it is stored.
#[derive(Debug)]
pub(crate) struct EncodedCall {
    call_id: i64,
    rollout_id: String,
    attempt: i64,
    sample_id: String,
    purpose: &'static str,
    dialect: String,
    model: String,
    upstream: String,
    policy_version: i64,
    streamed: bool,
    status: i32,
    error: Option<String>,
    prompt_tokens: Option<i64>,
    completion_tokens: Option<i64>,
    cached_tokens: Option<i64>,
    reasoning_tokens: Option<i64>,
    queued_at_ms: i64,
    sent_at_ms: Option<i64>,
    first_byte_at_ms: Option<i64>,
    done_at_ms: i64,
    request_bytes: i64,
    response_bytes: i64,
    tokens_bytes: i64,
    token_records: i64,
    base_call_id: Option<i64>,
    shared_prefix_bytes: i64,
    shared_suffix_bytes: i64,
    chain_length: i64,
    compressed: i16,
    checksum: i64,
    request: Vec<u8>,
    response: Vec<u8>,
    tokens: Vec<u8>,
}

impl EncodedCall {
    pub(crate) fn new(
        call_id: i64,
        call: &NewCall,
        conversations: &mut Conversations,
    ) -> Result<Self, StoreError> {
        let base = conversations
            .base(&call.rollout_id, call.attempt, &call.sample_id)
            .and_then(|base| Some((base, base.shared_with(&call.request)?)));
        let new: &[u8] = match &base {
            Some((_, shared)) => shared.middle(&call.request),
            None => &call.request,
        };
        let response = call.response.joined();
        let tokens = join_token_records(&call.tokens);
        if new.len().max(response.len()).max(tokens.len()) > MAX_BODY_BYTES {
            return Err(StoreError::refused("the bodies of the call are too large"));
        }
        let chain_length = base.as_ref().map_or(0, |(base, _)| base.chain_length + 1);
        let shared = base.as_ref().map(|(_, shared)| *shared);
        let mut compressed = 0;
        let mut pack = |bytes: &[u8], bit: i16| {
            let (packed, is_smaller) = pack(bytes);
            compressed |= if is_smaller { bit } else { 0 };
            packed.into_owned()
        };
        let encoded = Self {
            call_id,
            rollout_id: call.rollout_id.to_string(),
            attempt: i64::from(call.attempt.0),
            sample_id: call.sample_id.to_string(),
            purpose: call.purpose.as_str(),
            dialect: text::stored(&call.dialect).into_owned(),
            model: text::stored(&call.model).into_owned(),
            upstream: text::stored(&call.upstream).into_owned(),
            // Bit for bit, so that any version fits.
            policy_version: call.policy_version.0.cast_signed(),
            streamed: call.streamed,
            status: i32::from(call.status),
            error: call
                .error
                .as_deref()
                .map(|error| text::stored(error).into_owned()),
            prompt_tokens: call.prompt_tokens.map(to_sql).transpose()?,
            completion_tokens: call.completion_tokens.map(to_sql).transpose()?,
            cached_tokens: call.cached_tokens.map(to_sql).transpose()?,
            reasoning_tokens: call.reasoning_tokens.map(to_sql).transpose()?,
            queued_at_ms: call.queued_at_ms,
            sent_at_ms: call.sent_at_ms,
            first_byte_at_ms: call.first_byte_at_ms,
            done_at_ms: call.done_at_ms,
            request_bytes: to_sql(call.request.len() as u64)?,
            response_bytes: to_sql(response.len() as u64)?,
            tokens_bytes: to_sql(tokens.len() as u64)?,
            token_records: to_sql(call.tokens.len() as u64)?,
            base_call_id: base.as_ref().map(|(base, _)| base.call_id),
            shared_prefix_bytes: to_sql(shared.map_or(0, |shared| shared.prefix as u64))?,
            shared_suffix_bytes: to_sql(shared.map_or(0, |shared| shared.suffix as u64))?,
            chain_length: i64::from(chain_length),
            checksum: i64::from(checksum(&call.request, &response, &tokens)),
            request: pack(new, REQUEST),
            response: pack(&response, RESPONSE),
            tokens: pack(&tokens, TOKENS),
            compressed,
        };
        let base = Base {
            call_id,
            chain_length,
            request: call.request.clone(),
        };
        conversations.remember(&call.rollout_id, call.attempt, &call.sample_id, base);
        Ok(encoded)
    }
}

pub(crate) fn checksum(request: &[u8], response: &[u8], tokens: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in [request, response, tokens] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

/// Compressed, where that makes it smaller.
fn pack(bytes: &[u8]) -> (Cow<'_, [u8]>, bool) {
    if bytes.len() >= WORTH_COMPRESSING
        && let Ok(packed) = zstd::bulk::compress(bytes, LEVEL)
        && packed.len() < bytes.len()
    {
        return (Cow::Owned(packed), true);
    }
    (Cow::Borrowed(bytes), false)
}

/// Calls that are written together.
pub(crate) struct Calls<'c>(&'c [EncodedCall]);

impl<'c> Calls<'c> {
    pub(crate) fn new(calls: &'c [EncodedCall]) -> Self {
        Self(calls)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// One that is there already was written by a commit whose answer was lost.
const INSERT: &str = "INSERT INTO osmosis.calls (run_id, call_id, rollout_id, attempt, sample_id, purpose, dialect, model,
        upstream, policy_version, streamed, status, error, prompt_tokens, completion_tokens, cached_tokens,
        reasoning_tokens, queued_at_ms, sent_at_ms, first_byte_at_ms, done_at_ms, request_bytes, response_bytes,
        tokens_bytes, token_records, base_call_id, shared_prefix_bytes, shared_suffix_bytes, chain_length, compressed,
        checksum, request, response, tokens)
    SELECT $1, * FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::text[], $10::bigint[], $11::boolean[], $12::integer[], $13::text[], $14::bigint[], $15::bigint[],
        $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[],
        $23::bigint[], $24::bigint[], $25::bigint[], $26::bigint[], $27::bigint[], $28::bigint[], $29::bigint[],
        $30::smallint[], $31::bigint[], $32::bytea[], $33::bytea[], $34::bytea[])
    ON CONFLICT (run_id, call_id) DO NOTHING";

impl Work for Calls<'_> {
    fn run<'a>(
        &'a mut self,
        transaction: &'a Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), DbError>> {
        Box::pin(async move {
            macro_rules! borrowed {
                ($($name:ident),* $(,)?) => {
                    $( let $name: Vec<_> = self.0.iter().map(|call| &*call.$name).collect(); )*
                };
            }
            macro_rules! values {
                ($($name:ident),* $(,)?) => {
                    $( let $name: Vec<_> = self.0.iter().map(|call| call.$name).collect(); )*
                };
            }
            borrowed!(rollout_id, sample_id, purpose, dialect, model, upstream);
            borrowed!(request, response, tokens);
            values!(
                call_id,
                attempt,
                policy_version,
                streamed,
                status,
                prompt_tokens,
                completion_tokens,
                cached_tokens,
                reasoning_tokens,
                queued_at_ms,
                sent_at_ms,
                first_byte_at_ms,
                done_at_ms,
                request_bytes,
                response_bytes,
                tokens_bytes,
                token_records,
                base_call_id,
                shared_prefix_bytes,
                shared_suffix_bytes,
                chain_length,
                compressed,
                checksum,
            );
            let error: Vec<Option<&str>> =
                self.0.iter().map(|call| call.error.as_deref()).collect();
            transaction
                .execute(
                    INSERT,
                    &[
                        transaction.run_id(),
                        &call_id,
                        &rollout_id,
                        &attempt,
                        &sample_id,
                        &purpose,
                        &dialect,
                        &model,
                        &upstream,
                        &policy_version,
                        &streamed,
                        &status,
                        &error,
                        &prompt_tokens,
                        &completion_tokens,
                        &cached_tokens,
                        &reasoning_tokens,
                        &queued_at_ms,
                        &sent_at_ms,
                        &first_byte_at_ms,
                        &done_at_ms,
                        &request_bytes,
                        &response_bytes,
                        &tokens_bytes,
                        &token_records,
                        &base_call_id,
                        &shared_prefix_bytes,
                        &shared_suffix_bytes,
                        &chain_length,
                        &compressed,
                        &checksum,
                        &request,
                        &response,
                        &tokens,
                    ],
                )
                .await?;
            Ok(())
        })
    }
}

pub(crate) async fn totals(connection: &Connection, run_id: i32) -> Result<CallSummary, DbError> {
    let row = connection
        .query_one(
            "SELECT count(*) FILTER (WHERE purpose = 'policy') AS model_calls,
                coalesce(sum(prompt_tokens) FILTER (WHERE purpose = 'policy'), 0)::bigint AS prompt_tokens,
                coalesce(sum(completion_tokens) FILTER (WHERE purpose = 'policy'), 0)::bigint AS completion_tokens,
                (sum(cached_tokens) FILTER (WHERE purpose = 'policy'))::bigint AS cached_tokens,
                (sum(reasoning_tokens) FILTER (WHERE purpose = 'policy'))::bigint AS reasoning_tokens,
                count(*) FILTER (WHERE purpose = 'judge') AS judge_calls,
                coalesce(sum(prompt_tokens) FILTER (WHERE purpose = 'judge'), 0)::bigint AS judge_prompt_tokens,
                coalesce(sum(completion_tokens) FILTER (WHERE purpose = 'judge'), 0)::bigint
                    AS judge_completion_tokens
             FROM osmosis.calls WHERE run_id = $1",
            &[&run_id],
        )
        .await?;
    call_summary(&row)
}

pub(crate) async fn calls(
    connection: &Connection,
    run_id: i32,
    query: &CallQuery,
) -> Result<Vec<CallRecord>, DbError> {
    let attempt = match query.attempt {
        Some(attempt) => Some(i64::from(attempt.0)),
        None => shown_attempt(connection, run_id, &query.rollout_id).await?,
    };
    let Some(attempt) = attempt else {
        return Ok(Vec::new());
    };
    connection
        .query(
            "SELECT call_id, rollout_id, attempt, sample_id, purpose, dialect, model, upstream, policy_version,
                streamed, status, error, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens,
                queued_at_ms, sent_at_ms, first_byte_at_ms, done_at_ms, token_records
             FROM osmosis.calls WHERE run_id = $1 AND rollout_id = $2 AND attempt = $3 ORDER BY call_id",
            &[&run_id, &query.rollout_id.as_str(), &attempt],
        )
        .await?
        .iter()
        .map(call)
        .collect()
}

/// The accepted attempt, or the latest that made a call.
pub(crate) async fn shown_attempt(
    connection: &Connection,
    run_id: i32,
    id: &RolloutId,
) -> Result<Option<i64>, DbError> {
    let row = connection
        .query_one(
            "SELECT coalesce(
                (SELECT attempt FROM osmosis.rollouts WHERE run_id = $1 AND rollout_id = $2 AND state = 'done'),
                (SELECT max(attempt) FROM osmosis.calls WHERE run_id = $1 AND rollout_id = $2))",
            &[&run_id, &id.as_str()],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// Out of a row that has these columns, in whatever order.
pub(crate) fn call(row: &Row) -> Result<CallRecord, DbError> {
    let stored = |column: &str| -> Result<String, DbError> {
        Ok(text::read(row.try_get::<_, String>(column)?))
    };
    let purpose: &str = row.try_get("purpose")?;
    Ok(CallRecord {
        call_id: number(row, "call_id")?,
        rollout_id: RolloutId::new(row.try_get::<_, String>("rollout_id")?)?,
        attempt: Attempt(number(row, "attempt")?),
        sample_id: SampleId::new(row.try_get::<_, String>("sample_id")?)?,
        purpose: CallPurpose::parse(purpose)
            .ok_or_else(|| DbError::Senseless(format!("purpose `{purpose}`")))?,
        dialect: stored("dialect")?,
        model: stored("model")?,
        upstream: stored("upstream")?,
        policy_version: PolicyVersion(row.try_get::<_, i64>("policy_version")?.cast_unsigned()),
        streamed: row.try_get("streamed")?,
        status: u16::try_from(row.try_get::<_, i32>("status")?)
            .map_err(|_| DbError::Senseless("`status` is no status".to_owned()))?,
        error: row.try_get::<_, Option<String>>("error")?.map(text::read),
        prompt_tokens: optional_number(row, "prompt_tokens")?,
        completion_tokens: optional_number(row, "completion_tokens")?,
        cached_tokens: optional_number(row, "cached_tokens")?,
        reasoning_tokens: optional_number(row, "reasoning_tokens")?,
        queued_at_ms: row.try_get("queued_at_ms")?,
        sent_at_ms: row.try_get("sent_at_ms")?,
        first_byte_at_ms: row.try_get("first_byte_at_ms")?,
        done_at_ms: row.try_get("done_at_ms")?,
        token_records: number(row, "token_records")?,
    })
}
