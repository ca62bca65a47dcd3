use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

use super::{Invitation, LaunchedProcess, Launcher};
use crate::WorkerError;

/// One process from outside, which is told the endpoint and the token by whoever runs it.
#[derive(Debug, Default)]
pub struct JoinedProcess {
    invited: AtomicBool,
}

#[async_trait]
impl Launcher for JoinedProcess {
    async fn launch(&self, _invitation: Invitation) -> Result<LaunchedProcess, WorkerError> {
        if self.invited.swap(true, Ordering::Relaxed) {
            return Err(WorkerError::Socket {
                message: "an attached process can't be replaced".to_owned(),
            });
        }
        Ok(LaunchedProcess::elsewhere())
    }

    fn replaces(&self) -> bool {
        false
    }
}
