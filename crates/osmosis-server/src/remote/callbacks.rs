//! Where a rollout server calls back: one address for each attempt, which nobody can guess, and a key.
//!
//! Whoever calls twice, late or for something that has long ended is thanked, and nothing happens.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::IntoResponse;
use http::{Method, StatusCode};
use osmosis_gateway::ExtraRoutes;
use parking_lot::Mutex;
use rand::distr::{Alphanumeric, SampleString};
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::wire::RolloutNotice;
use crate::body;
use crate::guard::{bearer, check_origin};
use crate::refusal::{Refusal, json_response};

/// A grade brings whole conversations.
const MAX_BODY_BYTES: usize = 256 << 20;
/// 32 letters and digits carry 190 bits.
const TOKEN_LENGTH: usize = 32;
/// What every path here begins with.
const PATH: &str = "/callbacks/";

/// The callbacks of a run: an [`ExtraRoutes`] for its gateway, and the other end of it.
#[derive(Debug, Clone, Default)]
pub struct Callbacks {
    expected: Arc<Mutex<HashMap<String, Expected>>>,
    /// Bodies that are thrown away.
    tasks: TaskTracker,
}

/// What is awaited at one address. It stays when nobody waits any more: a server that did not see our
/// thanks calls again.
#[derive(Debug)]
struct Expected {
    key: [u8; 32],
    /// `None` when nobody listens any more.
    heard: Option<watch::Sender<Heard>>,
}

/// What has been called so far; an `Err` was called and can't be read.
#[derive(Debug, Clone, Default)]
pub(super) struct Heard {
    pub(super) completion: Option<Result<Arc<RolloutNotice>, String>>,
    pub(super) grader: Option<Result<Arc<RolloutNotice>, String>>,
}

/// Which of the two callbacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Completion,
    Grader,
}

/// The addresses of one attempt.
pub(super) struct Awaited {
    token: String,
    pub(super) heard: watch::Receiver<Heard>,
}

impl fmt::Debug for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").finish_non_exhaustive()
    }
}

impl Awaited {
    pub(super) fn completion_url(&self, base: &str) -> String {
        format!("{base}{PATH}{}/completion", self.token)
    }

    pub(super) fn grader_url(&self, base: &str) -> String {
        format!("{base}{PATH}{}/grader", self.token)
    }
}

impl Callbacks {
    /// To be served beside the run's gateway.
    pub fn extra_routes(&self) -> ExtraRoutes {
        let callbacks = self.clone();
        ExtraRoutes::new(move |request| {
            let callbacks = callbacks.clone();
            async move {
                match callbacks.take(request).await {
                    Ok(()) => json_response(StatusCode::OK, &json!({})),
                    Err(refusal) => refusal.into_response(),
                }
            }
        })
    }

    /// Makes an address for callbacks that show this key.
    pub(super) fn expect(&self, key: &str) -> Awaited {
        let token = Alphanumeric.sample_string(&mut rand::rng(), TOKEN_LENGTH);
        let (sender, heard) = watch::channel(Heard::default());
        let expected = Expected {
            key: Sha256::digest(key).into(),
            heard: Some(sender),
        };
        self.expected.lock().insert(token.clone(), expected);
        Awaited { token, heard }
    }

    async fn take(&self, request: Request) -> Result<(), Refusal> {
        let (parts, body) = request.into_parts();
        check_origin(&parts.uri, &parts.headers)?;
        let (token, kind) = read_path(parts.uri.path()).ok_or(Refusal::NotFound)?;
        if parts.method != Method::POST {
            return Err(Refusal::WrongMethod);
        }
        let expected = self.expected.lock().get(token).map(|expected| expected.key);
        let expected = expected.ok_or(Refusal::NotFound)?;
        let brought = Sha256::digest(bearer(&parts.headers).unwrap_or_default());
        if !bool::from(brought.ct_eq(&expected)) {
            return Err(Refusal::Unauthorized);
        }
        let told = match body::read(body, MAX_BODY_BYTES, &self.tasks).await {
            Ok(body) => serde_json::from_slice::<RolloutNotice>(&body)
                .map(Arc::new)
                .map_err(|error| error.to_string()),
            // It will not be smaller when it comes again.
            Err(Refusal::TooLarge(text)) => Err(text),
            Err(refusal) => return Err(refusal),
        };
        if let Some(Some(listener)) = self.expected.lock().get(token).map(|at| &at.heard) {
            listener.send_if_modified(|heard| {
                let place = match kind {
                    Kind::Completion => &mut heard.completion,
                    Kind::Grader => &mut heard.grader,
                };
                let first = place.is_none();
                if first {
                    *place = Some(told);
                }
                first
            });
        }
        Ok(())
    }

    /// Forgets what was said at an address, and goes on to thank for it.
    pub(super) fn close(&self, awaited: &Awaited) {
        if let Some(expected) = self.expected.lock().get_mut(&awaited.token) {
            expected.heard = None;
        }
    }
}

fn read_path(path: &str) -> Option<(&str, Kind)> {
    let (token, kind) = path.strip_prefix(PATH)?.split_once('/')?;
    let kind = match kind {
        "completion" => Kind::Completion,
        "grader" => Kind::Grader,
        _ => return None,
    };
    Some((token, kind))
}
