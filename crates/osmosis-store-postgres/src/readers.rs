//! Connections that read, and what is done beside the writer. They see every acknowledged write.

use std::time::Duration;

use osmosis_store::StoreError;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

use crate::connection::{Connection, Connector};
use crate::error::{Consequence, DbError};

/// Reads that may go on at once, each with a connection that is made when it is first needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadersOf {
    /// Of a controller, a catalogue or whoever only reads: reports and pages ask for several things at once.
    Few,
    /// Of a node, which looks at its run now and then. There may be many nodes, and a database has few connections.
    One,
}

impl ReadersOf {
    fn count(self) -> u32 {
        match self {
            Self::Few => 4,
            Self::One => 1,
        }
    }
}

/// Between two tries to reach the database.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Readers {
    connector: Connector,
    of: ReadersOf,
    slots: Semaphore,
    idle: Mutex<Vec<Connection>>,
    retry_for: Duration,
}

/// Reads with a connection of its own, and again with another one when the connection breaks:
/// `read!(readers, |connection| counts(connection, run))`. A macro, because what is read borrows from its surroundings.
macro_rules! read {
    ($readers:expr, |$connection:ident| $work:expr) => {{
        let mut reading = $readers.begin().await?;
        loop {
            let held = reading.connection().await?;
            let found = {
                let $connection = &held;
                $work.await
            };
            match found {
                Ok(found) => {
                    reading.done(held);
                    break Ok(found);
                }
                Err(error) => reading.failed(error).await?,
            }
        }
    }};
}
pub(crate) use read;

/// A read that may take several tries.
#[derive(Debug)]
pub(crate) struct Reading<'r> {
    readers: &'r Readers,
    _slot: SemaphorePermit<'r>,
    deadline: Instant,
    pause: Duration,
}

impl Readers {
    pub(crate) fn new(connector: Connector, of: ReadersOf, retry_for: Duration) -> Self {
        Self {
            connector,
            of,
            slots: Semaphore::new(of.count() as usize),
            idle: Mutex::new(Vec::new()),
            retry_for,
        }
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    pub(crate) async fn begin(&self) -> Result<Reading<'_>, StoreError> {
        let slot = self.slots.acquire().await.map_err(|_| StoreError::Closed)?;
        Ok(Reading {
            readers: self,
            _slot: slot,
            deadline: Instant::now() + self.retry_for,
            pause: FIRST_PAUSE,
        })
    }

    /// Waits for the reads that go on, then closes every connection.
    pub(crate) async fn close(&self) {
        let all = self.slots.acquire_many(self.of.count()).await;
        self.slots.close();
        drop(all);
        self.idle.lock().clear();
    }
}

impl Reading<'_> {
    pub(crate) async fn connection(&mut self) -> Result<Connection, StoreError> {
        loop {
            let idle = self.readers.idle.lock().pop();
            let connected = match idle {
                Some(connection) if connection.is_closed() => continue,
                Some(connection) => Ok(connection),
                None => self.readers.connector.connect().await,
            };
            match connected {
                Ok(connection) => return Ok(connection),
                Err(error) => self.failed(error).await?,
            }
        }
    }

    /// The connection is as it was.
    pub(crate) fn done(&self, connection: Connection) {
        if !self.readers.slots.is_closed() {
            self.readers.idle.lock().push(connection);
        }
    }

    /// Waits a moment when another try may succeed. The connection is not used again: it may be in a transaction.
    pub(crate) async fn failed(&mut self, error: DbError) -> Result<(), StoreError> {
        let again = match error.consequence() {
            Consequence::Reconnect | Consequence::Repeat => {
                Instant::now() + self.pause <= self.deadline
            }
            Consequence::Aborted | Consequence::Final => false,
        };
        if !again {
            return Err(error.into_store_error(self.readers.connector.shown()));
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
