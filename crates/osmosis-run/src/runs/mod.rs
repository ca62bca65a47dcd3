//! The runs of a workspace: their names, what they are pinned to, and their stores.

pub mod copy;
mod differences;
mod follow_log;
pub mod kept;
mod names;
mod pinned;
mod read;
mod reference;
mod regraded;
pub mod salvage;
pub mod stop;
mod store;
pub mod stores;
pub mod verify;

pub use differences::{FactDifference, FileChanges, PinnedDifferences, RowChanges};
pub use follow_log::follow_log;
pub use names::{fresh_name, given_name, named_folder};
pub use pinned::{Pinned, Remembered};
pub use read::ReadRun;
pub use reference::{FoundRun, RunReference, kind_word};
pub use regraded::RegradedFrom;
pub use store::{Opened, RunToOpen, record_of};
