//! The leased queue: who may run what. Every operation is one statement, so that those of a batch are under way at once.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use osmosis_core::{Attempt, OutcomeKind, RolloutId};
use osmosis_store::{Claim, NewRollout, NewRow, RowRecord, StoreError, whole_ms};
use tokio_postgres::Row;

use crate::error::DbError;
use crate::records::{json, number, to_sql};
use crate::requests;
use crate::transaction::Transaction;

pub(crate) struct Enqueued {
    pub(crate) rows: Vec<NewRow>,
    pub(crate) rollouts: Vec<NewRollout>,
    /// Of a request to a rollout server.
    pub(crate) sealed: Option<(RolloutId, Bytes)>,
}

pub(crate) async fn enqueue(tx: &Transaction<'_>, given: &Enqueued) -> Result<(), DbError> {
    // In the order of the rows: two processes that plan the same wait for each other, in one order.
    let mut rows: Vec<&NewRow> = given.rows.iter().collect();
    rows.sort_by_key(|row| row.row_index);
    let indices = numbers(rows.iter().map(|row| row.row_index))?;
    let lines = numbers(rows.iter().map(|row| row.line))?;
    let bodies: Vec<&str> = rows.iter().map(|row| row.body.as_str()).collect();
    if !rows.is_empty() {
        tx.execute(
            "INSERT INTO osmosis.rows (run_id, row_index, line, body)
             SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::text[])
             ON CONFLICT (run_id, row_index) DO NOTHING",
            &[tx.run_id(), &indices, &lines, &bodies],
        )
        .await?;
    }
    let ids: Vec<&str> = given.rollouts.iter().map(|one| one.id.as_str()).collect();
    let rows = numbers(given.rollouts.iter().map(|one| one.row_index))?;
    let runs = numbers(given.rollouts.iter().map(|one| u64::from(one.run_index)))?;
    if !ids.is_empty() {
        // Only the same id is "there already": a second id for the same place is an error.
        tx.execute(
            "INSERT INTO osmosis.rollouts (run_id, rollout_id, row_index, run_index)
             SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::bigint[])
             ON CONFLICT (run_id, rollout_id) DO NOTHING",
            &[tx.run_id(), &ids, &rows, &runs],
        )
        .await?;
    }
    if let Some((rollout, sealed)) = &given.sealed {
        requests::keep(tx, rollout, sealed).await?;
    }
    Ok(())
}

fn numbers(of: impl Iterator<Item = u64>) -> Result<Vec<i64>, StoreError> {
    of.map(to_sql).collect()
}

pub(crate) struct Claiming {
    pub(crate) owner: String,
    pub(crate) n: usize,
    pub(crate) lease: Duration,
    /// Chosen ones, instead of the first.
    pub(crate) chosen: Vec<RolloutId>,
}

// Which rows a statement reads must not depend on what PostgreSQL believes about the table. A run is new, so its
// statistics are missing or say that nothing is leased. Then the planner takes the index of leased rollouts for tiny and
// reads all of it for each heartbeat and result (8 ms for 16 leases among 1,500; an `ANALYZE` after `enqueue` does not
// help). So whoever has ids joins on (run_id, rollout_id), both from a materialised list, and `leased!` matches no
// partial index: what is left is the primary key (see also `BY_INDEX` of the writer).

/// Whether a rollout is leased, in words that the partial index of leased rollouts is not found by.
macro_rules! leased {
    () => {
        "rollouts.state NOT IN ('queued', 'done')"
    };
}
pub(crate) use leased;

/// Takes what `picked` holds. `$1` run, `$2` a test's clock, `$3` owner, `$4` member, `$5` lease.
const TAKE: &str = "
    taken AS (
        UPDATE osmosis.rollouts AS rollouts SET state = 'leased', attempt = rollouts.attempt + 1, owner = $3,
            member_id = $4, lease_until_ms = (SELECT ms FROM now) + $5
        FROM picked WHERE rollouts.run_id = picked.run_id AND rollouts.rollout_id = picked.rollout_id
        RETURNING rollouts.run_id, rollouts.rollout_id, rollouts.row_index, rollouts.run_index, rollouts.attempt, rollouts.losses,
            rollouts.failures, picked.place
    )
    SELECT taken.*, rows.line, rows.body FROM taken
    JOIN osmosis.rows AS rows ON rows.run_id = taken.run_id AND rows.row_index = taken.row_index
    ORDER BY taken.place, taken.row_index, taken.run_index";

static CLAIM: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH now AS MATERIALIZED (SELECT coalesce($2::bigint, osmosis.now_ms()) AS ms),
        queued AS (
            SELECT run_id, rollout_id, row_index, run_index FROM osmosis.rollouts
            WHERE run_id = $1 AND state = 'queued'
            ORDER BY row_index, run_index LIMIT $6 FOR UPDATE SKIP LOCKED
        ), run_out AS (
            SELECT run_id, rollout_id, row_index, run_index FROM osmosis.rollouts
            WHERE run_id = $1 AND state = 'leased' AND lease_until_ms <= (SELECT ms FROM now)
            ORDER BY lease_until_ms LIMIT $6 FOR UPDATE SKIP LOCKED
        ), picked AS MATERIALIZED (
            SELECT run_id, rollout_id, 0::bigint AS place FROM (SELECT * FROM queued UNION ALL SELECT * FROM run_out) AS found
            ORDER BY row_index, run_index LIMIT $6
        ), {TAKE}"
    )
});

static CLAIM_THESE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH now AS MATERIALIZED (SELECT coalesce($2::bigint, osmosis.now_ms()) AS ms),
        asked AS MATERIALIZED (
            SELECT $1::integer AS run_id, rollout_id, min(place) AS place
            FROM unnest($6::text[]) WITH ORDINALITY AS asked (rollout_id, place) GROUP BY rollout_id
        ), picked AS MATERIALIZED (
            SELECT rollouts.run_id, rollouts.rollout_id, asked.place FROM osmosis.rollouts AS rollouts
            JOIN asked USING (run_id, rollout_id) WHERE rollouts.state NOT IN ('leased', 'done')
            ORDER BY rollouts.rollout_id FOR UPDATE OF rollouts SKIP LOCKED
        ), {TAKE}"
    )
});

pub(crate) async fn claim(
    tx: &Transaction<'_>,
    claiming: &Claiming,
) -> Result<Vec<Claim>, DbError> {
    let now = tx.lease_ms();
    let lease = whole_ms(claiming.lease);
    let rows = if claiming.chosen.is_empty() {
        let limit = i64::try_from(claiming.n).unwrap_or(i64::MAX);
        let parameters = [
            tx.run_id() as crate::connection::Parameter<'_>,
            &now,
            &claiming.owner,
            tx.member_id(),
            &lease,
            &limit,
        ];
        tx.change(&CLAIM, &parameters).await?
    } else {
        let chosen = texts(&claiming.chosen);
        let parameters = [
            tx.run_id() as crate::connection::Parameter<'_>,
            &now,
            &claiming.owner,
            tx.member_id(),
            &lease,
            &chosen,
        ];
        tx.change(&CLAIM_THESE, &parameters).await?
    };
    rows.iter().map(claimed).collect()
}

fn claimed(row: &Row) -> Result<Claim, DbError> {
    let row_index = number(row, "row_index")?;
    Ok(Claim {
        id: RolloutId::new(row.try_get::<_, String>("rollout_id")?)?,
        row_index,
        run_index: number(row, "run_index")?,
        attempt: Attempt(number(row, "attempt")?),
        losses: number(row, "losses")?,
        failures: number(row, "failures")?,
        row: RowRecord {
            row_index,
            line: number(row, "line")?,
            body: json(row, "body")?,
        },
    })
}

fn texts(ids: &[RolloutId]) -> Vec<&str> {
    ids.iter().map(RolloutId::as_str).collect()
}

pub(crate) async fn heartbeat(
    tx: &Transaction<'_>,
    (held, lease): &(Vec<(RolloutId, Attempt)>, Duration),
) -> Result<Vec<(RolloutId, Attempt)>, DbError> {
    let ids: Vec<&str> = held.iter().map(|(id, _)| id.as_str()).collect();
    let attempts: Vec<i64> = held
        .iter()
        .map(|(_, attempt)| i64::from(attempt.0))
        .collect();
    // Locked in one order, so that two heartbeats never wait for each other.
    let lost = tx
        .query(
            concat!(
                "WITH now AS MATERIALIZED (SELECT coalesce($2::bigint, osmosis.now_ms()) AS ms),
                held AS MATERIALIZED (
                    SELECT $1::integer AS run_id, held.*
                    FROM unnest($3::text[], $4::bigint[]) WITH ORDINALITY AS held (rollout_id, attempt, place)
                ), ours AS MATERIALIZED (
                    SELECT rollouts.run_id, rollouts.rollout_id, rollouts.attempt FROM osmosis.rollouts AS rollouts
                    JOIN held USING (run_id, rollout_id, attempt)
                    WHERE ", leased!(), " ORDER BY rollouts.rollout_id FOR UPDATE OF rollouts
                ), extended AS (
                    UPDATE osmosis.rollouts AS rollouts SET lease_until_ms = (SELECT ms FROM now) + $5
                    FROM ours WHERE rollouts.run_id = ours.run_id AND rollouts.rollout_id = ours.rollout_id
                        AND rollouts.attempt = ours.attempt AND ", leased!(), "
                    RETURNING rollouts.rollout_id, rollouts.attempt
                )
                SELECT place FROM held WHERE (rollout_id, attempt) NOT IN (SELECT * FROM extended) ORDER BY place"
            ),
            &[tx.run_id(), &tx.lease_ms(), &ids, &attempts, &whole_ms(*lease)],
        )
        .await?;
    tx.note((held.len() - lost.len().min(held.len())) as u64);
    lost.iter()
        .map(|row| {
            let place: usize = number(row, "place")?;
            held.get(place.wrapping_sub(1))
                .cloned()
                .ok_or_else(|| DbError::Senseless("a lease that nobody asked for".to_owned()))
        })
        .collect()
}

pub(crate) struct Released {
    pub(crate) rollout: RolloutId,
    pub(crate) attempt: Attempt,
    pub(crate) lost: bool,
    pub(crate) failed: bool,
}

pub(crate) async fn release(tx: &Transaction<'_>, released: &Released) -> Result<(), DbError> {
    tx.execute(
        concat!(
            "UPDATE osmosis.rollouts AS rollouts SET state = 'queued', owner = NULL, member_id = NULL,
                lease_until_ms = NULL, losses = losses + $4, failures = failures + $5
             WHERE run_id = $1 AND rollout_id = $2 AND attempt = $3 AND ", leased!()
        ),
        &[
            tx.run_id(),
            &released.rollout.as_str(),
            &i64::from(released.attempt.0),
            &i64::from(released.lost),
            &i64::from(released.failed),
        ],
    )
    .await?;
    Ok(())
}

/// Who has the lease of a rollout that is held back.
const HELD_BACK: &str = "held back";

/// Takes queued rollouts out of reach of `claim`. The attempt stays as it is: nothing is tried.
pub(crate) async fn hold_back(tx: &Transaction<'_>, rollouts: &[RolloutId]) -> Result<(), DbError> {
    tx.execute(
        "UPDATE osmosis.rollouts SET state = 'leased', owner = $3, member_id = NULL,
            lease_until_ms = 9223372036854775807
         WHERE run_id = $1 AND rollout_id = ANY ($2::text[]) AND state = 'queued'",
        &[tx.run_id(), &texts(rollouts), &HELD_BACK],
    )
    .await?;
    Ok(())
}

pub(crate) async fn let_go(tx: &Transaction<'_>, rollout: &RolloutId) -> Result<(), DbError> {
    tx.execute(
        "UPDATE osmosis.rollouts SET state = 'queued', owner = NULL, member_id = NULL, lease_until_ms = NULL
         WHERE run_id = $1 AND rollout_id = $2 AND state = 'leased' AND owner = $3",
        &[tx.run_id(), &rollout.as_str(), &HELD_BACK],
    )
    .await?;
    Ok(())
}

/// Puts back what `owner` has leased. What is held back is nobody's lease.
pub(crate) async fn recover_of(tx: &Transaction<'_>, owner: &str) -> Result<u64, DbError> {
    tx.execute(
        "UPDATE osmosis.rollouts SET state = 'queued', owner = NULL, member_id = NULL, lease_until_ms = NULL
         WHERE run_id = $1 AND state = 'leased' AND owner = $2 AND owner <> $3",
        &[tx.run_id(), &owner, &HELD_BACK],
    )
    .await
}

/// Puts back whatever is leased or held back, but the leases of nodes that are alive: they go on.
pub(crate) async fn recover_all(tx: &Transaction<'_>) -> Result<u64, DbError> {
    tx.execute(
        "UPDATE osmosis.rollouts AS rollouts
         SET state = 'queued', owner = NULL, member_id = NULL, lease_until_ms = NULL
         WHERE run_id = $1 AND state = 'leased' AND NOT EXISTS (
            SELECT 1 FROM osmosis.members AS members
            WHERE members.run_id = $1 AND members.member_id = rollouts.member_id AND members.kind = 'node'
                AND members.seen_at > clock_timestamp() - make_interval(secs => $2))",
        &[tx.run_id(), &tx.writing.silent_seconds],
    )
    .await
}

/// Ends those that are queued, as an attempt of its own: the calls of an earlier one don't belong to the result.
pub(crate) async fn cancel(
    tx: &Transaction<'_>,
    rollouts: &[RolloutId],
) -> Result<Vec<RolloutId>, DbError> {
    let rows = tx
        .change(
            "WITH now AS MATERIALIZED (SELECT coalesce($2::bigint, osmosis.now_ms()) AS ms),
            asked AS MATERIALIZED (
                SELECT $1::integer AS run_id, rollout_id, min(place) AS place
                FROM unnest($3::text[]) WITH ORDINALITY AS asked (rollout_id, place) GROUP BY rollout_id
            ), ended AS (
                UPDATE osmosis.rollouts AS rollouts SET state = 'done', attempt = rollouts.attempt + 1,
                    owner = NULL, member_id = NULL, lease_until_ms = NULL, outcome = 'cancelled', sample_rewards = '{}', started_at_ms = (SELECT ms FROM now),
                    finished_at_ms = (SELECT ms FROM now), done_by = $4,
                    done_xid = pg_current_xact_id()::text::bigint
                FROM asked WHERE rollouts.run_id = asked.run_id AND rollouts.rollout_id = asked.rollout_id
                    AND (rollouts.state = 'queued' OR ($5 AND rollouts.state = 'leased' AND EXISTS (
                        SELECT 1 FROM osmosis.members AS members WHERE members.run_id = $1
                            AND members.member_id = rollouts.member_id AND members.kind = 'node')))
                RETURNING rollouts.rollout_id, asked.place
            )
            SELECT rollout_id FROM ended ORDER BY place",
            &[
                tx.run_id(),
                &tx.now_ms(),
                &texts(rollouts),
                tx.member_id(),
                &tx.writing.epoch.is_some(),
            ],
        )
        .await?;
    ids(&rows)
}

fn ids(rows: &[Row]) -> Result<Vec<RolloutId>, DbError> {
    rows.iter()
        .map(|row| Ok(RolloutId::new(row.try_get::<_, String>(0)?)?))
        .collect()
}

/// The changes that make a finished rollout wait again.
const PUT_BACK: &str = "state = 'queued', owner = NULL, member_id = NULL, lease_until_ms = NULL, failures = 0, losses = 0,
    outcome = NULL, reward = NULL, passed = NULL, error = NULL, outcome_detail = NULL, sample_rewards = NULL,
    metrics = NULL, model_calls = 0, prompt_tokens = 0, completion_tokens = 0, cached_tokens = NULL,
    reasoning_tokens = NULL, judge_calls = 0, judge_prompt_tokens = 0, judge_completion_tokens = 0, queue_ms = 0,
    agent_ms = 0, model_ms = 0, grade_ms = 0, started_at_ms = NULL, finished_at_ms = NULL, done_by = NULL,
    done_xid = NULL";

static REQUEUE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH put_back AS (
            UPDATE osmosis.rollouts SET {PUT_BACK}
            WHERE run_id = $1 AND state = 'done' AND outcome = ANY ($2::text[]) RETURNING rollout_id
        ), dropped AS (
            DELETE FROM osmosis.samples
            WHERE run_id = $1 AND rollout_id IN (SELECT rollout_id FROM put_back)
        )
        SELECT rollout_id FROM put_back"
    )
});

pub(crate) async fn requeue(tx: &Transaction<'_>, kinds: &[OutcomeKind]) -> Result<u64, DbError> {
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    let rows = tx.change(&REQUEUE, &[tx.run_id(), &kinds]).await?;
    Ok(rows.len() as u64)
}

static REQUEUE_THESE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH asked AS MATERIALIZED (
            SELECT $1::integer AS run_id, rollout_id, min(place) AS place
            FROM unnest($2::text[]) WITH ORDINALITY AS asked (rollout_id, place) GROUP BY rollout_id
        ), put_back AS (
            UPDATE osmosis.rollouts AS rollouts SET {PUT_BACK} FROM asked
            WHERE rollouts.run_id = asked.run_id AND rollouts.rollout_id = asked.rollout_id
                AND rollouts.state NOT IN ('queued', 'leased')
            RETURNING rollouts.rollout_id
        ), dropped AS (
            DELETE FROM osmosis.samples
            WHERE run_id = $1 AND rollout_id IN (SELECT rollout_id FROM put_back)
        )
        SELECT rollout_id FROM put_back JOIN asked USING (rollout_id) ORDER BY place"
    )
});

/// The same for chosen rollouts, whatever their outcome.
pub(crate) async fn requeue_these(
    tx: &Transaction<'_>,
    rollouts: &[RolloutId],
) -> Result<Vec<RolloutId>, DbError> {
    let rows = tx
        .change(&REQUEUE_THESE, &[tx.run_id(), &texts(rollouts)])
        .await?;
    ids(&rows)
}
