//! The policy gateway: the HTTP service through which every model call of every agent goes to the policy, in
//! the dialect the agent speaks, is identified and is recorded exactly.
//!
//! It never decides what is run; the engine opens a [`RolloutSession`] for each rollout it runs, and what
//! answers is a [`Policy`]: a [`ScriptedPolicy`], an [`UpstreamPolicy`], or a [`TokenPolicy`], which
//! samples tokens with an engine and knows each of them. The engine is one of this process, a
//! [`RemoteEngine`], or that of another process, which opens it at a [`TokenEndpoint`]. [`ReportedTokens`] records the ids that an upstream reports with its chat replies.
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
//! Each part is a folder that can be read alone:
//!
//! - `serving`: connections, requests and whose they are, the control API;
//! - `sessions`: the key of one attempt of a rollout, and what became of its calls;
//! - `calls`: one call from its body to its last byte and its record, in text or in token ids;
//! - `policy`: what answers, by name, and pools of upstream servers;
//! - `tokens`: policies that know their tokens;
//! - `script`: answers from a file;
//! - `telemetry`: numbers and spans.
//!
//! The protocols themselves are in `osmosis-dialect`.

mod calls;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod measuring;
mod options;
mod policy;
mod script;
mod secret;
mod serving;
mod sessions;
mod telemetry;
mod tokens;

pub use calls::call_trace::CallTrace;
pub use error::{GatewayError, GatewayErrorKind};
pub use options::{ConnectionLimits, Durability, GatewayOptions};
pub use osmosis_dialect::{Dialect, OutputLimit, Sampling};
pub use policy::probe_finding::{Finding, ProbeError, ProbeErrorKind, Probed};
pub use policy::registry::{HoldLimits, PolicyStatus, PolicyUpdate};
pub use policy::relay::RelayPolicy;
pub use policy::upstream::{
    BreakerSettings, EndpointLoad, EndpointOptions, Health, HttpClients, PoolLoad, QueueLimits,
    UpstreamOptions, UpstreamPolicy,
};
pub use policy::weights::{UnusableWeights, WeightLoader};
pub use policy::{
    CallFormat, Capabilities, DialectSet, Fault, FaultKind, Layer, ModelCall, ModelReply, Policy,
    PolicyChange, PolicyDescription, ReplyBody, Servers, TokenAccount, TokenLedger, TokenSlot,
    Updates, Weights,
};
pub use script::{ScriptErrors, ScriptProblem, ScriptedPolicy};
pub use secret::Secret;
pub use serving::address_rules::{AddressRules, ForbiddenAddress};
pub use serving::body::{BodyError, read_body};
pub use serving::connection::serve_connections;
pub use serving::control_service::{ControlRefusal, ControlService};
pub use serving::origin::{foreign_origin, host_of};
pub use serving::server::{ExtraRoutes, Gateway};
pub use sessions::call_history::CallHistory;
pub use sessions::live::{LiveRollout, LiveStatus};
pub use sessions::rollout_session::{GivenCompletion, RolloutCalls, RolloutSession, companion_key};
pub use telemetry::metrics::MoreMetrics;
pub use telemetry::spans::{Attribute, RolloutSpan, RolloutSpans, SpanEvent, TelemetryOptions};
pub use tokens::endpoint::{
    EndpointAddress, EndpointEngine, EndpointEngineOptions, EndpointError, TokenEndpoint,
    TokenEndpointOptions,
};
pub use tokens::engine::{
    EngineKind, ExchangingEngine, RELOADING_CLASS, RemoteEngine, RemoteEngineOptions,
    ServerLogprobs, VllmControl, VllmControlError,
};
pub use tokens::policy::{TokenPolicy, TokenPolicyOptions};
pub use tokens::reported::ReportedTokens;
