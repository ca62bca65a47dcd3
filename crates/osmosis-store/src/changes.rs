//! Notification of changes: something was committed, look again.

use tokio::sync::watch;

use crate::StoreError;

/// Reports that something in a run has changed.
///
/// What changed is for the reader to find out: several commits may be reported as one. Every change is reported after
/// it can be read. A write that changed nothing (a claim that found nothing, say) is not reported, so that a loop
/// that claims and waits comes to rest. Time that passes is no change either: a lease that runs out is not reported.
#[derive(Debug, Clone)]
pub struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Waits until something has changed since this was made, or since the last wait ended. `Closed` once the store
    /// is closed and its last change was reported.
    pub async fn wait(&mut self) -> Result<(), StoreError> {
        self.0.changed().await.map_err(|_| StoreError::Closed)
    }

    /// Changes of the same run from now on.
    #[must_use]
    pub fn from_now(&self) -> Self {
        let mut receiver = self.0.clone();
        receiver.mark_unchanged();
        Self(receiver)
    }
}

/// The backend's side of [`Changes`]. When it is dropped, the store is closed.
#[derive(Debug)]
pub struct ChangeSender(watch::Sender<u64>);

impl ChangeSender {
    pub fn new() -> (Self, Changes) {
        let (sender, receiver) = watch::channel(0);
        (Self(sender), Changes(receiver))
    }

    /// Something was committed and can be read.
    pub fn send(&self) {
        self.0
            .send_modify(|commits| *commits = commits.wrapping_add(1));
    }
}
