//! A run that several processes work on: its package, its members, requests to stop, and what others finish.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{JsonText, RolloutId};
use osmosis_store::{
    FinishedCursor, Member, MemberKind, PackageFile, QueueCounts, RolloutRecord, RunStanding,
    SharedRun, StopRequest, StoreError,
};
use tokio_postgres::Row;

use crate::connection::Connection;
use crate::error::DbError;
use crate::presence::{Part, channel};
use crate::readers::read;
use crate::records::{from_word, json, number};
use crate::rollouts;
use crate::store::PostgresStore;
use crate::transaction::Transaction;

impl PostgresStore {
    fn controls(&self) -> Result<(), StoreError> {
        match self.part {
            Part::Controller { .. } => Ok(()),
            Part::Node | Part::Reader => Err(StoreError::refused(
                "only the process that controls the run may change this",
            )),
        }
    }

    /// What the clock of a test says about leases; `None` stands for the database's clock.
    fn lease_ms(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.lease_ms())
    }
}

#[async_trait]
impl SharedRun for PostgresStore {
    async fn put_package(
        &self,
        manifest: JsonText,
        files: Vec<PackageFile>,
    ) -> Result<(), StoreError> {
        self.controls()?;
        self.write((manifest, files), |tx, given| {
            Box::pin(put_package(tx, given))
        })
        .await
    }

    async fn package(&self) -> Result<Option<JsonText>, StoreError> {
        read!(self.readers, |c| package(c, self.run_id))
    }

    async fn package_file(&self, sha256: &str) -> Result<Option<Bytes>, StoreError> {
        read!(self.readers, |c| package_file(c, self.run_id, sha256))
    }

    async fn set_controller(
        &self,
        url: Option<&str>,
        key_sha256: Option<&str>,
    ) -> Result<(), StoreError> {
        self.controls()?;
        let given = (url.map(str::to_owned), key_sha256.map(str::to_owned));
        self.write(given, |tx, given| Box::pin(set_controller(tx, given)))
            .await
    }

    async fn controller_url(&self) -> Result<Option<String>, StoreError> {
        read!(self.readers, |c| text_of_run(
            c,
            "SELECT controller_url FROM osmosis.runs WHERE run_id = $1",
            self.run_id
        ))
    }

    async fn node_key_sha256(&self) -> Result<Option<String>, StoreError> {
        read!(self.readers, |c| text_of_run(
            c,
            "SELECT node_key_sha256 FROM osmosis.runs WHERE run_id = $1",
            self.run_id
        ))
    }

    async fn ask_to_stop(&self, request: Option<StopRequest>) -> Result<(), StoreError> {
        read!(self.readers, |c| ask_to_stop(c, self.run_id, request))
    }

    async fn standing(&self) -> Result<RunStanding, StoreError> {
        read!(self.readers, |c| standing(c, self.run_id, self.lease_ms()))
    }

    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        let asking = Asking {
            run_id: self.run_id,
            member_id: self.member_id,
            lease_ms: self.lease_ms(),
            silent: self.silent_after.as_secs_f64(),
        };
        read!(self.readers, |c| members(c, &asking))
    }

    async fn set_draining(&self) -> Result<(), StoreError> {
        self.write((), |tx, ()| Box::pin(set_draining(tx))).await
    }

    async fn watch_finished(&self) -> Result<(FinishedCursor, QueueCounts), StoreError> {
        read!(self.readers, |c| watch_finished(c, self.run_id))
    }

    async fn finished_since(
        &self,
        cursor: FinishedCursor,
    ) -> Result<(Vec<RolloutRecord>, FinishedCursor), StoreError> {
        let (ids, next) = read!(self.readers, |c| finished_since(
            c,
            self.run_id,
            self.member_id,
            &cursor
        ))?;
        if ids.is_empty() {
            return Ok((Vec::new(), next));
        }
        let mut found = read!(self.readers, |c| rollouts::rollouts_by_id(
            c,
            self.run_id,
            &ids
        ))?;
        // What waits again meanwhile has no result to be told.
        found.retain(|rollout| rollout.outcome.is_some());
        Ok((found, next))
    }
}

async fn put_package(
    tx: &Transaction<'_>,
    (manifest, files): &(JsonText, Vec<PackageFile>),
) -> Result<(), DbError> {
    let digests: Vec<&str> = files.iter().map(|file| file.sha256.as_str()).collect();
    tx.execute(
        "DELETE FROM osmosis.package_files WHERE run_id = $1 AND sha256 <> ALL ($2::text[])",
        &[tx.run_id(), &digests],
    )
    .await?;
    for file in files {
        tx.execute(
            "INSERT INTO osmosis.package_files (run_id, sha256, content) VALUES ($1, $2, $3)
             ON CONFLICT (run_id, sha256) DO UPDATE SET content = EXCLUDED.content",
            &[tx.run_id(), &file.sha256, &file.content.as_ref()],
        )
        .await?;
    }
    tx.execute(
        "INSERT INTO osmosis.packages (run_id, manifest) VALUES ($1, $2)
         ON CONFLICT (run_id) DO UPDATE SET manifest = EXCLUDED.manifest",
        &[tx.run_id(), &manifest.as_str()],
    )
    .await?;
    Ok(())
}

async fn package(connection: &Connection, run_id: i32) -> Result<Option<JsonText>, DbError> {
    let row = connection
        .query_optional(
            "SELECT manifest FROM osmosis.packages WHERE run_id = $1",
            &[&run_id],
        )
        .await?;
    row.as_ref().map(|row| json(row, "manifest")).transpose()
}

async fn package_file(
    connection: &Connection,
    run_id: i32,
    sha256: &str,
) -> Result<Option<Bytes>, DbError> {
    let row = connection
        .query_optional(
            "SELECT content FROM osmosis.package_files WHERE run_id = $1 AND sha256 = $2",
            &[&run_id, &sha256],
        )
        .await?;
    Ok(match row {
        Some(row) => Some(row.try_get::<_, Vec<u8>>(0)?.into()),
        None => None,
    })
}

async fn set_controller(
    tx: &Transaction<'_>,
    (url, key_sha256): &(Option<String>, Option<String>),
) -> Result<(), DbError> {
    tx.execute(
        "UPDATE osmosis.runs SET controller_url = $2, node_key_sha256 = $3 WHERE run_id = $1",
        &[tx.run_id(), url, key_sha256],
    )
    .await?;
    Ok(())
}

async fn text_of_run(
    connection: &Connection,
    sql: &'static str,
    run_id: i32,
) -> Result<Option<String>, DbError> {
    let row = connection.query_optional(sql, &[&run_id]).await?;
    Ok(match row {
        Some(row) => row.try_get(0)?,
        None => None,
    })
}

/// Not through the writer: also whoever does not control the run may ask, if the database lets it.
async fn ask_to_stop(
    connection: &Connection,
    run_id: i32,
    request: Option<StopRequest>,
) -> Result<(), DbError> {
    let request = request.map(StopRequest::as_str);
    connection
        .execute(
            "UPDATE osmosis.runs SET stop_asked = $2 WHERE run_id = $1",
            &[&run_id, &request],
        )
        .await?;
    connection
        .query(
            "SELECT pg_notify($1, $2)",
            &[&channel(run_id), &"stop asked"],
        )
        .await?;
    Ok(())
}

async fn standing(
    connection: &Connection,
    run_id: i32,
    lease_ms: Option<i64>,
) -> Result<RunStanding, DbError> {
    let row = connection
        .query_optional(
            "SELECT runs.stop_asked, records.status,
                EXISTS (SELECT 1 FROM osmosis.rollouts WHERE run_id = $1 AND state = 'queued')
                OR EXISTS (SELECT 1 FROM osmosis.rollouts WHERE run_id = $1 AND state = 'leased'
                    AND lease_until_ms <= coalesce($2::bigint, osmosis.now_ms())) AS claimable,
                EXISTS (SELECT 1 FROM osmosis.rollouts WHERE run_id = $1 AND state = 'leased') AS leased
             FROM osmosis.runs AS runs LEFT JOIN osmosis.run_records AS records USING (run_id)
             WHERE runs.run_id = $1",
            &[&run_id, &lease_ms],
        )
        .await?;
    let Some(row) = row else {
        return Err(StoreError::Moved {
            path: connection.shown().into(),
        }
        .into());
    };
    let stop_asked: Option<String> = row.try_get(0)?;
    let status: Option<String> = row.try_get(1)?;
    Ok(RunStanding {
        status: status.map(from_word).transpose()?,
        stop_asked: stop_asked.as_deref().and_then(StopRequest::parse),
        claimable: row.try_get(2)?,
        leased: row.try_get(3)?,
    })
}

/// Who asks for the members of a run.
struct Asking {
    run_id: i32,
    member_id: i64,
    lease_ms: Option<i64>,
    silent: f64,
}

async fn members(connection: &Connection, asking: &Asking) -> Result<Vec<Member>, DbError> {
    let rows = connection
        .query(
            "SELECT members.member_id, members.kind, members.holder, members.draining, members.done,
                greatest(extract(epoch FROM clock_timestamp() - members.seen_at), 0)::double precision AS seen_ago,
                members.seen_at > clock_timestamp() - make_interval(secs => $3) AS alive,
                (SELECT count(*) FROM osmosis.rollouts AS rollouts WHERE rollouts.run_id = $1
                    AND rollouts.state = 'leased' AND rollouts.member_id = members.member_id
                    AND rollouts.lease_until_ms > coalesce($2::bigint, osmosis.now_ms())) AS leases
             FROM osmosis.members AS members WHERE members.run_id = $1 ORDER BY members.member_id",
            &[&asking.run_id, &asking.lease_ms, &asking.silent],
        )
        .await?;
    rows.iter()
        .map(|row| member(row, asking.member_id))
        .collect()
}

fn member(row: &Row, ours: i64) -> Result<Member, DbError> {
    let id: i64 = row.try_get("member_id")?;
    let kind: &str = row.try_get("kind")?;
    let holder: &str = row.try_get("holder")?;
    let seen_ago: f64 = row.try_get("seen_ago")?;
    Ok(Member {
        id,
        kind: if kind == MemberKind::Controller.as_str() {
            MemberKind::Controller
        } else {
            MemberKind::Node
        },
        is_self: id == ours,
        holder: serde_json::from_str(holder).ok(),
        seen_ago: Duration::try_from_secs_f64(seen_ago).unwrap_or_default(),
        alive: row.try_get("alive")?,
        leases: number(row, "leases")?,
        done: number(row, "done")?,
        draining: row.try_get("draining")?,
    })
}

async fn set_draining(tx: &Transaction<'_>) -> Result<(), DbError> {
    tx.execute(
        "UPDATE osmosis.members SET draining = true WHERE run_id = $1 AND member_id = $2",
        &[tx.run_id(), tx.member_id()],
    )
    .await?;
    Ok(())
}

async fn watch_finished(
    connection: &Connection,
    run_id: i32,
) -> Result<(FinishedCursor, QueueCounts), DbError> {
    // One statement sees one moment.
    let row = connection
        .query_one(
            "WITH moment AS MATERIALIZED (
                SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 64 AS horizon
            )
            SELECT (SELECT horizon FROM moment) AS horizon,
                (SELECT count(*) FROM osmosis.rollouts WHERE run_id = $1 AND state = 'queued') AS queued,
                (SELECT count(*) FROM osmosis.rollouts WHERE run_id = $1 AND state = 'leased') AS leased,
                (SELECT count(*) FROM osmosis.rollouts WHERE run_id = $1 AND state = 'done') AS done,
                array_agg(found.rollout_id) AS ids, array_agg(found.done_xid) AS xids
            FROM (
                SELECT rollout_id, done_xid FROM osmosis.rollouts
                WHERE run_id = $1 AND state = 'done' AND done_xid >= (SELECT horizon FROM moment)
            ) AS found",
            &[&run_id],
        )
        .await?;
    let counts = QueueCounts {
        queued: number(&row, "queued")?,
        leased: number(&row, "leased")?,
        done: number(&row, "done")?,
    };
    let cursor = FinishedCursor {
        horizon: row.try_get("horizon")?,
        reported: finished_ids(&row)?,
    };
    Ok((cursor, counts))
}

fn finished_ids(row: &Row) -> Result<Vec<(String, i64)>, DbError> {
    let ids: Option<Vec<String>> = row.try_get("ids")?;
    let xids: Option<Vec<i64>> = row.try_get("xids")?;
    Ok(ids
        .unwrap_or_default()
        .into_iter()
        .zip(xids.unwrap_or_default())
        .collect())
}

async fn finished_since(
    connection: &Connection,
    run_id: i32,
    member_id: i64,
    cursor: &FinishedCursor,
) -> Result<(Vec<RolloutId>, FinishedCursor), DbError> {
    let row = connection
        .query_one(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 64 AS horizon,
                array_agg(found.rollout_id) AS ids, array_agg(found.done_xid) AS xids
             FROM (
                SELECT rollout_id, done_xid FROM osmosis.rollouts
                WHERE run_id = $1 AND state = 'done' AND done_xid >= $2 AND done_by IS DISTINCT FROM $3
                ORDER BY done_xid
             ) AS found",
            &[&run_id, &cursor.horizon, &member_id],
        )
        .await?;
    let found = finished_ids(&row)?;
    let before: HashSet<&(String, i64)> = cursor.reported.iter().collect();
    let ids = found
        .iter()
        .filter(|one| !before.contains(one))
        .map(|(id, _)| RolloutId::new(id.clone()))
        .collect::<Result<_, _>>()?;
    let horizon = cursor.horizon.max(row.try_get("horizon")?);
    let reported = found.into_iter().filter(|(_, xid)| *xid >= horizon);
    let next = FinishedCursor {
        horizon,
        reported: reported.collect(),
    };
    Ok((ids, next))
}
