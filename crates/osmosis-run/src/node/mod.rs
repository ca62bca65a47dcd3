//! Runs that several machines work on: what the controller keeps in the store for nodes, and the life of a node.
//!
//! The controller is the process that holds the run (`eval submit --store postgres://…`). It puts the run's
//! [package](package) into the store, has a [token](token) made for the run, and goes on as on one machine. A node
//! (`osmosis node`) joins with the token: it [materialises](materialised) the package in the user's cache, prepares the
//! project's environment there, starts workers and a gateway of its own, and claims from the run's queue.

pub mod control;
pub mod joining;
pub mod life;
pub mod materialised;
pub mod metrics;
pub mod offered_models;
pub mod package;
pub mod packing;
pub mod policy;
pub mod spec;
pub mod token;
