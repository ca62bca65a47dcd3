//! Policies that know their tokens: one that samples with an engine (`policy`), in this process or behind a server
//! (`engine`), and a layer that records the ids that an upstream reports with its chat replies (`reported`).

pub(crate) mod engine;
pub(crate) mod policy;
pub(crate) mod reported;
