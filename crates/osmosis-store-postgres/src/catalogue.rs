//! The runs of a database.

mod kept;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use osmosis_core::{RunName, RunTag};
use osmosis_store::{
    ArchivedRun, Catalogue, Holder, ProgressVisitor, RunCredentials, RunEntry, RunKey, RunKind,
    RunLabels, RunPlace, RunSize, SalvageReport, Store, StoreError, StoreUrl, VerifyReport,
};

use crate::address::Address;
use crate::connection::{Connection, Connector};
use crate::error::DbError;
use crate::presence::is_controlled;
use crate::readers::{Readers, ReadersOf, read};
use crate::records::word;
use crate::store::{PostgresOptions, PostgresStore, holder_of};
use crate::{salvage, schema, verify};

/// How long whoever looks for runs waits for a database that can't be reached: a mistyped host is told soon. A run that
/// is open waits longer.
const LOOK_FOR: Duration = Duration::from_secs(5);

/// The runs of one database.
#[derive(Debug)]
pub struct PostgresCatalogue {
    url: StoreUrl,
    address: Arc<Address>,
    options: PostgresOptions,
    readers: Readers,
}

impl PostgresCatalogue {
    /// The runs in the database at `url`, a `postgres:` URL. Connects to nothing yet.
    pub fn at(url: &StoreUrl, options: PostgresOptions) -> Result<Self, StoreError> {
        let address = Arc::new(Address::of(url)?);
        Ok(Self {
            url: StoreUrl::parse(&address.shown)?,
            readers: Readers::new(
                Connector::new(Arc::clone(&address)),
                ReadersOf::Few,
                options.retry_for.min(LOOK_FOR),
            ),
            address,
            options,
        })
    }

    pub(crate) fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Connections of a store that is opened: they end with it, not with this catalogue.
    fn connector(&self) -> Connector {
        Connector::new(Arc::clone(&self.address))
    }

    fn not_found(&self, name: &RunName) -> StoreError {
        StoreError::NotFound {
            name: name.clone(),
            at: self.address.shown.clone(),
        }
    }

    /// The number of a run that is in the list; an error when the tables are not those this program knows.
    async fn find(&self, run: &RunKey) -> Result<Option<i32>, StoreError> {
        read!(self.readers, |c| find(c, run))
    }

    pub(crate) async fn existing(&self, run: &RunKey) -> Result<i32, StoreError> {
        self.find(run)
            .await?
            .ok_or_else(|| self.not_found(&run.name))
    }

    /// Brings the tables of the database to the version this program knows.
    pub(crate) async fn migrate(&self) -> Result<(), StoreError> {
        read!(self.readers, |c| schema::migrate(c))
    }

    fn archived_run(
        &self,
        key: RunKey,
        id: String,
        labels: RunLabels,
    ) -> Result<ArchivedRun, StoreError> {
        Ok(ArchivedRun {
            url: self.address.url_of(kept::ARCHIVE, &id)?,
            key,
            id,
            labels,
        })
    }

    async fn make(&self, run: &RunKey) -> Result<i32, StoreError> {
        self.migrate().await?;
        let made = read!(self.readers, |c| make(c, run))?;
        made.ok_or_else(|| StoreError::AlreadyExists(run.name.clone()))
    }
}

async fn find(connection: &Connection, run: &RunKey) -> Result<Option<i32>, DbError> {
    if !schema::check_readable(connection).await? {
        return Ok(None);
    }
    let row = connection
        .query_optional(
            "SELECT run_id FROM osmosis.runs WHERE kind = $1 AND name = $2 AND archived_as IS NULL",
            &[&word(&run.kind)?, &run.name.as_str()],
        )
        .await?;
    Ok(match row {
        Some(row) => Some(row.try_get(0)?),
        None => None,
    })
}

/// `None` when there is one of that name.
pub(crate) async fn make(connection: &Connection, run: &RunKey) -> Result<Option<i32>, DbError> {
    let row = connection
        .query_optional(
            "WITH made AS (
                INSERT INTO osmosis.runs (kind, name) VALUES ($1, $2)
                ON CONFLICT (kind, name) WHERE archived_as IS NULL DO NOTHING RETURNING run_id
            ), numbered AS (
                INSERT INTO osmosis.call_ids (run_id, next_id) SELECT run_id, 1 FROM made
            )
            SELECT run_id FROM made",
            &[&word(&run.kind)?, &run.name.as_str()],
        )
        .await?;
    Ok(match row {
        Some(row) => Some(row.try_get(0)?),
        None => None,
    })
}

async fn list(
    connection: &Connection,
    kind: RunKind,
) -> Result<Vec<(RunName, SystemTime)>, DbError> {
    if !schema::check_readable(connection).await? {
        return Ok(Vec::new());
    }
    connection
        .query(
            "SELECT name, made_at FROM osmosis.runs WHERE kind = $1 AND archived_as IS NULL
             ORDER BY made_at DESC, run_id DESC",
            &[&word(&kind)?],
        )
        .await?
        .iter()
        .map(|row| Ok((RunName::new(row.try_get::<_, String>(0)?)?, row.try_get(1)?)))
        .collect()
}

#[async_trait]
impl Catalogue for PostgresCatalogue {
    fn url(&self) -> &StoreUrl {
        &self.url
    }

    fn url_of(&self, run: &RunKey) -> Result<StoreUrl, StoreError> {
        self.address.url_of(&word(&run.kind)?, run.name.as_str())
    }

    async fn list(&self, kind: RunKind) -> Result<Vec<RunEntry>, StoreError> {
        let names = read!(self.readers, |c| list(c, kind))?;
        names
            .into_iter()
            .map(|(name, made_at)| {
                let key = RunKey { kind, name };
                let url = self.url_of(&key)?;
                Ok(RunEntry { key, url, made_at })
            })
            .collect()
    }

    async fn contains(&self, run: &RunKey) -> Result<bool, StoreError> {
        Ok(self.find(run).await?.is_some())
    }

    async fn create(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        let run_id = self.make(run).await?;
        let store = PostgresStore::control(self.connector(), &self.options, run_id).await?;
        Ok(Arc::new(store))
    }

    async fn open(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        let run_id = self.existing(run).await?;
        self.migrate().await?;
        let store = PostgresStore::control(self.connector(), &self.options, run_id).await?;
        Ok(Arc::new(store))
    }

    async fn open_read_only(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        let run_id = self.existing(run).await?;
        let store = PostgresStore::read_only(self.connector(), &self.options, run_id);
        Ok(Arc::new(store))
    }

    /// The role of the URL needs no rights on other runs, see [`Self::create_credentials`].
    async fn join(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        let known = read!(self.readers, |c| schema::check_writable(c))?;
        if !known {
            return Err(self.not_found(&run.name));
        }
        let run_id = self.existing(run).await?;
        let store = PostgresStore::join(self.connector(), &self.options, run_id).await?;
        Ok(Arc::new(store))
    }

    async fn create_credentials(&self, run: &RunKey) -> Result<RunCredentials, StoreError> {
        self.create_role(run).await
    }

    async fn holder(&self, run: &RunKey) -> Result<Option<Holder>, StoreError> {
        let run_id = self.existing(run).await?;
        if !read!(self.readers, |c| is_controlled(c, run_id))? {
            return Ok(None);
        }
        let holder = read!(self.readers, |c| holder_of(c, run_id))?;
        Ok(Some(holder.unwrap_or_else(Holder::unknown)))
    }

    async fn archive(&self, run: &RunKey) -> Result<ArchivedRun, StoreError> {
        let (id, labels) = self.archive_run(run).await?;
        self.archived_run(run.clone(), id, labels)
    }

    async fn archived(&self, kind: RunKind) -> Result<Vec<ArchivedRun>, StoreError> {
        let found = read!(self.readers, |c| kept::archived(c, kind))?;
        found
            .into_iter()
            .map(|(id, name, labels)| self.archived_run(RunKey { kind, name }, id, labels))
            .collect()
    }

    async fn open_archived(&self, id: &str) -> Result<Arc<dyn Store>, StoreError> {
        let run_id = self.place(&RunPlace::Archived(id.to_owned())).await?;
        let store = PostgresStore::read_only(self.connector(), &self.options, run_id);
        Ok(Arc::new(store))
    }

    async fn restore(&self, id: &str, name: Option<&RunName>) -> Result<RunKey, StoreError> {
        self.restore_run(id, name).await
    }

    async fn rename(&self, run: &RunKey, to: &RunName) -> Result<(), StoreError> {
        self.rename_run(run, to).await
    }

    async fn labels(&self, run: &RunKey) -> Result<RunLabels, StoreError> {
        let run_id = self.existing(run).await?;
        let labels = read!(self.readers, |c| kept::labels(c, run_id))?;
        labels.ok_or_else(|| self.not_found(&run.name))
    }

    async fn tag(
        &self,
        run: &RunKey,
        add: &[RunTag],
        remove: &[RunTag],
    ) -> Result<RunLabels, StoreError> {
        let run_id = self.existing(run).await?;
        let labels = read!(self.readers, |c| kept::tag(c, run_id, add, remove))?;
        labels.ok_or_else(|| self.not_found(&run.name))
    }

    async fn size(&self, place: &RunPlace) -> Result<RunSize, StoreError> {
        let run_id = self.place(place).await?;
        read!(self.readers, |c| kept::size(c, run_id))
    }

    async fn remove(&self, place: &RunPlace) -> Result<(), StoreError> {
        self.remove_run(place).await
    }

    async fn verify(
        &self,
        run: &RunKey,
        mut progress: ProgressVisitor,
    ) -> Result<VerifyReport, StoreError> {
        let run_id = self.existing(run).await?;
        let holder = self.holder(run).await?;
        let mut report = read!(self.readers, |c| verify::verify(c, run_id, &mut progress))?;
        report.holder = holder;
        Ok(report)
    }

    /// Files that are damaged are PostgreSQL's to repair, from a backup. What is left here is a record that contradicts
    /// itself, and a new run without such records.
    async fn salvage(&self, run: &RunKey, into: &RunName) -> Result<SalvageReport, StoreError> {
        let from = self.existing(run).await?;
        if self.holder(run).await?.is_some() {
            return Err(StoreError::Held {
                path: self.address.shown.clone().into(),
                holder: "another process".to_owned(),
            });
        }
        let damaged = {
            let mut ignored: ProgressVisitor = Box::new(|_| {});
            read!(self.readers, |c| verify::damaged_calls(
                c,
                from,
                &mut ignored
            ))?
        };
        let to = RunKey {
            kind: run.kind,
            name: into.clone(),
        };
        let report = read!(self.readers, |c| salvage::salvage(c, from, &to, &damaged))?;
        report.ok_or_else(|| StoreError::AlreadyExists(into.clone()))
    }
}
