//! An engine of one process, asked by others over HTTP, token for token.
//!
//! The controller of a run has the model. Its [`TokenEndpoint`] lets the nodes of the run sample with it, and
//! an [`EndpointEngine`] is a node's [`TokenEngine`](osmosis_core::generation::TokenEngine): a
//! [`crate::TokenPolicy`] over it gives the same bits as one over the engine itself. Unlike a server for
//! everybody ([`crate::RemoteEngine`]) it takes the key of the random numbers, and reports logprobs and versions
//! as the engine gave them.
//!
//! `wire` is what both sides exchange; `server`, `reply` and `outbox` are the controller's side, `client` and
//! `generation` the node's.

mod client;
mod generation;
mod lines;
mod outbox;
mod reply;
mod server;
mod wire;

pub use client::{EndpointAddress, EndpointEngine, EndpointEngineOptions, EndpointError};
pub use server::{TokenEndpoint, TokenEndpointOptions};
