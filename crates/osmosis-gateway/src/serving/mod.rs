//! The edge: connections, requests and who they belong to, the control API, and error replies.
//!
//! `server` is the gateway itself, `requests` takes a request, `identity` reads whose it is, `control` serves the operators. What is a model call goes to
//! `calls`; nothing here knows how one is answered.

pub(crate) mod address_rules;
pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod control_service;
pub(crate) mod error_reply;
pub(crate) mod identity;
pub(crate) mod origin;
pub(crate) mod requests;
pub(crate) mod server;
