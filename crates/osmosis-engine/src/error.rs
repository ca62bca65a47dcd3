use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::RolloutId;
use osmosis_store::StoreError;

use crate::RunFault;

/// Why a run could not go on. What has a durable result keeps it.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Whatever is claimed may be another's by now.
    #[error("the run's database has not answered for {} s", waited.as_secs())]
    StoreSilent { waited: Duration },
    #[error("row {row_index} of the run's own copy of the dataset can't be read: {message}")]
    Row { row_index: u64, message: String },
    #[error("cannot clear the artifacts folder `{path}` of rollout `{id}`: {message}")]
    Artifacts {
        id: RolloutId,
        path: Utf8PathBuf,
        message: String,
    },
    #[error("rollout `{id}` has no result in the run it is to be graded from")]
    NotRecorded { id: RolloutId },
    #[error("cannot copy the artifacts of rollout `{id}` to `{path}`: {message}")]
    CopyArtifacts {
        id: RolloutId,
        path: Utf8PathBuf,
        message: String,
    },
    #[error("a rollout's task ended abnormally: {0}")]
    Task(String),
    /// Every rollout would fare alike.
    #[error("{}", .0.message)]
    PolicyUnusable(RunFault),
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineErrorKind {
    /// The run can be resumed when the cause is gone.
    Resumable,
    /// A defect of ours or a damaged run.
    Internal,
    /// What the run is made of does not go together: another run may work, this one can't.
    Unusable,
}

impl EngineError {
    pub fn kind(&self) -> EngineErrorKind {
        match self {
            Self::Store(_)
            | Self::StoreSilent { .. }
            | Self::Artifacts { .. }
            | Self::CopyArtifacts { .. }
            | Self::NotRecorded { .. } => EngineErrorKind::Resumable,
            Self::Row { .. } | Self::Task(_) => EngineErrorKind::Internal,
            Self::PolicyUnusable(_) => EngineErrorKind::Unusable,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Store(error) => error.hint(),
            Self::StoreSilent { .. } => {
                Some("check the disk that the run is on, then resume the run".to_owned())
            }
            Self::NotRecorded { .. } => {
                Some("was that run resumed meanwhile? grade it again when it is done".to_owned())
            }
            Self::Artifacts { .. } | Self::CopyArtifacts { .. } => {
                Some("check the disk and the folder's permissions, then resume the run".to_owned())
            }
            Self::PolicyUnusable(fault) => fault.hint.clone(),
            Self::Row { .. } | Self::Task(_) => None,
        }
    }
}
