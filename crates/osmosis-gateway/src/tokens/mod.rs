//! Policies that know their tokens: one that samples with an engine (`policy`), in this process, behind a server
//! (`engine`) or in the controller of the run (`endpoint`), and a layer that records the ids that an upstream reports with its chat replies (`reported`).

pub(crate) mod endpoint;
pub(crate) mod engine;
pub(crate) mod policy;
pub(crate) mod reported;
