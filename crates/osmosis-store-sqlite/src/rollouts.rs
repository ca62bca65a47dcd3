//! What is known about the run, its rows, its rollouts and their samples.

use osmosis_core::{Durations, Outcome, OutcomeKind, Reward, RolloutId, RunName, Sample, SampleId};
use osmosis_store::encoding::{read_outcome, read_rewards};
use osmosis_store::{
    CallSummary, JudgeSummary, OutcomeTally, PageEnd, QueueCounts, RolloutPage, RolloutQuery,
    RolloutRecord, RowRecord, RunRecord, RunStatus, StoreError,
};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};

use crate::checksum;
use crate::sql::{SqlError, from_word, json, number, optional_json, optional_number, to_sql, word};

const DEFAULT_PAGE: usize = 1000;

pub(crate) fn create_run(connection: &Connection, run: &RunRecord) -> Result<(), SqlError> {
    if let Some(there) = self::run(connection)? {
        return Err(StoreError::AlreadyExists(there.name).into());
    }
    let insert = checksum::RUN.insertion(&[
        ("only_one", "1"),
        ("name", "?1"),
        ("kind", "?2"),
        ("status", "?3"),
        ("created_at_ms", "?4"),
        ("finished_at_ms", "?5"),
        ("config_toml", "?6"),
        ("pinned", "?7"),
    ]);
    connection.execute(
        &format!("INSERT {insert}"),
        params![
            run.name.as_str(),
            word(&run.kind)?,
            word(&run.status)?,
            run.created_at_ms,
            run.finished_at_ms,
            run.config_toml,
            run.pinned.as_str(),
        ],
    )?;
    Ok(())
}

pub(crate) fn run(connection: &Connection) -> Result<Option<RunRecord>, SqlError> {
    let mut select = connection.prepare_cached("SELECT * FROM run")?;
    let mut rows = select.query([])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    Ok(Some(RunRecord {
        name: RunName::new(row.get::<_, String>("name")?)?,
        kind: from_word(row.get("kind")?)?,
        status: from_word(row.get("status")?)?,
        created_at_ms: row.get("created_at_ms")?,
        finished_at_ms: row.get("finished_at_ms")?,
        config_toml: row.get("config_toml")?,
        pinned: json(row, "pinned")?,
    }))
}

pub(crate) fn set_status(
    connection: &Connection,
    now_ms: i64,
    status: RunStatus,
) -> Result<(), SqlError> {
    let finished_at_ms = match status {
        RunStatus::Finished => Some(now_ms),
        RunStatus::Running | RunStatus::Interrupted => None,
    };
    let changes = checksum::RUN.assignments(&[("status", "?1"), ("finished_at_ms", "?2")]);
    let changed = connection.execute(
        &format!("UPDATE main.run SET {changes}"),
        params![word(&status)?, finished_at_ms],
    )?;
    if changed == 0 {
        return Err(StoreError::refused("the run has no record yet").into());
    }
    Ok(())
}

pub(crate) fn counts(connection: &Connection) -> Result<QueueCounts, SqlError> {
    let mut counts = QueueCounts::default();
    let mut select = connection
        .prepare_cached("SELECT state, count(*) AS n FROM main.rollouts GROUP BY state")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let n = number(row, "n")?;
        match row.get_ref("state")?.as_str() {
            Ok("queued") => counts.queued = n,
            Ok("leased") => counts.leased = n,
            Ok("done") => counts.done = n,
            Ok(other) => return Err(SqlError::Senseless(format!("state `{other}`"))),
            Err(error) => return Err(SqlError::Senseless(error.to_string())),
        }
    }
    Ok(counts)
}

pub(crate) fn tally(connection: &Connection) -> Result<Vec<OutcomeTally>, SqlError> {
    let mut select = connection.prepare_cached(
        "SELECT outcome, count(*) AS rollouts, total(reward) AS reward_sum,
            coalesce(sum(passed), 0) AS passed, sum(model_calls) AS model_calls,
            sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens,
            sum(cached_tokens) AS cached_tokens, sum(reasoning_tokens) AS reasoning_tokens,
            sum(judge_calls) AS judge_calls, sum(judge_prompt_tokens) AS judge_prompt_tokens,
            sum(judge_completion_tokens) AS judge_completion_tokens
         FROM rollouts WHERE +state = 'done' GROUP BY outcome",
    )?;
    let mut rows = select.query([])?;
    let mut tallies = Vec::new();
    while let Some(row) = rows.next()? {
        tallies.push(OutcomeTally {
            kind: outcome_kind(&row.get::<_, String>("outcome")?)?,
            rollouts: number(row, "rollouts")?,
            passed: number(row, "passed")?,
            reward_sum: row.get("reward_sum")?,
            calls: call_summary(row)?,
        });
    }
    tallies.sort_by_key(|tally| tally.kind);
    Ok(tallies)
}

/// The rollouts of a page, of which there may be fewer.
fn page_size(query: &RolloutQuery) -> usize {
    if query.limit == 0 {
        DEFAULT_PAGE
    } else {
        query.limit
    }
}

/// What a query asks for, and the values of its places. The pluses: see [`crate::authentic`].
fn conditions(query: &RolloutQuery) -> Result<(String, Vec<Value>), SqlError> {
    let mut conditions = String::new();
    let mut values: Vec<Value> = Vec::new();
    if let Some(row_index) = query.row_index {
        conditions.push_str(" AND row_index = ?");
        values.push(to_sql(row_index)?.into());
    }
    if let Some(kind) = query.kind {
        conditions.push_str(" AND +outcome = ?");
        values.push(kind.as_str().to_owned().into());
    }
    if query.finished_only {
        // The plus keeps SQLite on the index that has the wanted order.
        conditions.push_str(" AND +state = 'done'");
    }
    if let Some((row_index, run_index)) = query.after {
        conditions.push_str(" AND (row_index, run_index) > (?, ?)");
        values.push(to_sql(row_index)?.into());
        values.push(i64::from(run_index).into());
    }
    Ok((conditions, values))
}

pub(crate) fn page_end(connection: &Connection, query: &RolloutQuery) -> Result<PageEnd, SqlError> {
    let (conditions, mut values) = conditions(query)?;
    let others = i64::try_from(page_size(query) - 1).unwrap_or(i64::MAX);
    values.push(others.into());
    let mut select = connection.prepare_cached(&format!(
        "SELECT row_index, run_index FROM main.rollouts WHERE true {conditions}
         ORDER BY row_index, run_index LIMIT 1 OFFSET ?"
    ))?;
    let mut rows = select.query(params_from_iter(values))?;
    match rows.next()? {
        None => Ok(PageEnd::Last),
        Some(row) => Ok(PageEnd::At((number(row, 0)?, number(row, 1)?))),
    }
}

pub(crate) fn rollouts(
    connection: &Connection,
    query: &RolloutQuery,
) -> Result<RolloutPage, SqlError> {
    let limit = page_size(query);
    let (conditions, mut values) = conditions(query)?;
    // One more than asked for tells whether there is a next page.
    let one_more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    values.push(one_more.into());

    let mut select = connection.prepare_cached(&page_sql(&conditions))?;
    let mut rows = select.query(params_from_iter(values))?;
    let mut page = RolloutPage::default();
    while let Some(row) = rows.next()? {
        if page.items.len() == limit {
            page.next = page
                .items
                .last()
                .map(|last| (last.row_index, last.run_index));
            break;
        }
        page.items.push(record(row)?);
    }
    Ok(page)
}

pub(crate) fn page_sql(conditions: &str) -> String {
    format!(
        "SELECT {COLUMNS} FROM rollouts WHERE true {conditions}
         ORDER BY row_index, run_index LIMIT ?"
    )
}

pub(crate) fn rollout(
    connection: &Connection,
    id: &RolloutId,
) -> Result<Option<RolloutRecord>, SqlError> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM rollouts WHERE rollout_id = ?1"
    ))?;
    let mut rows = select.query([id.as_str()])?;
    match rows.next()? {
        None => Ok(None),
        Some(row) => record(row).map(Some),
    }
}

pub(crate) fn rollouts_by_id(
    connection: &Connection,
    ids: &[RolloutId],
) -> Result<Vec<RolloutRecord>, SqlError> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(rollout(connection, id)?);
    }
    Ok(found)
}

/// Read by position in [`record`]: looking names up costs more than the rest for a large report.
pub(super) const COLUMNS: &str =
    "rollout_id, row_index, run_index, attempt, failures, outcome, reward, passed,
    outcome_detail, sample_rewards, metrics, queue_ms, agent_ms, model_ms, grade_ms,
    started_at_ms, finished_at_ms, model_calls, prompt_tokens, completion_tokens, cached_tokens,
    reasoning_tokens, judge_calls, judge_prompt_tokens, judge_completion_tokens";

pub(super) fn record(row: &Row<'_>) -> Result<RolloutRecord, SqlError> {
    Ok(RolloutRecord {
        id: RolloutId::new(row.get::<_, String>(0)?)?,
        row_index: number(row, 1)?,
        run_index: number(row, 2)?,
        attempts: number(row, 3)?,
        failures: number(row, 4)?,
        outcome: outcome(row)?,
        rewards: read_rewards(row.get_ref(9)?.as_str_or_null()?)?,
        metrics: optional_json(row, 10)?,
        durations: Durations {
            queue: row.get(11)?,
            agent: row.get(12)?,
            model: row.get(13)?,
            grade: row.get(14)?,
        },
        started_at_ms: row.get(15)?,
        finished_at_ms: row.get(16)?,
        calls: CallSummary {
            model_calls: number(row, 17)?,
            prompt_tokens: number(row, 18)?,
            completion_tokens: number(row, 19)?,
            cached_tokens: optional_number(row, 20)?,
            reasoning_tokens: optional_number(row, 21)?,
            judge: JudgeSummary {
                calls: number(row, 22)?,
                prompt_tokens: number(row, 23)?,
                completion_tokens: number(row, 24)?,
            },
        },
    })
}

fn outcome(row: &Row<'_>) -> Result<Option<Outcome>, SqlError> {
    let Some(kind) = row.get_ref(5)?.as_str_or_null()? else {
        return Ok(None);
    };
    let detail = row.get_ref(8)?.as_str_or_null()?;
    read_outcome(outcome_kind(kind)?, detail, || {
        Ok((Reward::recorded(row.get(6)?)?, row.get(7)?))
    })
    .map(Some)
}

fn outcome_kind(text: &str) -> Result<OutcomeKind, SqlError> {
    OutcomeKind::parse(text).ok_or_else(|| SqlError::Senseless(format!("outcome `{text}`")))
}

pub(super) fn call_summary(row: &Row<'_>) -> Result<CallSummary, SqlError> {
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

pub(crate) fn row(connection: &Connection, row_index: u64) -> Result<Option<RowRecord>, SqlError> {
    let mut select =
        connection.prepare_cached("SELECT line, body FROM rows WHERE row_index = ?1")?;
    let mut rows = select.query([to_sql(row_index)?])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    Ok(Some(RowRecord {
        row_index,
        line: number(row, "line")?,
        body: json(row, "body")?,
    }))
}

pub(crate) fn rows(
    connection: &Connection,
    row_indices: &[u64],
) -> Result<Vec<RowRecord>, SqlError> {
    // One look at the database costs less than many.
    let _snapshot = connection.unchecked_transaction()?;
    let rows = row_indices.iter();
    let rows = rows.filter_map(|row_index| row(connection, *row_index).transpose());
    rows.collect()
}

pub(crate) fn samples_of(
    connection: &Connection,
    ids: &[RolloutId],
) -> Result<Vec<Vec<Sample>>, SqlError> {
    let _snapshot = connection.unchecked_transaction()?;
    ids.iter().map(|id| samples(connection, id)).collect()
}

pub(crate) fn samples(connection: &Connection, id: &RolloutId) -> Result<Vec<Sample>, SqlError> {
    // By position: finding a column by its name costs more than reading it.
    let mut select = connection.prepare_cached(
        "SELECT sample_id, messages, reward, removed, metrics, extra_fields
         FROM samples WHERE rollout_id = ?1 ORDER BY position",
    )?;
    let mut rows = select.query([id.as_str()])?;
    let mut samples = Vec::new();
    while let Some(row) = rows.next()? {
        samples.push(Sample {
            id: SampleId::new(row.get::<_, String>(0)?)?,
            messages: json(row, 1)?,
            reward: match row.get::<_, Option<f64>>(2)? {
                None => None,
                Some(reward) => Some(Reward::recorded(reward)?),
            },
            remove_sample: row.get(3)?,
            metrics: optional_json(row, 4)?,
            extra_fields: optional_json(row, 5)?,
        });
    }
    Ok(samples)
}
