//! Database roles that see one run and no other, as long as the run goes on.

use std::fmt::Write as _;

use osmosis_store::{RunCredentials, RunKey, StoreError};
use rand::distr::{Alphanumeric, SampleString as _};

use crate::catalogue::PostgresCatalogue;
use crate::connection::{Connection, Parameter};
use crate::error::DbError;
use crate::readers::read;

/// What a node does with each table. Rights to change are of columns: one of a whole table, and each to delete, would let a node
/// lock the table against every run of the database.
const RIGHTS: [(&str, &str); 14] = [
    ("SELECT", "schema_version"),
    ("SELECT", "run_roles"),
    ("SELECT", "runs"),
    (
        "SELECT, INSERT, UPDATE (seen_at, commits, last_commit, done, draining)",
        "members",
    ),
    ("SELECT, UPDATE (next_id)", "call_ids"),
    ("SELECT", "run_records"),
    ("SELECT", "rows"),
    (
        "SELECT, UPDATE (state, attempt, failures, losses, owner, member_id, lease_until_ms, outcome, reward, passed,
            error, sample_rewards, model_calls, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens,
            judge_calls, judge_prompt_tokens, judge_completion_tokens, queue_ms, agent_ms, model_ms, grade_ms,
            started_at_ms, finished_at_ms, metrics, outcome_detail, done_by, done_xid)",
        "rollouts",
    ),
    ("SELECT, INSERT", "samples"),
    ("SELECT, INSERT", "calls"),
    ("SELECT", "steps"),
    ("SELECT", "batches"),
    ("SELECT", "packages"),
    ("SELECT", "package_files"),
];

/// What a node writes results to. Its sign of life it may give until it has heard of the end.
const RESULTS: &str = "osmosis.rollouts, osmosis.samples, osmosis.calls, osmosis.call_ids";

impl PostgresCatalogue {
    /// Makes a role that sees this run and nothing of any other, with the rights of a node. The role of the catalogue's
    /// own URL needs `CREATEROLE`. The password is known to whoever made the role, and to nobody else: the database has a
    /// verifier of it.
    pub async fn create_role(&self, run: &RunKey) -> Result<RunCredentials, StoreError> {
        let run_id = self.existing(run).await?;
        let role = new_role(run_id);
        read!(self.readers(), |c| create(c, run_id, &role))?;
        Ok(role)
    }

    /// Takes all roles of a run away; their sessions end.
    pub async fn drop_roles(&self, run: &RunKey) -> Result<(), StoreError> {
        let run_id = self.existing(run).await?;
        read!(self.readers(), |c| drop_of(c, run_id))
    }
}

fn new_role(run_id: i32) -> RunCredentials {
    let mut random = rand::rng();
    let suffix = Alphanumeric.sample_string(&mut random, 12);
    RunCredentials {
        role: format!("osmosis_run_{run_id}_{}", suffix.to_ascii_lowercase()),
        password: Alphanumeric.sample_string(&mut random, 40),
    }
}

async fn create(
    connection: &Connection,
    run_id: i32,
    role: &RunCredentials,
) -> Result<(), DbError> {
    // Neither a password nor what is made of it by a quick hash is sent: statements may be logged.
    let verifier = postgres_protocol::password::scram_sha_256(role.password.as_bytes());
    let name = &role.role;
    let mut statements = format!(
        "BEGIN; CREATE ROLE {name} LOGIN PASSWORD '{verifier}'; GRANT USAGE ON SCHEMA osmosis TO {name};"
    );
    for (rights, table) in RIGHTS {
        let _ = write!(statements, "GRANT {rights} ON osmosis.{table} TO {name};");
    }
    let _ = write!(
        statements,
        "INSERT INTO osmosis.run_roles (role_name, run_id, valid_until)
            VALUES ('{name}', {run_id}, clock_timestamp() + interval '1 day'); COMMIT;"
    );
    if let Err(error) = drop_where(connection, EXPIRED, &[]).await {
        // Of another owner, say. They see nothing.
        tracing::debug!(%error, "roles that have ended stay");
    }
    connection.batch(&statements).await
}

/// While the run is controlled, its roles are valid; a day after its controller was lost, they are not.
pub(crate) async fn renew(connection: &Connection, run_id: i32) -> Result<(), DbError> {
    connection
        .execute(
            "UPDATE osmosis.run_roles SET valid_until = clock_timestamp() + interval '1 day'
             WHERE run_id = $1 AND NOT ended AND valid_until < clock_timestamp() + interval '12 hours'",
            &[&run_id],
        )
        .await?;
    Ok(())
}

/// Ends the roles of a run that its controller leaves. Nothing can be written to one that is finished. Nodes of one that was
/// interrupted may still have something to put back. Then they see nothing any more, whatever their passwords and sessions;
/// the roles themselves go with the next one that is made, or with the run. A controller that goes on makes another one.
pub(crate) async fn end_of(connection: &Connection, run_id: i32) -> Result<(), DbError> {
    let roles = connection
        .query(
            "UPDATE osmosis.run_roles AS roles SET ended = true, valid_until = clock_timestamp()
                + CASE WHEN records.status = 'finished' THEN interval '1 minute' ELSE interval '10 minutes' END
             FROM osmosis.runs AS runs LEFT JOIN osmosis.run_records AS records USING (run_id)
             WHERE roles.run_id = $1 AND runs.run_id = $1 AND NOT roles.ended
             RETURNING roles.role_name::text, coalesce(records.status = 'finished', false),
                to_regrole(roles.role_name::text) IS NOT NULL",
            &[&run_id],
        )
        .await?;
    for row in &roles {
        if row.try_get(1)? && row.try_get(2)? {
            let name: String = row.try_get(0)?;
            // Our own names need no quotes.
            connection
                .batch(&format!(
                    "REVOKE INSERT, UPDATE, DELETE ON {RESULTS} FROM {name};"
                ))
                .await?;
        }
    }
    if !roles.is_empty() {
        connection
            .execute(
                "UPDATE osmosis.runs SET node_key_sha256 = NULL WHERE run_id = $1",
                &[&run_id],
            )
            .await?;
    }
    Ok(())
}

const EXPIRED: &str =
    "SELECT role_name::text, to_regrole(role_name::text) IS NOT NULL FROM osmosis.run_roles
    WHERE valid_until < clock_timestamp()";
const OF_RUN: &str =
    "SELECT role_name::text, to_regrole(role_name::text) IS NOT NULL FROM osmosis.run_roles
    WHERE run_id = $1";

/// Inside of a transaction or not.
pub(crate) async fn drop_of(connection: &Connection, run_id: i32) -> Result<(), DbError> {
    drop_where(connection, OF_RUN, &[&run_id]).await
}

async fn drop_where(
    connection: &Connection,
    roles: &'static str,
    parameters: &[Parameter<'_>],
) -> Result<(), DbError> {
    for row in connection.query(roles, parameters).await? {
        let name: String = row.try_get(0)?;
        if row.try_get(1)? {
            connection
                .query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1",
                    &[&name],
                )
                .await?;
            // Our own names need no quotes.
            connection
                .batch(&format!("DROP OWNED BY {name}; DROP ROLE {name};"))
                .await?;
        }
        connection
            .execute(
                "DELETE FROM osmosis.run_roles WHERE role_name::text = $1",
                &[&name],
            )
            .await?;
    }
    Ok(())
}
