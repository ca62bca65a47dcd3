//! A new run of everything in another that makes sense.

use std::collections::BTreeMap;

use osmosis_store::{RunKey, SalvageReport};

use crate::catalogue::make;
use crate::connection::Connection;
use crate::error::DbError;
use crate::records::number;

/// How each table goes into the new run, `$1`, out of the other, `$2`. Rollouts that are under way wait again.
const COPIES: [&str; 6] = [
    "INSERT INTO osmosis.rows (run_id, row_index, line, body)
     SELECT $1, row_index, line, body FROM osmosis.rows WHERE run_id = $2",
    "INSERT INTO osmosis.rollouts (run_id, rollout_id, row_index, run_index, state, attempt, failures, losses, outcome,
        reward, passed, error, sample_rewards, model_calls, prompt_tokens, completion_tokens, cached_tokens,
        reasoning_tokens, judge_calls, judge_prompt_tokens, judge_completion_tokens, queue_ms, agent_ms, model_ms,
        grade_ms, started_at_ms, finished_at_ms, metrics, outcome_detail)
     SELECT $1, rollout_id, row_index, run_index, CASE WHEN state = 'done' THEN state ELSE 'queued' END, attempt,
        failures, losses, outcome, reward, passed, error, sample_rewards, model_calls, prompt_tokens,
        completion_tokens, cached_tokens, reasoning_tokens, judge_calls, judge_prompt_tokens,
        judge_completion_tokens, queue_ms, agent_ms, model_ms, grade_ms, started_at_ms, finished_at_ms, metrics,
        outcome_detail
     FROM osmosis.rollouts WHERE run_id = $2",
    "INSERT INTO osmosis.samples (run_id, rollout_id, sample_id, position, reward, removed, metrics, extra_fields, messages)
     SELECT $1, rollout_id, sample_id, position, reward, removed, metrics, extra_fields, messages
     FROM osmosis.samples WHERE run_id = $2",
    "INSERT INTO osmosis.steps (run_id, step, policy_version, metrics, finished_at_ms)
     SELECT $1, step, policy_version, metrics, finished_at_ms FROM osmosis.steps WHERE run_id = $2",
    "INSERT INTO osmosis.batches (run_id, number, policy_version, content, formed_at_ms, acknowledged_at_ms)
     SELECT $1, number, policy_version, content, formed_at_ms, acknowledged_at_ms
     FROM osmosis.batches WHERE run_id = $2",
    "INSERT INTO osmosis.requests (run_id, rollout_id, sealed, cancel_asked_at_ms, agent_done_at_ms,
        completion_delivered_at_ms, settled_at_ms)
     SELECT $1, rollout_id, sealed, cancel_asked_at_ms, agent_done_at_ms, completion_delivered_at_ms, settled_at_ms
     FROM osmosis.requests WHERE run_id = $2",
];

/// `None` when there is a run of that name.
pub(crate) async fn salvage(
    connection: &Connection,
    from: i32,
    to: &RunKey,
    damaged: &BTreeMap<i64, String>,
) -> Result<Option<SalvageReport>, DbError> {
    connection.batch("BEGIN").await?;
    let salvaged = copy(connection, from, to, damaged).await;
    let end = if matches!(salvaged, Ok(Some(_))) {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    let ended = connection.batch(end).await;
    let salvaged = salvaged?;
    ended?;
    Ok(salvaged)
}

async fn copy(
    connection: &Connection,
    from: i32,
    to: &RunKey,
    damaged: &BTreeMap<i64, String>,
) -> Result<Option<SalvageReport>, DbError> {
    let Some(run_id) = make(connection, to).await? else {
        return Ok(None);
    };
    let has_record = connection
        .execute(
            "INSERT INTO osmosis.run_records
                (run_id, name, kind, status, created_at_ms, finished_at_ms, config_toml, pinned)
             SELECT $1, $3, kind, status, created_at_ms, finished_at_ms, config_toml, pinned
             FROM osmosis.run_records WHERE run_id = $2",
            &[&run_id, &from, &to.name.as_str()],
        )
        .await?
        > 0;
    let mut report = SalvageReport {
        has_record,
        ..SalvageReport::default()
    };
    for sql in COPIES {
        connection.execute(sql, &[&run_id, &from]).await?;
    }
    let lost: Vec<i64> = damaged.keys().copied().collect();
    connection
        .execute(
            "INSERT INTO osmosis.calls
             SELECT $1, call_id, rollout_id, attempt, sample_id, purpose, dialect, model, upstream, policy_version,
                streamed, status, error, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, queued_at_ms,
                sent_at_ms, first_byte_at_ms, done_at_ms, request_bytes, response_bytes, tokens_bytes, token_records,
                base_call_id, shared_prefix_bytes, shared_suffix_bytes, chain_length, compressed, checksum, request,
                response, tokens
             FROM osmosis.calls WHERE run_id = $2 AND call_id <> ALL ($3::bigint[])",
            &[&run_id, &from, &lost],
        )
        .await?;
    connection
        .execute(
            "UPDATE osmosis.call_ids SET next_id = (SELECT next_id FROM osmosis.call_ids WHERE run_id = $2)
             WHERE run_id = $1",
            &[&run_id, &from],
        )
        .await?;
    for (call_id, why) in damaged {
        report.lose(format!("call {call_id}"), why.clone());
    }
    let row = connection
        .query_one(
            "SELECT (SELECT count(*) FROM osmosis.rows WHERE run_id = $1),
                (SELECT count(*) FROM osmosis.rollouts WHERE run_id = $1 AND state = 'done'),
                (SELECT count(*) FROM osmosis.rollouts WHERE run_id = $1 AND state <> 'done'),
                (SELECT count(*) FROM osmosis.calls WHERE run_id = $1),
                (SELECT count(*) FROM osmosis.steps WHERE run_id = $1),
                (SELECT count(*) FROM osmosis.batches WHERE run_id = $1)",
            &[&run_id],
        )
        .await?;
    report.rows = number(&row, 0)?;
    report.results = number(&row, 1)?;
    report.waiting = number(&row, 2)?;
    report.calls = number(&row, 3)?;
    report.steps = number(&row, 4)?;
    report.batches = number(&row, 5)?;
    Ok(Some(report))
}
