//! The runs of a place: which there are, and opening them.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use osmosis_core::{RunName, RunTag};

use crate::{
    ArchivedRun, Holder, RunCredentials, RunKind, RunLabels, RunPlace, RunSize, SalvageReport,
    Store, StoreError, StoreUrl, VerifyProgress, VerifyReport,
};

/// Which run of a catalogue: two runs of different kinds may have the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunKey {
    pub kind: RunKind,
    pub name: RunName,
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEntry {
    pub key: RunKey,
    pub url: StoreUrl,
    /// When it was made; lists of several kinds are put in order by it.
    pub made_at: SystemTime,
}

/// Is shown how far a check has come, on a thread that may block.
pub type ProgressVisitor = Box<dyn FnMut(VerifyProgress) + Send>;

/// The runs that are kept in one place: a workspace, or a database that several machines share.
#[async_trait]
pub trait Catalogue: Send + Sync + std::fmt::Debug {
    /// Where the runs are.
    fn url(&self) -> &StoreUrl;

    /// Where a run is, or would be.
    fn url_of(&self, run: &RunKey) -> Result<StoreUrl, StoreError>;

    /// The runs of a kind, newest first. One that can't be read is listed like the others.
    async fn list(&self, kind: RunKind) -> Result<Vec<RunEntry>, StoreError>;

    /// Whether there is such a run.
    async fn contains(&self, run: &RunKey) -> Result<bool, StoreError>;

    /// Makes a new run and opens it for writing. `AlreadyExists` when there is one.
    async fn create(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError>;

    /// The same for a copy of records that can't be authenticated: the copy can't be either.
    async fn create_unauthenticated(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        self.create(run).await
    }

    /// Opens a run for writing. `NotFound` when there is none, `Held` when another process has it alone.
    async fn open(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError>;

    /// Opens a run for reading alone, whoever writes to it. `NotFound` when there is none; every write fails.
    async fn open_read_only(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError>;

    /// Opens a run as one of its nodes: it claims and completes beside the process that controls the run.
    async fn join(&self, _run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        Err(not_shared(self.url()))
    }

    /// Makes credentials that open this run to its nodes, and no other run.
    async fn create_credentials(&self, _run: &RunKey) -> Result<RunCredentials, StoreError> {
        Err(not_shared(self.url()))
    }

    /// The living process that has the run alone, if there is one.
    async fn holder(&self, run: &RunKey) -> Result<Option<Holder>, StoreError>;

    /// Takes a run out of the list without deleting anything, and returns what it is in the archive. `Held` when a
    /// process writes to it, `NotFound` when there is none.
    async fn archive(&self, run: &RunKey) -> Result<ArchivedRun, StoreError>;

    /// The runs of a kind that were taken out of the list, newest first.
    async fn archived(&self, kind: RunKind) -> Result<Vec<ArchivedRun>, StoreError>;

    /// Opens an archived run, by its [`ArchivedRun::id`], for reading alone. `NotFound` when there is none.
    async fn open_archived(&self, id: &str) -> Result<Arc<dyn Store>, StoreError>;

    /// Puts an archived run back into the list, under the name it had or under `name`, and returns it. `AlreadyExists` when
    /// there is one of that name, `NotFound` when nothing of that id is archived.
    async fn restore(&self, id: &str, name: Option<&RunName>) -> Result<RunKey, StoreError>;

    /// Gives a run another name, at once and as a whole; the former one is among its labels from then on. `Held` when a
    /// process writes to it, `AlreadyExists` when there is one of the new name.
    async fn rename(&self, run: &RunKey, to: &RunName) -> Result<(), StoreError>;

    /// What is noted on a run. Whoever writes to the run has no part in it.
    async fn labels(&self, run: &RunKey) -> Result<RunLabels, StoreError>;

    /// Adds tags to a run and takes others away, also while a process writes to it. Returns what is noted on it then.
    async fn tag(
        &self,
        run: &RunKey,
        add: &[RunTag],
        remove: &[RunTag],
    ) -> Result<RunLabels, StoreError>;

    /// How much room a run takes.
    async fn size(&self, place: &RunPlace) -> Result<RunSize, StoreError>;

    /// Deletes a run for good. It is gone from every list at once, or still whole: a crash leaves no part of a run behind that
    /// looks like one. `Held` when a process writes to it.
    async fn remove(&self, place: &RunPlace) -> Result<(), StoreError>;

    /// Checks that a run is what was written. Damage is in the report; an error only where there is no run, or it
    /// can't be read at all.
    async fn verify(
        &self,
        run: &RunKey,
        progress: ProgressVisitor,
    ) -> Result<VerifyReport, StoreError>;

    /// Makes a new run of the same kind of everything in a damaged one that verifies, which is only read.
    /// `AlreadyExists` when there is one of the new name, `Held` when somebody writes to the damaged one.
    async fn salvage(&self, run: &RunKey, into: &RunName) -> Result<SalvageReport, StoreError>;
}

fn not_shared(url: &StoreUrl) -> StoreError {
    StoreError::refused(format!(
        "runs at `{url}` have no nodes: several machines share a run in a database, `postgres://HOST/DATABASE`"
    ))
}
