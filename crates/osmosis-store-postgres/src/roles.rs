//! Database roles that see one run and no other.

use std::fmt::Write as _;

use osmosis_store::{RunCredentials, RunKey, StoreError};
use rand::distr::{Alphanumeric, SampleString as _};

use crate::catalogue::PostgresCatalogue;
use crate::connection::Connection;
use crate::error::DbError;
use crate::readers::read;

/// What a node does with each table.
const RIGHTS: [(&str, &str); 14] = [
    ("SELECT", "schema_version"),
    ("SELECT", "run_roles"),
    ("SELECT", "runs"),
    ("SELECT, INSERT, UPDATE, DELETE", "members"),
    ("SELECT, UPDATE", "call_ids"),
    ("SELECT", "run_records"),
    ("SELECT", "rows"),
    ("SELECT, UPDATE", "rollouts"),
    ("SELECT, INSERT, DELETE", "samples"),
    ("SELECT, INSERT", "calls"),
    ("SELECT", "steps"),
    ("SELECT", "batches"),
    ("SELECT", "packages"),
    ("SELECT", "package_files"),
];

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
        "INSERT INTO osmosis.run_roles (role_name, run_id) VALUES ('{name}', {run_id}); COMMIT;"
    );
    connection.batch(&statements).await
}

/// Inside of a transaction or not.
pub(crate) async fn drop_of(connection: &Connection, run_id: i32) -> Result<(), DbError> {
    let roles = connection
        .query(
            "SELECT role_name::text, to_regrole(role_name::text) IS NOT NULL FROM osmosis.run_roles WHERE run_id = $1",
            &[&run_id],
        )
        .await?;
    for row in roles {
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
    }
    connection
        .execute(
            "DELETE FROM osmosis.run_roles WHERE run_id = $1",
            &[&run_id],
        )
        .await?;
    Ok(())
}
