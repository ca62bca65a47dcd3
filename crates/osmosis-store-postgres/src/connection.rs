//! One connection to the database, with the statements it has prepared.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::poll_fn;
use osmosis_store::StoreError;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Notification, Row, RowStream, Statement};
use tokio_util::task::TaskTracker;

use crate::address::Address;
use crate::error::DbError;

/// A parameter of a statement.
pub(crate) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// What every session is set to. Acknowledged writes survive a power cut, whatever the server's default is; a session that
/// was left behind ends by itself.
const SETTINGS: &str = "
    SELECT set_config('synchronous_commit', 'on', false)
        WHERE current_setting('synchronous_commit') IN ('off', 'local');
    SET jit = off;
    SET lock_timeout = '30s';
    SET idle_in_transaction_session_timeout = '60s';
    SET tcp_keepalives_idle = 10;
    SET tcp_keepalives_interval = 5;
    SET tcp_keepalives_count = 3;
    SET client_min_messages = warning;
";

/// Between two looks whether a session has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// So many notifications may wait: one says as much as many.
const WAITING_NOTIFICATIONS: usize = 16;

/// Makes connections; what drives them is owned here.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    address: Arc<Address>,
    tasks: TaskTracker,
}

impl Connector {
    pub(crate) fn new(address: Arc<Address>) -> Self {
        Self {
            address,
            tasks: TaskTracker::new(),
        }
    }

    pub(crate) fn shown(&self) -> &str {
        &self.address.shown
    }

    /// The tasks of connections and stores.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    pub(crate) async fn connect(&self) -> Result<Connection, DbError> {
        Ok(self.connect_and_listen().await?.0)
    }

    /// A connection, and the notifications that come over it.
    pub(crate) async fn connect_and_listen(
        &self,
    ) -> Result<(Connection, mpsc::Receiver<Notification>), DbError> {
        let (client, mut driver) = self
            .address
            .config
            .connect(self.address.tls.clone())
            .await?;
        let (sender, notifications) = mpsc::channel(WAITING_NOTIFICATIONS);
        // Ends when the client is dropped, or the connection breaks: then every statement of the client fails.
        self.tasks.spawn(async move {
            while let Some(message) = poll_fn(|context| driver.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notification(notification)) => {
                        let _ = sender.try_send(notification);
                    }
                    Ok(other) => tracing::debug!(?other, "a message of the database"),
                    Err(error) => {
                        tracing::debug!(%error, "a connection to the database broke");
                        return;
                    }
                }
            }
        });
        client.batch_execute(SETTINGS).await?;
        let row = client
            .query_one(
                "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()",
                &[],
            )
            .await?;
        let connection = Connection {
            client,
            shown: self.address.shown.clone(),
            session: Session {
                pid: row.try_get(0)?,
                began: row.try_get(1)?,
            },
            statements: Mutex::new(HashMap::new()),
        };
        Ok((connection, notifications))
    }
}

/// The server's end of a connection, which may live on when ours is gone.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) pid: i32,
    pub(crate) began: String,
}

#[derive(Debug)]
pub(crate) struct Connection {
    client: Client,
    shown: String,
    session: Session,
    statements: Mutex<HashMap<&'static str, Statement>>,
}

impl Connection {
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Ends another session of ours and waits until it is gone: what it had not committed is undone, and its locks are free.
    pub(crate) async fn end_session(&self, other: &Session) -> Result<(), DbError> {
        loop {
            let there = self
                .query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE pid = $1 AND backend_start::text = $2",
                    &[&other.pid, &other.began],
                )
                .await?;
            if there.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Statements without parameters and results.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), DbError> {
        Ok(self.client.batch_execute(sql).await?)
    }

    pub(crate) async fn query(
        &self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, DbError> {
        let statement = self.prepared(sql).await?;
        Ok(self.client.query(&statement, parameters).await?)
    }

    pub(crate) async fn query_one(
        &self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, DbError> {
        let mut rows = self.query(sql, parameters).await?;
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => Ok(row),
            (_, _) => Err(DbError::Refused(StoreError::refused(
                "a statement gave not exactly one row",
            ))),
        }
    }

    pub(crate) async fn query_optional(
        &self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Option<Row>, DbError> {
        Ok(self.query(sql, parameters).await?.pop())
    }

    /// Rows as they come, so that they need not fit into memory.
    pub(crate) async fn stream(
        &self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<RowStream, DbError> {
        let statement = self.prepared(sql).await?;
        let parameters = parameters.iter().copied();
        Ok(self.client.query_raw(&statement, parameters).await?)
    }

    /// How many rows it changed.
    pub(crate) async fn execute(
        &self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<u64, DbError> {
        let statement = self.prepared(sql).await?;
        Ok(self.client.execute(&statement, parameters).await?)
    }

    /// Makes statements ready beforehand: what is prepared is sent when it is first polled.
    pub(crate) async fn prepare(&self, sql: &'static str) -> Result<(), DbError> {
        self.prepared(sql).await.map(drop)
    }

    async fn prepared(&self, sql: &'static str) -> Result<Statement, DbError> {
        if let Some(statement) = self.statements.lock().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.lock().insert(sql, statement.clone());
        Ok(statement)
    }
}
