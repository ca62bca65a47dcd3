//! One transaction of the writer: all of its statements are under way at once, and the commit follows when all of them
//! have succeeded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{BoxFuture, poll_fn};
use osmosis_store::{Clock, Holder, StoreError};
use std::task::Poll;
use tokio_postgres::Row;

use crate::connection::{Connection, Parameter};
use crate::error::{Consequence, DbError};

/// Whose transactions these are.
#[derive(Debug, Clone)]
pub(crate) struct Writing {
    pub(crate) run_id: i32,
    pub(crate) member_id: i64,
    /// Of a controller; `None` for a node.
    pub(crate) epoch: Option<i64>,
    /// For tests; otherwise the database's clock counts.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// A member that was silent for so long is taken for dead.
    pub(crate) silent_seconds: f64,
    pub(crate) shown: String,
}

/// What the statements of a transaction work with.
#[derive(Debug)]
pub(crate) struct Transaction<'c> {
    connection: &'c Connection,
    pub(crate) writing: &'c Writing,
    changed: AtomicU64,
    finished: AtomicU64,
}

/// What a transaction did.
#[derive(Debug, Clone, Copy)]
struct Tally {
    changed: bool,
    /// Rollouts that got their result.
    finished: i64,
}

impl Transaction<'_> {
    pub(crate) fn run_id(&self) -> &i32 {
        &self.writing.run_id
    }

    pub(crate) fn member_id(&self) -> &i64 {
        &self.writing.member_id
    }

    /// What the clock of a test says about leases; `None` stands for the database's clock.
    pub(crate) fn lease_ms(&self) -> Option<i64> {
        self.writing.clock.as_ref().map(|clock| clock.lease_ms())
    }

    /// The same for what people read.
    pub(crate) fn now_ms(&self) -> Option<i64> {
        self.writing.clock.as_ref().map(|clock| clock.now_ms())
    }

    pub(crate) async fn query(
        &self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, DbError> {
        self.connection.query(sql, parameters).await
    }

    /// Changes rows, and returns how many.
    pub(crate) async fn execute(
        &self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<u64, DbError> {
        let changed = self.connection.execute(sql, parameters).await?;
        self.note(changed);
        Ok(changed)
    }

    /// Changes rows that the statement returns.
    pub(crate) async fn change(
        &self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, DbError> {
        let rows = self.connection.query(sql, parameters).await?;
        self.note(rows.len() as u64);
        Ok(rows)
    }

    /// So many rows were changed.
    pub(crate) fn note(&self, rows: u64) {
        self.changed.fetch_add(rows, Ordering::Relaxed);
    }

    /// So many rollouts got their result.
    pub(crate) fn note_finished(&self, rollouts: u64) {
        self.finished.fetch_add(rollouts, Ordering::Relaxed);
    }
}

/// Something that is done in a transaction.
pub(crate) trait Work: Send {
    fn run<'a>(
        &'a mut self,
        transaction: &'a Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), DbError>>;
}

/// How a transaction ended that was not committed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing was written.
    Failed(DbError),
    /// The connection broke during the commit.
    InDoubt(DbError),
}

/// Does everything in one transaction and commits. Returns whether anything changed. `number` is left in the database by a
/// commit that changed something, so that its fate can be found out when the answer is lost. (The server's own number of a
/// transaction would not do: after a crash it may be given to another one.)
pub(crate) async fn transact(
    connection: &Connection,
    writing: &Writing,
    number: i64,
    work: &mut [&mut dyn Work],
) -> Result<bool, Failure> {
    match try_all(connection, writing, work).await {
        Ok(tally) if tally.changed => {
            let committed = commit_marked(connection, writing, number, tally.finished);
            committed.await.map(|()| true)
        }
        // Nothing was written that could be lost.
        Ok(_) => {
            let ended = connection.batch("COMMIT").await;
            ended.map(|()| false).map_err(Failure::Failed)
        }
        Err(error) => {
            if error.consequence() != Consequence::Reconnect {
                // A connection that can't roll back is not used again.
                connection
                    .batch("ROLLBACK")
                    .await
                    .map_err(Failure::Failed)?;
            }
            Err(Failure::Failed(error))
        }
    }
}

async fn commit_marked(
    connection: &Connection,
    writing: &Writing,
    number: i64,
    finished: i64,
) -> Result<(), Failure> {
    let mark: [Parameter<'_>; 4] = [&writing.run_id, &writing.member_id, &number, &finished];
    let (marked, committed) = tokio::join!(
        biased;
        connection.execute(MARK, &mark),
        connection.batch("COMMIT"),
    );
    let Some(error) = marked.err().or(committed.err()) else {
        return Ok(());
    };
    Err(if error.consequence() == Consequence::Reconnect {
        Failure::InDoubt(error)
    } else {
        // The commit of a transaction in which the mark failed undoes it.
        Failure::Failed(error)
    })
}

/// What became of a commit that was not answered. Waits for one that still goes on, which has the row locked.
pub(crate) async fn was_committed(
    connection: &Connection,
    writing: &Writing,
    number: i64,
) -> Result<bool, DbError> {
    let row = connection
        .query_optional(
            "SELECT last_commit FROM osmosis.members WHERE run_id = $1 AND member_id = $2 FOR UPDATE",
            &[&writing.run_id, &writing.member_id],
        )
        .await?;
    let Some(row) = row else {
        return Err(StoreError::Moved {
            path: writing.shown.clone().into(),
        }
        .into());
    };
    Ok(row.try_get::<_, i64>(0)? == number)
}

const MARK: &str = "UPDATE osmosis.members SET last_commit = $3, done = done + $4 WHERE run_id = $1 AND member_id = $2";
/// A takeover, which locks the row alone, waits for the end of the transaction. What it changed is seen by whoever waited for it.
const OUR_RUN_KEPT: &str = "SELECT epoch, holder FROM osmosis.runs WHERE run_id = $1 FOR KEY SHARE";
const OUR_RUN: &str = "SELECT epoch, holder FROM osmosis.runs WHERE run_id = $1";

/// All statements, in one go. What they did.
async fn try_all(
    connection: &Connection,
    writing: &Writing,
    work: &mut [&mut dyn Work],
) -> Result<Tally, DbError> {
    let transaction = Transaction {
        connection,
        writing,
        changed: AtomicU64::new(0),
        finished: AtomicU64::new(0),
    };
    // Once per connection: what is not prepared would be sent after what is.
    for sql in [our_run(writing), MARK] {
        connection.prepare(sql).await?;
    }
    let mut steps: Vec<BoxFuture<'_, Result<(), DbError>>> = Vec::with_capacity(work.len() + 2);
    steps.push(Box::pin(connection.batch("BEGIN")));
    steps.push(Box::pin(check_run(connection, writing)));
    for one in work {
        steps.push(one.run(&transaction));
    }
    all_in_order(steps).await?;
    let finished = transaction.finished.load(Ordering::Relaxed);
    Ok(Tally {
        changed: transaction.changed.load(Ordering::Relaxed) > 0,
        finished: i64::try_from(finished).unwrap_or(i64::MAX),
    })
}

/// A node changes nothing that a takeover would make wrong, and may not lock the row.
fn our_run(writing: &Writing) -> &'static str {
    if writing.epoch.is_some() {
        OUR_RUN_KEPT
    } else {
        OUR_RUN
    }
}

/// Is the run still there, and still ours? Until the end of the transaction nobody takes it over.
async fn check_run(connection: &Connection, writing: &Writing) -> Result<(), DbError> {
    let run = &writing.run_id;
    let found = connection.query_optional(our_run(writing), &[run]).await?;
    let Some(found) = found else {
        return Err(StoreError::Moved {
            path: writing.shown.clone().into(),
        }
        .into());
    };
    let epoch: i64 = found.try_get(0)?;
    if writing.epoch.is_some_and(|ours| ours != epoch) {
        let holder: Option<String> = found.try_get(1)?;
        return Err(fenced(&writing.shown, holder.as_deref()).into());
    }
    Ok(())
}

pub(crate) fn fenced(shown: &str, holder: Option<&str>) -> StoreError {
    let holder = holder.and_then(|text| serde_json::from_str::<Holder>(text).ok());
    StoreError::Fenced {
        path: shown.into(),
        by: holder.map_or_else(|| "another process".to_owned(), |holder| holder.to_string()),
    }
}

/// Polls in order from the first on, so that statements go out in this order, and waits for all. The error is that of
/// the first one that failed by itself.
async fn all_in_order(mut steps: Vec<BoxFuture<'_, Result<(), DbError>>>) -> Result<(), DbError> {
    let mut left: Vec<bool> = vec![true; steps.len()];
    let mut failure: Option<DbError> = None;
    poll_fn(|context| {
        let mut pending = false;
        for (step, left) in steps.iter_mut().zip(&mut left) {
            if !*left {
                continue;
            }
            match step.as_mut().poll(context) {
                Poll::Pending => pending = true,
                Poll::Ready(ended) => {
                    *left = false;
                    if let Err(error) = ended {
                        let is_cause = error.consequence() != Consequence::Aborted;
                        let known = failure
                            .as_ref()
                            .is_some_and(|known| known.consequence() != Consequence::Aborted);
                        if failure.is_none() || (is_cause && !known) {
                            failure = Some(error);
                        }
                    }
                }
            }
        }
        if pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    failure.map_or(Ok(()), Err)
}
