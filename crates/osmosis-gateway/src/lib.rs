//! The policy gateway: the HTTP door through which every model call of every agent goes to the policy, in
//! the dialect the agent speaks, is identified and is recorded exactly.
//!
//! It never decides what is run; the engine opens a [`RolloutDoor`] for each rollout it runs, and what
//! answers is a [`Policy`]: a [`ScriptedPolicy`], an [`UpstreamPolicy`], or a [`TokenPolicy`], which
//! samples tokens with an engine and knows each of them. The engine is one of this process, or a
//! [`RemoteEngine`]. [`ReportedTokens`] records the ids that an upstream reports with its chat replies.
//!
//! ```
//! use camino::Utf8Path;
//! use osmosis_gateway::{Policy, ScriptedPolicy};
//!
//! let policy = ScriptedPolicy::parse(Utf8Path::new("hello.toml"), "[[reply]]\ntext = 'Hello.'\n").unwrap();
//! assert_eq!(policy.describe().endpoint, "script:hello.toml");
//!
//! let problems = ScriptedPolicy::parse(Utf8Path::new("typo.toml"), "[[reply]]\ntxt = 'Hello.'\n").unwrap_err();
//! assert!(problems.to_string().contains("typo.toml:2:1: unknown key `txt`"));
//! ```
//!
//! The way of a call, module by module: `server` takes it, `identity` and `door` say whose it is, and
//! `pipeline` does the rest, for calls in text and in token ids alike. `registry` says which policy answers,
//! `prepared_call` makes of the body what that policy is asked (with `osmosis-dialect`), `reply_stream` passes
//! a stream on, `record` queues the record before the last byte leaves. From outside, `control` exchanges and
//! holds policies, `metrics` and `telemetry` tell of calls.

mod address_rules;
mod body;
mod call_error;
mod connection;
mod control;
mod control_service;
mod deadline;
mod door;
mod error;
mod error_reply;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod journey;
mod live;
#[doc(hidden)]
pub mod measuring;
mod metrics;
mod options;
mod origin;
mod passed_on;
mod pipeline;
mod policy;
mod prepared_call;
mod probe;
mod record;
mod registry;
mod relay;
mod replay;
mod reply_stream;
mod reported_tokens;
mod script;
mod secret;
mod server;
mod session;
mod suffered;
mod telemetry;
mod token_engine;
mod token_policy;
mod upstream;
mod weights;

pub use address_rules::{AddressRules, ForbiddenAddress};
pub use body::{BodyError, read_body};
pub use connection::serve_connections;
pub use control_service::{ControlRefusal, ControlService};
pub use door::{GivenCompletion, RolloutCalls, RolloutDoor, companion_key};
pub use error::{GatewayError, GatewayErrorKind};
pub use journey::Journey;
pub use live::{LiveRollout, LiveStatus};
pub use options::{ConnectionLimits, Durability, GatewayOptions};
pub use origin::{foreign_origin, host_of};
pub use osmosis_dialect::{Dialect, OutputLimit, Sampling};
pub use policy::{
    CallFormat, Capabilities, DialectSet, Fault, FaultKind, Layer, ModelCall, ModelReply, Policy,
    PolicyChange, PolicyDescription, ReplyBody, Servers, TokenAccount, TokenLedger, TokenSlot,
    Updates, Weights,
};
pub use probe::{Finding, ProbeError, ProbeErrorKind, Probed};
pub use registry::{HoldLimits, PolicyStatus, PolicyUpdate};
pub use relay::RelayPolicy;
pub use reported_tokens::ReportedTokens;
pub use script::{ScriptErrors, ScriptProblem, ScriptedPolicy};
pub use secret::Secret;
pub use server::{Annex, Gateway};
pub use session::Session;
pub use telemetry::{Attribute, RolloutSpan, RolloutSpans, SpanEvent, TelemetryOptions};
pub use token_engine::{EngineKind, RemoteEngine, RemoteEngineOptions, ServerLogprobs};
pub use token_policy::{TokenPolicy, TokenPolicyOptions};
pub use upstream::{
    BreakerSettings, EndpointLoad, EndpointOptions, Health, HttpClients, PoolLoad, QueueLimits,
    UpstreamOptions, UpstreamPolicy,
};
pub use weights::{UnusableWeights, WeightLoader};
