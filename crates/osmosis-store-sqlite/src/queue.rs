//! The leased queue: who may run what, and whose result counts.

use std::sync::LazyLock;
use std::time::Duration;

use osmosis_core::{Attempt, Durations, Outcome, OutcomeKind, RolloutId};
use osmosis_store::encoding::{outcome_detail, sample_rewards};
use osmosis_store::{
    CallSummary, Claim, Completion, CompletionReceipt, NewRollout, NewRow, RowRecord, whole_ms,
};
use rusqlite::{Connection, Row, named_params, params};

use crate::checksum;
use crate::sql::{SqlError, json, number, to_sql};

pub(crate) fn enqueue(
    connection: &Connection,
    rows: &[NewRow],
    rollouts: &[NewRollout],
) -> Result<(), SqlError> {
    let add_row = checksum::ROWS.insertion(&[("row_index", "?1"), ("line", "?2"), ("body", "?3")]);
    let mut add_row = connection.prepare_cached(&format!(
        "INSERT {add_row} ON CONFLICT (row_index) DO NOTHING"
    ))?;
    for row in rows {
        add_row.execute(params![
            to_sql(row.row_index)?,
            to_sql(row.line)?,
            row.body.as_str()
        ])?;
    }
    // Only the same id is "there already": a second id for the same place is an error.
    let mut given = vec![
        ("rollout_id", "?1"),
        ("row_index", "?2"),
        ("run_index", "?3"),
        ("state", "'queued'"),
        ("attempt", "0"),
    ];
    given.extend(WITHOUT_RESULT.iter().filter(|(_, value)| *value != "NULL"));
    let mut add_rollout = connection.prepare_cached(&format!(
        "INSERT {} ON CONFLICT (rollout_id) DO NOTHING",
        checksum::ROLLOUTS.insertion(&given)
    ))?;
    for rollout in rollouts {
        add_rollout.execute(params![
            rollout.id.as_str(),
            to_sql(rollout.row_index)?,
            rollout.run_index
        ])?;
    }
    Ok(())
}

/// Who has the lease of a rollout that is held back.
const HELD_BACK: &str = "held back";

/// What a rollout that waits holds in the columns of its result.
const WITHOUT_RESULT: &[(&str, &str)] = &[
    ("failures", "0"),
    ("suspect", "0"),
    ("outcome", "NULL"),
    ("reward", "NULL"),
    ("passed", "NULL"),
    ("error", "NULL"),
    ("outcome_detail", "NULL"),
    ("sample_rewards", "NULL"),
    ("metrics", "NULL"),
    ("model_calls", "0"),
    ("prompt_tokens", "0"),
    ("completion_tokens", "0"),
    ("cached_tokens", "NULL"),
    ("reasoning_tokens", "NULL"),
    ("judge_calls", "0"),
    ("judge_prompt_tokens", "0"),
    ("judge_completion_tokens", "0"),
    ("queue_ms", "0"),
    ("agent_ms", "0"),
    ("model_ms", "0"),
    ("grade_ms", "0"),
    ("started_at_ms", "NULL"),
    ("finished_at_ms", "NULL"),
];

/// From the table itself: the change that leases a rollout compares it with its MAC.
const CLAIMABLE: &str = "rollout_key, rollout_id, row_index, run_index, attempt, suspect, failures,
    rows.line AS line, rows.body AS body";

pub(crate) fn claim_queued_sql() -> String {
    format!(
        "SELECT {CLAIMABLE} FROM main.rollouts JOIN rows USING (row_index)
         WHERE state = 'queued' ORDER BY row_index, run_index LIMIT ?1"
    )
}

pub(crate) fn claim_run_out_sql() -> String {
    // Left alone, SQLite would rather read thousands of running leases than sort the few that ran out.
    format!(
        "SELECT {CLAIMABLE} FROM main.rollouts INDEXED BY rollouts_by_lease JOIN rows USING (row_index)
         WHERE state = 'leased' AND lease_until_ms <= ?1
         ORDER BY row_index, run_index LIMIT ?2"
    )
}

/// One rollout by its id, if it is queued.
pub(crate) fn claim_one_sql() -> String {
    format!(
        "SELECT {CLAIMABLE} FROM main.rollouts JOIN rows USING (row_index)
         WHERE rollout_id = ?1 AND state = 'queued'"
    )
}

pub(crate) fn claim(
    connection: &Connection,
    now_ms: i64,
    owner: &str,
    n: usize,
    lease: Duration,
) -> Result<Vec<Claim>, SqlError> {
    let limit = i64::try_from(n).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    let mut queued = connection.prepare_cached(&claim_queued_sql())?;
    let mut rows = queued.query(params![limit])?;
    while let Some(row) = rows.next()? {
        found.push(claimable(row)?);
    }
    let mut run_out = connection.prepare_cached(&claim_run_out_sql())?;
    let mut rows = run_out.query(params![now_ms, limit])?;
    while let Some(row) = rows.next()? {
        found.push(claimable(row)?);
    }
    found.sort_by_key(|(_, claim)| (claim.row_index, claim.run_index));
    found.truncate(n);
    let until = now_ms.saturating_add(whole_ms(lease));
    take(connection, owner, until, found)
}

pub(crate) fn claim_these(
    connection: &Connection,
    now_ms: i64,
    owner: &str,
    rollouts: &[RolloutId],
    lease: Duration,
) -> Result<Vec<Claim>, SqlError> {
    let mut select = connection.prepare_cached(&claim_one_sql())?;
    let until = now_ms.saturating_add(whole_ms(lease));
    let mut claims = Vec::new();
    for rollout in rollouts {
        let found = {
            let mut rows = select.query([rollout.as_str()])?;
            rows.next()?.map(claimable).transpose()?
        };
        // Taken before the next look: the same one may be named twice.
        claims.extend(take(connection, owner, until, found)?);
    }
    Ok(claims)
}

/// Leases what was found to be claimable.
pub(crate) fn take(
    connection: &Connection,
    owner: &str,
    until_ms: i64,
    found: impl IntoIterator<Item = (i64, Claim)>,
) -> Result<Vec<Claim>, SqlError> {
    let mut take = connection.prepare_cached(&TAKE)?;
    let mut claims = Vec::new();
    for (key, claim) in found {
        take.execute(params![key, claim.attempt.0, owner, until_ms])?;
        claims.push(claim);
    }
    Ok(claims)
}

static TAKE: LazyLock<String> = LazyLock::new(|| {
    let changes = checksum::ROLLOUTS.assignments(&[
        ("state", "'leased'"),
        ("attempt", "?2"),
        ("owner", "?3"),
        ("lease_until_ms", "?4"),
    ]);
    format!("UPDATE main.rollouts SET {changes} WHERE rollout_key = ?1")
});

/// The claim as it will be once it is taken, and the rollout's key.
pub(crate) fn claimable(row: &Row<'_>) -> Result<(i64, Claim), SqlError> {
    let attempts: u32 = number(row, "attempt")?;
    let row_index = number(row, "row_index")?;
    let claim = Claim {
        id: RolloutId::new(row.get::<_, String>("rollout_id")?)?,
        row_index,
        run_index: number(row, "run_index")?,
        attempt: Attempt(attempts + 1),
        losses: number(row, "suspect")?,
        failures: number(row, "failures")?,
        row: RowRecord {
            row_index,
            line: number(row, "line")?,
            body: json(row, "body")?,
        },
    };
    Ok((row.get("rollout_key")?, claim))
}

pub(crate) fn heartbeat(
    connection: &Connection,
    now_ms: i64,
    held: Vec<(RolloutId, Attempt)>,
    lease: Duration,
) -> Result<Vec<(RolloutId, Attempt)>, SqlError> {
    let mut extend = connection.prepare_cached(
        "UPDATE main.rollouts SET lease_until_ms = ?3
         WHERE rollout_id = ?1 AND attempt = ?2 AND state = 'leased'",
    )?;
    let until = now_ms.saturating_add(whole_ms(lease));
    let mut lost = Vec::new();
    for (id, attempt) in held {
        if extend.execute(params![id.as_str(), attempt.0, until])? == 0 {
            lost.push((id, attempt));
        }
    }
    Ok(lost)
}

static FINISH: LazyLock<String> = LazyLock::new(|| {
    let changes = checksum::ROLLOUTS.assignments(&[
        ("state", "'done'"),
        ("owner", "NULL"),
        ("lease_until_ms", "NULL"),
        ("outcome", ":outcome"),
        ("reward", ":reward"),
        ("passed", ":passed"),
        ("error", ":error"),
        ("outcome_detail", ":outcome_detail"),
        ("sample_rewards", ":sample_rewards"),
        ("metrics", ":metrics"),
        ("model_calls", ":model_calls"),
        ("prompt_tokens", ":prompt_tokens"),
        ("completion_tokens", ":completion_tokens"),
        ("cached_tokens", ":cached_tokens"),
        ("reasoning_tokens", ":reasoning_tokens"),
        ("judge_calls", ":judge_calls"),
        ("judge_prompt_tokens", ":judge_prompt_tokens"),
        ("judge_completion_tokens", ":judge_completion_tokens"),
        ("queue_ms", ":queue_ms"),
        ("agent_ms", ":agent_ms"),
        ("model_ms", ":model_ms"),
        ("grade_ms", ":grade_ms"),
        ("started_at_ms", ":started_at_ms"),
        ("finished_at_ms", ":finished_at_ms"),
    ]);
    format!(
        "UPDATE main.rollouts SET {changes}
         WHERE rollout_id = :rollout_id AND attempt = :attempt AND state = 'leased'"
    )
});

static ADD_SAMPLE: LazyLock<String> = LazyLock::new(|| {
    let insert = checksum::SAMPLES.insertion(&[
        ("rollout_id", "?1"),
        ("position", "?2"),
        ("sample_id", "?3"),
        ("reward", "?4"),
        ("removed", "?5"),
        ("metrics", "?6"),
        ("extra_fields", "?7"),
        ("messages", "?8"),
    ]);
    format!("INSERT {insert}")
});

pub(crate) fn complete(
    connection: &Connection,
    completion: &Completion,
) -> Result<CompletionReceipt, SqlError> {
    let mut finish = connection.prepare_cached(&FINISH)?;
    let outcome = &completion.outcome;
    let reward = outcome.reward();
    let changed = finish.execute(named_params! {
        ":rollout_id": completion.id.as_str(),
        ":attempt": completion.attempt.0,
        ":outcome": outcome.kind().as_str(),
        ":reward": reward.map(osmosis_core::Reward::get),
        ":passed": reward.map(|_| outcome.passed()),
        ":error": outcome.explanation(),
        ":outcome_detail": outcome_detail(outcome)?,
        ":sample_rewards": sample_rewards(&completion.samples)?,
        ":metrics": completion.metrics.as_ref().map(osmosis_core::JsonText::as_str),
        ":model_calls": to_sql(completion.calls.model_calls)?,
        ":prompt_tokens": to_sql(completion.calls.prompt_tokens)?,
        ":completion_tokens": to_sql(completion.calls.completion_tokens)?,
        ":cached_tokens": completion.calls.cached_tokens.map(to_sql).transpose()?,
        ":reasoning_tokens": completion.calls.reasoning_tokens.map(to_sql).transpose()?,
        ":judge_calls": to_sql(completion.calls.judge.calls)?,
        ":judge_prompt_tokens": to_sql(completion.calls.judge.prompt_tokens)?,
        ":judge_completion_tokens": to_sql(completion.calls.judge.completion_tokens)?,
        ":queue_ms": a_number(completion.durations.queue),
        ":agent_ms": a_number(completion.durations.agent),
        ":model_ms": a_number(completion.durations.model),
        ":grade_ms": a_number(completion.durations.grade),
        ":started_at_ms": completion.started_at_ms,
        ":finished_at_ms": completion.finished_at_ms,
    })?;
    if changed == 0 {
        return Ok(CompletionReceipt::Fenced);
    }
    let mut add_sample = connection.prepare_cached(&ADD_SAMPLE)?;
    for (position, sample) in (0_i64..).zip(&completion.samples) {
        add_sample.execute(params![
            completion.id.as_str(),
            position,
            sample.id.as_str(),
            sample.reward.map(osmosis_core::Reward::get),
            sample.remove_sample,
            sample.metrics.as_ref().map(osmosis_core::JsonText::as_str),
            sample
                .extra_fields
                .as_ref()
                .map(osmosis_core::JsonText::as_str),
            sample.messages.as_str(),
        ])?;
    }
    Ok(CompletionReceipt::Accepted)
}

/// SQLite has no NaN, and a duration that is none must not cost the result.
fn a_number(duration_ms: f64) -> f64 {
    if duration_ms.is_nan() {
        0.0
    } else {
        duration_ms
    }
}

pub(crate) fn release(
    connection: &Connection,
    rollout: &RolloutId,
    attempt: Attempt,
    lost: bool,
    failed: bool,
) -> Result<(), SqlError> {
    let changes = checksum::ROLLOUTS.assignments(&[
        ("state", "'queued'"),
        ("owner", "NULL"),
        ("lease_until_ms", "NULL"),
        ("suspect", "suspect + ?3"),
        ("failures", "failures + ?4"),
    ]);
    connection
        .prepare_cached(&format!(
            "UPDATE main.rollouts SET {changes}
             WHERE rollout_id = ?1 AND attempt = ?2 AND state = 'leased'"
        ))?
        .execute(params![rollout.as_str(), attempt.0, lost, failed])?;
    Ok(())
}

/// Takes queued rollouts out of reach of `claim`. The attempt stays as it is: nothing is tried.
pub(crate) fn hold_back(connection: &Connection, rollouts: &[RolloutId]) -> Result<(), SqlError> {
    let mut hold = connection.prepare_cached(
        "UPDATE main.rollouts SET state = 'leased', owner = ?2, lease_until_ms = ?3
         WHERE rollout_id = ?1 AND state = 'queued'",
    )?;
    for rollout in rollouts {
        hold.execute(params![rollout.as_str(), HELD_BACK, i64::MAX])?;
    }
    Ok(())
}

pub(crate) fn let_go(connection: &Connection, rollout: &RolloutId) -> Result<(), SqlError> {
    connection
        .prepare_cached(
            "UPDATE main.rollouts SET state = 'queued', owner = NULL, lease_until_ms = NULL
             WHERE rollout_id = ?1 AND state = 'leased' AND owner = ?2",
        )?
        .execute(params![rollout.as_str(), HELD_BACK])?;
    Ok(())
}

/// The changes that put a leased rollout back into the queue.
const PUT_BACK: &str = "state = 'queued', owner = NULL, lease_until_ms = NULL";

/// Puts back what `owner` has leased. What is held back is nobody's lease.
pub(crate) fn recover_of(connection: &Connection, owner: &str) -> Result<u64, SqlError> {
    let recovered = connection
        .prepare_cached(&format!(
            "UPDATE main.rollouts SET {PUT_BACK} WHERE state = 'leased' AND owner = ?1 AND owner <> ?2"
        ))?
        .execute(params![owner, HELD_BACK])?;
    Ok(recovered as u64)
}

/// Puts back whatever is leased or held back.
pub(crate) fn recover_all(connection: &Connection) -> Result<u64, SqlError> {
    let recovered = connection
        .prepare_cached(&format!(
            "UPDATE main.rollouts SET {PUT_BACK} WHERE state = 'leased'"
        ))?
        .execute([])?;
    Ok(recovered as u64)
}

/// Ends those that are queued, as an attempt of its own: the calls of an earlier one don't belong to the result.
pub(crate) fn cancel(
    connection: &Connection,
    now_ms: i64,
    rollouts: &[RolloutId],
) -> Result<Vec<RolloutId>, SqlError> {
    // The lease is over before anybody else can see it: all of this is one write.
    let claims = claim_these(connection, now_ms, "cancelled", rollouts, Duration::ZERO)?;
    let mut cancelled = Vec::with_capacity(claims.len());
    for claim in claims {
        let completion = Completion {
            id: claim.id,
            attempt: claim.attempt,
            outcome: Outcome::Cancelled,
            samples: Vec::new(),
            metrics: None,
            durations: Durations::default(),
            calls: CallSummary::default(),
            started_at_ms: now_ms,
            finished_at_ms: now_ms,
        };
        if complete(connection, &completion)? == CompletionReceipt::Accepted {
            cancelled.push(completion.id);
        }
    }
    Ok(cancelled)
}

/// The changes that make a finished rollout wait again.
pub(super) fn put_back() -> String {
    let mut changes = vec![
        ("state", "'queued'"),
        ("owner", "NULL"),
        ("lease_until_ms", "NULL"),
    ];
    changes.extend(WITHOUT_RESULT);
    checksum::ROLLOUTS.assignments(&changes)
}

pub(crate) fn requeue(connection: &Connection, kinds: &[OutcomeKind]) -> Result<u64, SqlError> {
    let mut drop_samples = connection.prepare_cached(
        "DELETE FROM main.samples WHERE rollout_id IN
            (SELECT rollout_id FROM main.rollouts WHERE state = 'done' AND outcome = ?1)",
    )?;
    let mut put_back = connection.prepare_cached(&format!(
        "UPDATE main.rollouts SET {} WHERE state = 'done' AND outcome = ?1",
        put_back()
    ))?;
    let mut requeued = 0;
    for kind in kinds {
        drop_samples.execute([kind.as_str()])?;
        requeued += put_back.execute([kind.as_str()])? as u64;
    }
    Ok(requeued)
}

/// The same for chosen rollouts, whatever their outcome.
pub(crate) fn requeue_these(
    connection: &Connection,
    rollouts: Vec<RolloutId>,
) -> Result<Vec<RolloutId>, SqlError> {
    let mut drop_samples = connection.prepare_cached(
        "DELETE FROM main.samples WHERE rollout_id IN
            (SELECT rollout_id FROM main.rollouts WHERE state = 'done' AND rollout_id = ?1)",
    )?;
    let mut put_back = connection.prepare_cached(&format!(
        "UPDATE main.rollouts SET {} WHERE state = 'done' AND rollout_id = ?1",
        put_back()
    ))?;
    let mut requeued = Vec::new();
    for id in rollouts {
        drop_samples.execute([id.as_str()])?;
        if put_back.execute([id.as_str()])? > 0 {
            requeued.push(id);
        }
    }
    Ok(requeued)
}
