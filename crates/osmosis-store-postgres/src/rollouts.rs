//! What is known about the run's rows, its rollouts and their samples.

use std::collections::HashMap;

use osmosis_core::{Durations, Outcome, OutcomeKind, Reward, RolloutId, Sample, SampleId};
use osmosis_store::encoding::{read_outcome, read_rewards};
use osmosis_store::{
    CallSummary, JudgeSummary, OutcomeTally, QueueCounts, RolloutPage, RolloutQuery, RolloutRecord,
    RowRecord,
};
use tokio_postgres::Row;

use crate::connection::Connection;
use crate::error::DbError;
use crate::records::{json, number, optional_json, optional_number, to_sql};

const DEFAULT_PAGE: usize = 1000;

pub(crate) async fn counts(connection: &Connection, run_id: i32) -> Result<QueueCounts, DbError> {
    let mut counts = QueueCounts::default();
    let rows = connection
        .query(
            "SELECT state, count(*) FROM osmosis.rollouts WHERE run_id = $1 GROUP BY state",
            &[&run_id],
        )
        .await?;
    for row in rows {
        let n = number(&row, 1)?;
        match row.try_get(0)? {
            "queued" => counts.queued = n,
            "leased" => counts.leased = n,
            "done" => counts.done = n,
            other => return Err(DbError::Senseless(format!("state `{other}`"))),
        }
    }
    Ok(counts)
}

pub(crate) async fn tally(
    connection: &Connection,
    run_id: i32,
) -> Result<Vec<OutcomeTally>, DbError> {
    let rows = connection
        .query(
            "SELECT outcome, count(*) AS rollouts, coalesce(sum(reward), 0) AS reward_sum,
                count(*) FILTER (WHERE passed) AS passed, sum(model_calls)::bigint AS model_calls,
                sum(prompt_tokens)::bigint AS prompt_tokens, sum(completion_tokens)::bigint AS completion_tokens,
                sum(cached_tokens)::bigint AS cached_tokens, sum(reasoning_tokens)::bigint AS reasoning_tokens,
                sum(judge_calls)::bigint AS judge_calls, sum(judge_prompt_tokens)::bigint AS judge_prompt_tokens,
                sum(judge_completion_tokens)::bigint AS judge_completion_tokens
             FROM osmosis.rollouts WHERE run_id = $1 AND state = 'done' GROUP BY outcome",
            &[&run_id],
        )
        .await?;
    let mut tallies = Vec::new();
    for row in &rows {
        tallies.push(OutcomeTally {
            kind: outcome_kind(row.try_get("outcome")?)?,
            rollouts: number(row, "rollouts")?,
            passed: number(row, "passed")?,
            reward_sum: row.try_get("reward_sum")?,
            calls: call_summary(row)?,
        });
    }
    tallies.sort_by_key(|tally| tally.kind);
    Ok(tallies)
}

macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "SELECT rollout_id, row_index, run_index, attempt, failures, outcome, reward, passed, outcome_detail,
                sample_rewards, metrics, queue_ms, agent_ms, model_ms, grade_ms, started_at_ms, finished_at_ms,
                model_calls, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, judge_calls,
                judge_prompt_tokens, judge_completion_tokens FROM osmosis.rollouts WHERE run_id = $1 AND ",
            $rest
        )
    };
}

const PAGE: &str = columns!(
    "(row_index, run_index) > ($2, $3) AND ($4::text IS NULL OR outcome = $4)
     AND (NOT $5::boolean OR state = 'done') ORDER BY row_index, run_index LIMIT $6"
);
const PAGE_OF_ROW: &str = columns!(
    "(row_index, run_index) > ($2, $3) AND ($4::text IS NULL OR outcome = $4)
     AND (NOT $5::boolean OR state = 'done') AND row_index = $7 ORDER BY row_index, run_index LIMIT $6"
);

pub(crate) async fn rollouts(
    connection: &Connection,
    run_id: i32,
    query: &RolloutQuery,
) -> Result<RolloutPage, DbError> {
    let limit = if query.limit == 0 {
        DEFAULT_PAGE
    } else {
        query.limit
    };
    let (row, run) = match query.after {
        None => (-1, -1),
        Some((row, run)) => (to_sql(row)?, i64::from(run)),
    };
    let kind = query.kind.map(OutcomeKind::as_str);
    // One more than asked for tells whether there is a next page.
    let one_more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let found = match query.row_index {
        None => {
            let parameters = [
                &run_id as crate::connection::Parameter<'_>,
                &row,
                &run,
                &kind,
                &query.finished_only,
                &one_more,
            ];
            connection.query(PAGE, &parameters).await?
        }
        Some(of) => {
            let of = to_sql(of)?;
            let parameters = [
                &run_id as crate::connection::Parameter<'_>,
                &row,
                &run,
                &kind,
                &query.finished_only,
                &one_more,
                &of,
            ];
            connection.query(PAGE_OF_ROW, &parameters).await?
        }
    };
    let mut page = RolloutPage::default();
    for row in found.iter().take(limit) {
        page.items.push(record(row)?);
    }
    if found.len() > limit {
        page.next = page
            .items
            .last()
            .map(|last| (last.row_index, last.run_index));
    }
    Ok(page)
}

/// These rollouts, in the order they are asked for.
pub(crate) async fn rollouts_by_id(
    connection: &Connection,
    run_id: i32,
    ids: &[RolloutId],
) -> Result<Vec<RolloutRecord>, DbError> {
    let asked: Vec<&str> = ids.iter().map(RolloutId::as_str).collect();
    let rows = connection
        .query(
            columns!("rollout_id = ANY ($2::text[])"),
            &[&run_id, &asked],
        )
        .await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let record = record(row)?;
        found.insert(record.id.clone(), record);
    }
    Ok(ids.iter().filter_map(|id| found.get(id).cloned()).collect())
}

fn record(row: &Row) -> Result<RolloutRecord, DbError> {
    Ok(RolloutRecord {
        id: RolloutId::new(row.try_get::<_, String>(0)?)?,
        row_index: number(row, 1)?,
        run_index: number(row, 2)?,
        attempts: number(row, 3)?,
        failures: number(row, 4)?,
        outcome: outcome(row)?,
        rewards: read_rewards(row.try_get(9)?)?,
        metrics: optional_json(row, 10)?,
        durations: Durations {
            queue: row.try_get(11)?,
            agent: row.try_get(12)?,
            model: row.try_get(13)?,
            grade: row.try_get(14)?,
        },
        started_at_ms: row.try_get(15)?,
        finished_at_ms: row.try_get(16)?,
        calls: call_summary(row)?,
    })
}

fn outcome(row: &Row) -> Result<Option<Outcome>, DbError> {
    let Some(kind) = row.try_get::<_, Option<&str>>(5)? else {
        return Ok(None);
    };
    read_outcome(outcome_kind(kind)?, row.try_get(8)?, || {
        Ok((Reward::recorded(row.try_get(6)?)?, row.try_get(7)?))
    })
    .map(Some)
}

fn outcome_kind(text: &str) -> Result<OutcomeKind, DbError> {
    OutcomeKind::parse(text).ok_or_else(|| DbError::Senseless(format!("outcome `{text}`")))
}

pub(crate) fn call_summary(row: &Row) -> Result<CallSummary, DbError> {
    Ok(CallSummary {
        model_calls: number(row, "model_calls")?,
        prompt_tokens: number(row, "prompt_tokens")?,
        completion_tokens: number(row, "completion_tokens")?,
        cached_tokens: optional_number(row, "cached_tokens")?,
        reasoning_tokens: optional_number(row, "reasoning_tokens")?,
        judge: JudgeSummary {
            calls: number(row, "judge_calls")?,
            prompt_tokens: number(row, "judge_prompt_tokens")?,
            completion_tokens: number(row, "judge_completion_tokens")?,
        },
    })
}

/// The rows of these indices, in that order.
pub(crate) async fn rows(
    connection: &Connection,
    run_id: i32,
    row_indices: &[u64],
) -> Result<Vec<RowRecord>, DbError> {
    let asked: Vec<i64> = row_indices
        .iter()
        .map(|index| to_sql(*index))
        .collect::<Result<_, _>>()?;
    connection
        .query(
            "SELECT rows.row_index, rows.line, rows.body
             FROM unnest($2::bigint[]) WITH ORDINALITY AS asked (row_index, place)
             JOIN osmosis.rows AS rows ON rows.run_id = $1 AND rows.row_index = asked.row_index
             ORDER BY asked.place",
            &[&run_id, &asked],
        )
        .await?
        .iter()
        .map(|row| {
            Ok(RowRecord {
                row_index: number(row, 0)?,
                line: number(row, 1)?,
                body: json(row, 2)?,
            })
        })
        .collect()
}

/// The samples of each of these rollouts.
pub(crate) async fn samples_of(
    connection: &Connection,
    run_id: i32,
    ids: &[RolloutId],
) -> Result<Vec<Vec<Sample>>, DbError> {
    let asked: Vec<&str> = ids.iter().map(RolloutId::as_str).collect();
    let rows = connection
        .query(
            "SELECT asked.place, samples.* FROM unnest($2::text[]) WITH ORDINALITY AS asked (rollout_id, place)
             JOIN osmosis.samples AS samples ON samples.run_id = $1 AND samples.rollout_id = asked.rollout_id
             ORDER BY asked.place, samples.position",
            &[&run_id, &asked],
        )
        .await?;
    let mut found: Vec<Vec<Sample>> = vec![Vec::new(); ids.len()];
    for row in &rows {
        let place: usize = number(row, "place")?;
        if let Some(samples) = found.get_mut(place.wrapping_sub(1)) {
            samples.push(sample(row)?);
        }
    }
    Ok(found)
}

fn sample(row: &Row) -> Result<Sample, DbError> {
    Ok(Sample {
        id: SampleId::new(row.try_get::<_, String>("sample_id")?)?,
        messages: json(row, "messages")?,
        reward: match row.try_get::<_, Option<f64>>("reward")? {
            None => None,
            Some(reward) => Some(Reward::recorded(reward)?),
        },
        remove_sample: row.try_get("removed")?,
        metrics: optional_json(row, "metrics")?,
        extra_fields: optional_json(row, "extra_fields")?,
    })
}
