//! Runs that are over: renamed, archived, restored, removed, measured. Each is one transaction, in which nobody else has
//! the run.

use std::collections::{BTreeMap, BTreeSet};

use osmosis_core::{RunName, RunTag};
use osmosis_store::{Holder, RunKey, RunKind, RunLabels, RunPlace, RunSize, StoreError};
use tokio_postgres::Row;

use super::PostgresCatalogue;
use crate::connection::Connection;
use crate::error::DbError;
use crate::presence::is_controlled_until_commit;
use crate::readers::read;
use crate::records::{from_word, number, word};
use crate::roles;
use crate::schema;
use crate::store::holder_of;

/// In the URL of an archived run.
pub(crate) const ARCHIVE: &str = "archive";

/// Every table that has rows of a run, those that are referred to last.
pub(crate) const TABLES: [&str; 12] = [
    "packages",
    "package_files",
    "requests",
    "samples",
    "calls",
    "steps",
    "batches",
    "rollouts",
    "rows",
    "members",
    "call_ids",
    "run_records",
];

/// Does something in a transaction in which nobody controls the run, and nobody begins to.
macro_rules! alone {
    ($connection:ident, $run_id:expr, $work:expr) => {{
        $connection.batch("BEGIN").await?;
        let done = async {
            hold($connection, $run_id).await?;
            $work.await
        }
        .await;
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = $connection.batch(end).await;
        let done = done?;
        ended?;
        Ok(done)
    }};
}

async fn hold(connection: &Connection, run_id: i32) -> Result<(), DbError> {
    if !is_controlled_until_commit(connection, run_id).await? {
        return Ok(());
    }
    let holder = holder_of(connection, run_id).await?;
    Err(StoreError::Held {
        path: connection.shown().into(),
        holder: holder.unwrap_or_else(Holder::unknown).to_string(),
    }
    .into())
}

impl PostgresCatalogue {
    pub(super) async fn archive_run(
        &self,
        run: &RunKey,
    ) -> Result<(String, RunLabels), StoreError> {
        let run_id = self.existing(run).await?;
        read!(self.readers(), |c| archive(c, run_id, &run.name))
    }

    pub(super) async fn restore_run(
        &self,
        id: &str,
        name: Option<&RunName>,
    ) -> Result<RunKey, StoreError> {
        let run_id = self.place(&RunPlace::Archived(id.to_owned())).await?;
        read!(self.readers(), |c| restore(c, run_id, name))
    }

    pub(super) async fn rename_run(&self, run: &RunKey, to: &RunName) -> Result<(), StoreError> {
        let run_id = self.existing(run).await?;
        read!(self.readers(), |c| rename(c, run_id, run, to))
    }

    pub(super) async fn remove_run(&self, place: &RunPlace) -> Result<(), StoreError> {
        let run_id = self.place(place).await?;
        read!(self.readers(), |c| remove(c, run_id))
    }

    /// The number of a run that must be there.
    pub(super) async fn place(&self, place: &RunPlace) -> Result<i32, StoreError> {
        match place {
            RunPlace::Listed(run) => self.existing(run).await,
            RunPlace::Archived(id) => {
                let name =
                    RunName::new(id).map_err(|error| StoreError::refused(error.to_string()))?;
                let found = read!(self.readers(), |c| find_archived(c, id))?;
                found.ok_or_else(|| self.not_found(&name))
            }
        }
    }
}

async fn find_archived(connection: &Connection, id: &str) -> Result<Option<i32>, DbError> {
    if !schema::check_readable(connection).await? {
        return Ok(None);
    }
    let row = connection
        .query_optional(
            "SELECT run_id FROM osmosis.runs WHERE archived_as = $1",
            &[&id],
        )
        .await?;
    Ok(match row {
        Some(row) => Some(row.try_get(0)?),
        None => None,
    })
}

/// `NAME.TIME.NUMBER`, as in a workspace.
async fn archive(
    connection: &Connection,
    run_id: i32,
    name: &RunName,
) -> Result<(String, RunLabels), DbError> {
    alone!(connection, run_id, async {
        let time = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
        let row = connection
            .query_one(
                "UPDATE osmosis.runs SET archived_at = clock_timestamp(), archived_as = $2 || '.' || $3 || '.' || (
                    SELECT min(n) FROM generate_series(1, 10000) AS n WHERE NOT EXISTS (
                        SELECT 1 FROM osmosis.runs WHERE archived_as = $2 || '.' || $3 || '.' || n))
                 WHERE run_id = $1 RETURNING tags, former_names, archived_as",
                &[&run_id, &name.as_str(), &time],
            )
            .await?;
        Ok::<_, DbError>((row.try_get(2)?, read_labels(&row)?))
    })
}

pub(super) async fn archived(
    connection: &Connection,
    kind: RunKind,
) -> Result<Vec<(String, RunName, RunLabels)>, DbError> {
    if !schema::check_readable(connection).await? {
        return Ok(Vec::new());
    }
    connection
        .query(
            "SELECT tags, former_names, archived_as, name FROM osmosis.runs WHERE kind = $1 AND archived_as IS NOT NULL
             ORDER BY archived_at DESC, run_id DESC",
            &[&word(&kind)?],
        )
        .await?
        .iter()
        .map(|row| {
            let name = RunName::new(row.try_get::<_, String>(3)?)?;
            Ok((row.try_get(2)?, name, read_labels(row)?))
        })
        .collect()
}

async fn restore(
    connection: &Connection,
    run_id: i32,
    name: Option<&RunName>,
) -> Result<RunKey, DbError> {
    alone!(connection, run_id, async {
        let row = connection
            .query_one(
                "SELECT kind, name FROM osmosis.runs WHERE run_id = $1",
                &[&run_id],
            )
            .await?;
        let before = RunKey {
            kind: from_word(row.try_get(0)?)?,
            name: RunName::new(row.try_get::<_, String>(1)?)?,
        };
        let run = RunKey {
            name: name.cloned().unwrap_or_else(|| before.name.clone()),
            ..before
        };
        refuse_taken(connection, &run).await?;
        connection
            .execute(
                "UPDATE osmosis.runs SET archived_as = NULL, archived_at = NULL, name = $2 WHERE run_id = $1",
                &[&run_id, &run.name.as_str()],
            )
            .await?;
        name_record(connection, run_id, &run.name).await?;
        Ok::<RunKey, DbError>(run)
    })
}

/// Names are given one at a time: whoever comes second sees the first.
async fn refuse_taken(connection: &Connection, run: &RunKey) -> Result<(), DbError> {
    connection
        .batch("LOCK TABLE osmosis.runs IN SHARE ROW EXCLUSIVE MODE")
        .await?;
    let taken = connection
        .query_optional(
            "SELECT 1 FROM osmosis.runs WHERE kind = $1 AND name = $2 AND archived_as IS NULL",
            &[&word(&run.kind)?, &run.name.as_str()],
        )
        .await?;
    match taken {
        Some(_) => Err(StoreError::AlreadyExists(run.name.clone()).into()),
        None => Ok(()),
    }
}

async fn name_record(connection: &Connection, run_id: i32, name: &RunName) -> Result<(), DbError> {
    connection
        .execute(
            "UPDATE osmosis.run_records SET name = $2 WHERE run_id = $1",
            &[&run_id, &name.as_str()],
        )
        .await?;
    Ok(())
}

async fn rename(
    connection: &Connection,
    run_id: i32,
    run: &RunKey,
    to: &RunName,
) -> Result<(), DbError> {
    alone!(connection, run_id, async {
        let named = RunKey {
            kind: run.kind,
            name: to.clone(),
        };
        refuse_taken(connection, &named).await?;
        connection
            .execute(
                "UPDATE osmosis.runs SET name = $3,
                    former_names = array_append(array_remove(array_remove(former_names, $2), $3), $2)
                 WHERE run_id = $1",
                &[&run_id, &run.name.as_str(), &to.as_str()],
            )
            .await?;
        name_record(connection, run_id, to).await
    })
}

pub(super) async fn labels(
    connection: &Connection,
    run_id: i32,
) -> Result<Option<RunLabels>, DbError> {
    let row = connection
        .query_optional(
            "SELECT tags, former_names FROM osmosis.runs WHERE run_id = $1",
            &[&run_id],
        )
        .await?;
    row.as_ref().map(read_labels).transpose()
}

pub(super) async fn tag(
    connection: &Connection,
    run_id: i32,
    add: &[RunTag],
    remove: &[RunTag],
) -> Result<Option<RunLabels>, DbError> {
    let texts = |tags: &[RunTag]| -> Vec<String> { tags.iter().map(ToString::to_string).collect() };
    let row = connection
        .query_optional(
            "UPDATE osmosis.runs SET tags = ARRAY(
                SELECT DISTINCT tag FROM unnest(tags || $2::text[]) AS tag WHERE tag <> ALL ($3::text[]) ORDER BY tag)
             WHERE run_id = $1 RETURNING tags, former_names",
            &[&run_id, &texts(add), &texts(remove)],
        )
        .await?;
    row.as_ref().map(read_labels).transpose()
}

fn read_labels(row: &Row) -> Result<RunLabels, DbError> {
    let tags: Vec<String> = row.try_get(0)?;
    let names: Vec<String> = row.try_get(1)?;
    Ok(RunLabels {
        tags: tags
            .into_iter()
            .map(RunTag::new)
            .collect::<Result<BTreeSet<_>, _>>()?,
        former_names: names
            .into_iter()
            .map(RunName::new)
            .collect::<Result<_, _>>()?,
    })
}

/// The bytes of what was recorded; PostgreSQL takes more for each row and for indices.
pub(super) async fn size(connection: &Connection, run_id: i32) -> Result<RunSize, DbError> {
    let row = connection
        .query_one(
            "SELECT
                (SELECT coalesce(sum(octet_length(request) + octet_length(response) + octet_length(tokens)), 0)
                    FROM osmosis.calls WHERE run_id = $1)::bigint,
                (SELECT coalesce(sum(octet_length(body)), 0) FROM osmosis.rows WHERE run_id = $1)::bigint
                + (SELECT coalesce(sum(octet_length(messages)), 0) FROM osmosis.samples WHERE run_id = $1)::bigint
                + (SELECT 200 * count(*) FROM osmosis.rollouts WHERE run_id = $1)
                + (SELECT coalesce(sum(octet_length(metrics)), 0) FROM osmosis.steps WHERE run_id = $1)::bigint
                + (SELECT coalesce(sum(octet_length(content)), 0) FROM osmosis.batches WHERE run_id = $1)::bigint
                + (SELECT coalesce(sum(octet_length(config_toml) + octet_length(pinned)), 0)
                    FROM osmosis.run_records WHERE run_id = $1)::bigint
                + (SELECT coalesce(sum(octet_length(content)), 0) FROM osmosis.package_files WHERE run_id = $1)::bigint",
            &[&run_id],
        )
        .await?;
    let parts = BTreeMap::from([
        ("calls".to_owned(), number(&row, 0)?),
        ("database".to_owned(), number(&row, 1)?),
    ]);
    Ok(RunSize {
        bytes: parts.values().sum(),
        parts,
    })
}

async fn remove(connection: &Connection, run_id: i32) -> Result<(), DbError> {
    alone!(connection, run_id, async {
        for table in TABLES {
            connection
                .batch(&format!(
                    "DELETE FROM osmosis.{table} WHERE run_id = {run_id}"
                ))
                .await?;
        }
        roles::drop_of(connection, run_id).await?;
        connection
            .batch(&format!("DELETE FROM osmosis.runs WHERE run_id = {run_id}"))
            .await
    })
}
