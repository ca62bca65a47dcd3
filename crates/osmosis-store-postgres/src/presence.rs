//! The session of an open run: it keeps the controller's lock, says now and then that this member is alive, and hears what
//! others commit.

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
use crate::locks;
use crate::readers::{FIRST_PAUSE, LONGEST_PAUSE};
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

/// Takes the controller's lock of a run for the session; `false` when somebody has it.
pub(crate) async fn lock(connection: &Connection, run_id: i32) -> Result<bool, DbError> {
    let row = connection
        .query_one(
            "SELECT pg_try_advisory_lock($1, $2)",
            &[&locks::CONTROLLER, &run_id],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// Ends the session of a controller that has not been heard of for so long that it is gone, or can't reach the database;
/// its epoch fences what it may still send. `false` when there is none to end.
pub(crate) async fn end_silent(
    connection: &Connection,
    run_id: i32,
    silent: f64,
) -> Result<bool, DbError> {
    let ended = connection
        .query(
            "SELECT pg_terminate_backend(locks.pid) FROM pg_locks AS locks
             JOIN osmosis.runs AS runs ON runs.run_id = $2
             WHERE locks.locktype = 'advisory' AND locks.granted AND locks.classid = $1::integer::oid
                AND locks.objid = $2::integer::oid AND locks.objsubid = 2
                AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND runs.holder_seen_at < clock_timestamp() - make_interval(secs => $3)",
            &[&locks::CONTROLLER, &run_id, &silent],
        )
        .await?;
    Ok(!ended.is_empty())
}

/// Whether a session has the controller's lock now.
pub(crate) async fn is_locked(connection: &Connection, run_id: i32) -> Result<bool, DbError> {
    let row = connection
        .query_one(
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted
                AND classid = $1::integer::oid AND objid = $2::integer::oid AND objsubid = 2
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
            &[&locks::CONTROLLER, &run_id],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// Becomes the controller: others that believe to be it find another epoch from now on.
pub(crate) async fn take_over(
    connection: &Connection,
    run_id: i32,
    holder: &str,
) -> Result<Option<i64>, DbError> {
    connection.batch("BEGIN").await?;
    let taken = async {
        connection
            .query(
                "SELECT pg_advisory_xact_lock($1, $2)",
                &[&locks::EPOCH, &run_id],
            )
            .await?;
        let row = connection
            .query_optional(
                "UPDATE osmosis.runs SET epoch = epoch + 1, holder = $2, holder_seen_at = clock_timestamp()
                 WHERE run_id = $1 RETURNING epoch",
                &[&run_id, &holder],
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
        Ok::<_, DbError>(match row {
            Some(row) => Some(row.try_get(0)?),
            None => None,
        })
    }
    .await;
    connection
        .batch(if taken.is_ok() { "COMMIT" } else { "ROLLBACK" })
        .await?;
    taken
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
    /// Until it is stopped. The connection that holds the lock is given back to be closed in order.
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

    /// A new session: the lock again, if it is still ours. `None` when it is not.
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
            let locked = lock(&connection, self.run_id).await?;
            let row = connection
                .query_optional(
                    "SELECT epoch, holder FROM osmosis.runs WHERE run_id = $1",
                    &[&self.run_id],
                )
                .await?;
            let (found, holder): (Option<i64>, Option<String>) = match &row {
                None => (None, None),
                Some(row) => (row.try_get(0)?, row.try_get(1)?),
            };
            if found != Some(epoch) {
                return Err(fenced(self.connector.shown(), holder.as_deref()).into());
            }
            // The old session may not have ended yet for the server; then this one is made again.
            if !locked {
                return Err(DbError::Senseless(
                    "the lock of the run is not free yet".to_owned(),
                ));
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

/// Leaves the run in order: nobody has it, and the list of members has one less.
pub(crate) async fn leave(
    connection: &Connection,
    run_id: i32,
    member_id: i64,
    part: Part,
) -> Result<(), DbError> {
    connection
        .execute(
            "DELETE FROM osmosis.members WHERE run_id = $1 AND member_id = $2",
            &[&run_id, &member_id],
        )
        .await?;
    if let Part::Controller { epoch } = part {
        connection
            .execute(
                "UPDATE osmosis.runs SET holder = NULL, holder_seen_at = NULL WHERE run_id = $1 AND epoch = $2",
                &[&run_id, &epoch],
            )
            .await?;
        connection
            .query(
                "SELECT pg_advisory_unlock($1, $2)",
                &[&locks::CONTROLLER, &run_id],
            )
            .await?;
    }
    Ok(())
}
