//! What every kind of run has: a name, facts it is pinned to, a store, and commands that look at it.

mod artifacts;
pub(crate) mod list;
pub(crate) mod logs;
mod names;
mod pinned;
mod recorded_calls;
mod regraded;
pub(crate) mod show;
pub(crate) mod stop;
mod store;
mod transcript;
mod versions;

pub(crate) use names::{fresh_name, given_name};
pub(crate) use pinned::Pinned;
pub(crate) use regraded::RegradedFrom;
pub(crate) use store::{Opened, RunToOpen, record_of};
