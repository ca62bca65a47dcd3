//! The session of an open run: as long as the controller's lives, the run is its; it says now and then that this member is
//! alive, and hears what others commit.
//!
//! No advisory lock is used: whoever may connect to the database can take each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use osmosis_store::{ChangeSender, Holder, StoreError};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::Notification;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, Connector};
use crate::error::{Consequence, DbError};
use crate::readers::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::roles;
use crate::transaction::fenced;

/// Between two notifications of a member: a notification costs the server a lock that all commits share.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(50);

/// How a member takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// It holds the run alone, since this epoch.
    Controller { epoch: i64 },
    /// It claims from the run beside others.
    Node,
    /// It only looks.
    Reader,
}

/// What the session of an open run works with.
pub(crate) struct Presence {
    pub(crate) connector: Connector,
    pub(crate) run_id: i32,
    pub(crate) member_id: i64,
    pub(crate) part: Part,
    pub(crate) changes: Arc<ChangeSender>,
    pub(crate) commits: Arc<AtomicU64>,
    pub(crate) fenced: watch::Sender<Option<StoreError>>,
    pub(crate) to_announce: Arc<Notify>,
    pub(crate) every: Duration,
    pub(crate) stop: CancellationToken,
}

/// The channel on which changes of a run are announced.
pub(crate) fn channel(run_id: i32) -> String {
    format!("osmosis_run_{run_id}")
}

/// Who controls a run.
struct Controller {
    epoch: i64,
    holder: Option<String>,
    /// Its session lives.
    alive: bool,
    /// It was heard of not long ago, or nobody knows.
    heard: bool,
}

// A session of a role that we may not look into shows when it began to nobody; then its number alone decides.
const CONTROLLER: &str = "
    SELECT runs.epoch, runs.holder,
        coalesce(runs.holder_seen_at >= clock_timestamp() - make_interval(secs => $2), true) AS heard,
        EXISTS (SELECT 1 FROM pg_stat_activity AS session WHERE session.pid = runs.controller_pid
            AND coalesce(session.backend_start::text, runs.controller_began) = runs.controller_began) AS alive
    FROM osmosis.runs AS runs WHERE runs.run_id = $1";

/// The same with the row locked, which no node can: nobody takes the run over before the transaction ends.
const CONTROLLER_LOCKED: &str = "
    SELECT runs.epoch, runs.holder,
        coalesce(runs.holder_seen_at >= clock_timestamp() - make_interval(secs => $2), true) AS heard,
        EXISTS (SELECT 1 FROM pg_stat_activity AS session WHERE session.pid = runs.controller_pid
            AND coalesce(session.backend_start::text, runs.controller_began) = runs.controller_began) AS alive
    FROM osmosis.runs AS runs WHERE runs.run_id = $1 FOR UPDATE";

async fn controller(
    connection: &Connection,
    sql: &'static str,
    run_id: i32,
    silent: f64,
) -> Result<Option<Controller>, DbError> {
    let row = connection.query_optional(sql, &[&run_id, &silent]).await?;
    row.map(|row| {
        Ok(Controller {
            epoch: row.try_get("epoch")?,
            holder: row.try_get("holder")?,
            alive: row.try_get("alive")?,
            heard: row.try_get("heard")?,
        })
    })
    .transpose()
}

/// Whether a living session controls the run now.
pub(crate) async fn is_controlled(connection: &Connection, run_id: i32) -> Result<bool, DbError> {
    let found = controller(connection, CONTROLLER, run_id, 0.0).await?;
    Ok(found.is_some_and(|controller| controller.alive))
}

/// The same inside a transaction, until whose end nobody takes control.
pub(crate) async fn is_controlled_until_commit(
    connection: &Connection,
    run_id: i32,
) -> Result<bool, DbError> {
    let found = controller(connection, CONTROLLER_LOCKED, run_id, 0.0).await?;
    Ok(found.is_some_and(|controller| controller.alive))
}

/// What came of trying to take control of a run.
pub(crate) enum Takeover {
    /// Since this epoch: others that believe to be the controller find another one from now on.
    Taken(i64),
    /// A living process has it.
    Held,
    /// There is no such run.
    Missing,
}

/// Becomes the controller, unless another one lives. One that has not been heard of for so long that it is gone, or can't
/// reach the database, is ended; its epoch fences what it may still send.
pub(crate) async fn take_over(
    connection: &Connection,
    run_id: i32,
    holder: &str,
    silent: f64,
) -> Result<Takeover, DbError> {
    connection.batch("BEGIN").await?;
    let taken = try_take_over(connection, run_id, holder, silent).await;
    connection
        .batch(if taken.is_ok() { "COMMIT" } else { "ROLLBACK" })
        .await?;
    taken
}

async fn try_take_over(
    connection: &Connection,
    run_id: i32,
    holder: &str,
    silent: f64,
) -> Result<Takeover, DbError> {
    let Some(before) = controller(connection, CONTROLLER_LOCKED, run_id, silent).await? else {
        return Ok(Takeover::Missing);
    };
    if before.alive && before.heard {
        return Ok(Takeover::Held);
    }
    if before.alive {
        connection
            .query(
                "SELECT pg_terminate_backend(controller_pid) FROM osmosis.runs WHERE run_id = $1",
                &[&run_id],
            )
            .await?;
    }
    let session = connection.session();
    let row = connection
        .query_one(
            "UPDATE osmosis.runs SET epoch = epoch + 1, holder = $2, holder_seen_at = clock_timestamp(),
                controller_pid = $3, controller_began = $4
             WHERE run_id = $1 RETURNING epoch",
            &[&run_id, &holder, &session.pid, &session.began],
        )
        .await?;
    // What those before left behind that did not leave in order.
    connection
        .execute(
            "DELETE FROM osmosis.members WHERE run_id = $1
                AND (kind = 'controller' OR seen_at < clock_timestamp() - interval '1 day')",
            &[&run_id],
        )
        .await?;
    Ok(Takeover::Taken(row.try_get(0)?))
}

/// Enters the list of those who write to a run.
pub(crate) async fn join(
    connection: &Connection,
    run_id: i32,
    kind: &'static str,
    holder: &str,
) -> Result<i64, DbError> {
    let row = connection
        .query_one(
            "INSERT INTO osmosis.members (run_id, kind, holder) VALUES ($1, $2, $3) RETURNING member_id",
            &[&run_id, &kind, &holder],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// Begins to listen.
pub(crate) async fn listen(connection: &Connection, run_id: i32) -> Result<(), DbError> {
    connection
        .batch(&format!("LISTEN {}", channel(run_id)))
        .await
}

pub(crate) fn holder_text(holder: &Holder) -> Result<String, StoreError> {
    serde_json::to_string(holder).map_err(|error| StoreError::refused(error.to_string()))
}

impl Presence {
    /// Until it is stopped. The connection is given back to be closed in order.
    pub(crate) async fn run(
        mut self,
        connection: Connection,
        notifications: mpsc::Receiver<Notification>,
    ) -> Option<Connection> {
        let mut session = Some((connection, notifications));
        loop {
            let stop = self.stop.clone();
            let (connection, mut notifications) = if let Some(session) = session.take() {
                session
            } else {
                tokio::select! {
                    again = self.connect_again() => again?,
                    () = stop.cancelled() => return None,
                }
            };
            let ended = tokio::select! {
                error = self.attend(&connection, &mut notifications) => error,
                () = stop.cancelled() => return Some(connection),
            };
            tracing::debug!(error = %ended, run = self.run_id, "the session of a run broke");
        }
    }

    /// A new session of the run, if it is still ours. `None` when it is not.
    pub(crate) async fn connect_again(
        &mut self,
    ) -> Option<(Connection, mpsc::Receiver<Notification>)> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.try_connect().await {
                Ok(session) => {
                    // Nobody knows what was missed meanwhile.
                    self.changes.send();
                    return Some(session);
                }
                Err(DbError::Refused(error)) => {
                    tracing::error!(%error, "the run is not ours any more");
                    self.fenced.send_replace(Some(error));
                    return None;
                }
                Err(error) => {
                    if error.consequence() == Consequence::Final {
                        tracing::warn!(%error, "the session of a run can't be made again");
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn try_connect(&self) -> Result<(Connection, mpsc::Receiver<Notification>), DbError> {
        let (connection, notifications) = self.connector.connect_and_listen().await?;
        if let Part::Controller { epoch } = self.part {
            let session = connection.session();
            let ours = connection
                .execute(
                    "UPDATE osmosis.runs SET controller_pid = $3, controller_began = $4
                     WHERE run_id = $1 AND epoch = $2",
                    &[&self.run_id, &epoch, &session.pid, &session.began],
                )
                .await?;
            if ours == 0 {
                let found = controller(&connection, CONTROLLER, self.run_id, 0.0).await?;
                let by = found
                    .filter(|found| found.epoch != epoch)
                    .and_then(|found| found.holder);
                return Err(fenced(self.connector.shown(), by.as_deref()).into());
            }
        }
        listen(&connection, self.run_id).await?;
        Ok((connection, notifications))
    }

    /// Until the connection breaks.
    async fn attend(
        &self,
        connection: &Connection,
        notifications: &mut mpsc::Receiver<Notification>,
    ) -> DbError {
        let ours = self.member_id.to_string();
        let mut heard_of = None;
        let mut next_look = Instant::now() + self.every;
        loop {
            tokio::select! {
                () = self.to_announce.notified() => {
                    let announced = connection
                        .query("SELECT pg_notify($1, $2)", &[&channel(self.run_id), &ours])
                        .await;
                    if let Err(error) = announced {
                        return error;
                    }
                    sleep(ANNOUNCE_EVERY).await;
                }
                notification = notifications.recv() => match notification {
                    Some(notification) if notification.payload() == ours => {}
                    Some(_) => self.changes.send(),
                    None => return DbError::Senseless("the connection broke".to_owned()),
                },
                () = sleep_until(next_look) => {
                    next_look = Instant::now() + self.every;
                    match self.look(connection).await {
                        Ok(others) => {
                            // What nobody announced, or whose word was lost.
                            if heard_of.is_some_and(|before| before != others) {
                                self.changes.send();
                            }
                            heard_of = Some(others);
                        }
                        Err(error) => return error,
                    }
                }
            }
        }
    }

    /// Says that we are alive, and asks how often the others have committed.
    async fn look(&self, connection: &Connection) -> Result<i64, DbError> {
        let commits = i64::try_from(self.commits.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        if self.part != Part::Reader {
            connection
                .execute(
                    "UPDATE osmosis.members SET seen_at = clock_timestamp(), commits = $3
                     WHERE run_id = $1 AND member_id = $2",
                    &[&self.run_id, &self.member_id, &commits],
                )
                .await?;
        }
        if let Part::Controller { epoch } = self.part {
            let ours = connection
                .execute(
                    "UPDATE osmosis.runs SET holder_seen_at = clock_timestamp() WHERE run_id = $1 AND epoch = $2",
                    &[&self.run_id, &epoch],
                )
                .await?;
            if ours == 0 {
                let error = fenced(self.connector.shown(), None);
                self.fenced.send_replace(Some(error));
            } else {
                roles::renew(connection, self.run_id).await?;
            }
        }
        let row = connection
            .query_one(
                "SELECT coalesce(sum(commits), 0)::bigint FROM osmosis.members WHERE run_id = $1 AND member_id <> $2",
                &[&self.run_id, &self.member_id],
            )
            .await?;
        Ok(row.try_get(0)?)
    }
}

/// Leaves the run in order: nobody has it, the list of members has one less, and its roles end.
pub(crate) async fn leave(
    connection: &Connection,
    run_id: i32,
    member_id: i64,
    part: Part,
) -> Result<(), DbError> {
    let Part::Controller { epoch } = part else {
        return leave_as_node(connection, run_id, member_id).await;
    };
    connection
        .execute(
            "DELETE FROM osmosis.members WHERE run_id = $1 AND member_id = $2",
            &[&run_id, &member_id],
        )
        .await?;
    let ours = connection
        .execute(
            "UPDATE osmosis.runs SET holder = NULL, holder_seen_at = NULL, controller_pid = NULL,
                controller_began = NULL
             WHERE run_id = $1 AND epoch = $2",
            &[&run_id, &epoch],
        )
        .await?;
    if ours > 0 {
        roles::end_of(connection, run_id).await?;
    }
    Ok(())
}

async fn leave_as_node(
    connection: &Connection,
    run_id: i32,
    member_id: i64,
) -> Result<(), DbError> {
    let may_delete: bool = connection
        .query_one(
            "SELECT has_table_privilege('osmosis.members', 'DELETE')",
            &[],
        )
        .await?
        .try_get(0)?;
    if may_delete {
        connection
            .execute(
                "DELETE FROM osmosis.members WHERE run_id = $1 AND member_id = $2",
                &[&run_id, &member_id],
            )
            .await?;
    } else {
        connection
            .query("SELECT osmosis.leave_run($1, $2)", &[&run_id, &member_id])
            .await?;
    }
    Ok(())
}
