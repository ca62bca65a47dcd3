//! The durable truth of a run: its rows, its leased queue of rollouts, their samples and model calls.
//!
//! The API alone: a run's [`Queue`] and [`Records`], together a [`Store`]; the [`Catalogue`] of runs; their records,
//! errors and reports, and the conformance suites that every backend passes (feature `conformance`). It contains no
//! database, and knows nothing of HTTP or Python. The backend in SQLite is `osmosis-store-sqlite`.
//!
//! ```
//! # async fn example(store: &dyn osmosis_store::Store) -> Result<(), osmosis_store::StoreError> {
//! use std::time::Duration;
//! use osmosis_store::Recovery;
//!
//! store.recover(Recovery::AfterTakeover).await?;
//! for claim in store.claim("engine", 8, Duration::from_secs(60)).await? {
//!     println!("{} is ours, attempt {}", claim.id, claim.attempt);
//! }
//! store.close().await
//! # }
//! ```

pub mod authenticity;
mod catalogue;
mod changes;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod copying;
pub mod encoding;
mod error;
mod holder;
mod integrity;
mod kept_run;
mod model;
mod pages;
mod pieces;
mod queue;
mod records;
mod requests;
mod shared;
mod store;
mod url;

pub use authenticity::{Authenticity, KeyFolder, MissingKey};
pub use catalogue::{Catalogue, ProgressVisitor, RunEntry, RunKey};
pub use changes::{ChangeSender, Changes};
pub use clock::{Clock, SystemClock, whole_ms};
pub use copying::{CopiedCounts, copy_run};
pub use error::{StoreError, StoreErrorKind};
pub use holder::Holder;
pub use integrity::{
    CheckedCounts, Damage, LostRecord, SalvageReport, VerifyProgress, VerifyReport,
};
pub use kept_run::{ArchivedRun, RunLabels, RunPlace, RunSize};
pub use model::{
    BatchRecord, CallBody, CallPurpose, CallQuery, CallRecord, CallSummary, Claim, Completion,
    CompletionReceipt, JudgeSummary, NewCall, NewRollout, NewRow, OutcomeTally, PageEnd,
    QueueCounts, RolloutPage, RolloutQuery, RolloutRecord, RowRecord, RunKind, RunRecord,
    RunStatus, StepRecord,
};
pub use pages::RolloutPages;
pub use pieces::Pieces;
pub use queue::{Queue, Recovery};
pub use records::{CallVisitor, Records};
pub use requests::{RequestNote, RequestRecord};
pub use shared::{
    FinishedCursor, Member, MemberKind, PackageFile, RunCredentials, RunStanding, SharedRun,
    StopRequest,
};
pub use store::Store;
pub use url::StoreUrl;
