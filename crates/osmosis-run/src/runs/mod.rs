//! The runs of a workspace: their names, what they are pinned to, and their stores.

mod names;
mod pinned;
mod reference;
mod regraded;
mod store;

pub use names::{fresh_name, given_name};
pub use pinned::{Pinned, Remembered};
pub use reference::{FoundRun, RunReference, kind_word};
pub use regraded::RegradedFrom;
pub use store::{Opened, RunToOpen, record_of};
