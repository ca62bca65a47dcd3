//! HTTP services around the engine: the rollout server, which takes rollouts from a training controller,
//! has them run and graded, and calls the controller back; and the other end of the same protocol,
//! [`RemoteRollouts`], by which an engine has its rollouts run at such a server. And [`BatchService`], from
//! which trainers in other processes get what the rollouts gave.
//!
//! It decides nothing about how a rollout goes and keeps no truth of its own: what was accepted, how it ended
//! and who was called is in the store, with the keys that a request brought, sealed. A server that starts again
//! goes on with all of it.
//!
//! | request | answer |
//! |---|---|
//! | `POST /rollout` | 202 `{rollout_id, status}` once the rollout is durable; the same request again: 202 and nothing runs twice; another one under the same id: 409; 422, 413, 429 with `Retry-After`, 503 while it drains |
//! | `GET /rollout/{id}/status` | `{rollout_id, status, reward, err_message}`; `unknown` for an id it never saw |
//! | `POST /rollout/cancel` | `{dispositions: {id: cancelled_queued, cancelled_running or not_found}}` |
//! | `GET /health` | capacity and what is under way; the one request that needs no key |
//!
//! The way of a rollout, module by module: `guard` says who may ask, `request` reads and checks it, `shared` and
//! `registry` admit it, `sealed` encrypts what it needs after a restart, `api` is the HTTP around them, `rollout_callbacks` follows
//! it and builds the callbacks, `callback` delivers them, `resuming` goes on with what was accepted before,
//! `service` holds everything together from the first request to the end of the drain.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use osmosis_engine::{Engine, RunEvent, Stop};
//! # use osmosis_gateway::RelayPolicy;
//! # use osmosis_server::{Listening, RolloutService, ServerError, ServerOptions, StateKey};
//! # use osmosis_store::Store;
//! # use tokio::sync::mpsc;
//! # async fn example(engine: Engine, relay: Arc<RelayPolicy>, store: Arc<dyn Store>,
//! #     events: mpsc::Receiver<RunEvent>, stop: Stop) -> Result<(), ServerError> {
//! let listening = Listening::on(([127, 0, 0, 1], 0).into()).await?;
//! println!("{}", listening.url());
//! let state_key = StateKey::from_text("32 characters that nobody guesses");
//! let service = RolloutService { engine, relay, store, state_key, options: ServerOptions::default() };
//! service.run(listening, events, None, &stop).await?;
//! # Ok(())
//! # }
//! ```

mod api;
mod body;
mod callback;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod options;
mod refusal;
mod registry;
mod remote;
mod report;
mod request;
mod resuming;
mod rollout_callbacks;
mod runs;
mod sealed;
mod service;
mod shared;
mod training;

pub use error::{ServerError, ServerErrorKind};
pub use guard::generate_api_key;
pub use options::{CallbackOptions, ServerOptions};
pub use remote::{
    Callbacks, ChosenServer, Reach, ReachError, RemoteOptions, RemoteRollouts, RemoteServer,
    Rendezvous, parse_url,
};
/// What [`parse_url`] makes.
pub use reqwest::Url;
pub use runs::{
    ServeEnd, ServedTraining, ServerAddress, Serving, ServingLimits, TrainerAddress, UserSide,
    UserSideRequest, load_state_key,
};
pub use sealed::StateKey;
pub use service::{Listening, RolloutService, Served};
pub use training::BatchService;
