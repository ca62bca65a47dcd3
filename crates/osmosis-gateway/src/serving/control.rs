//! The control API: what is served, exchanging it, holding it. Always with the control key, on loopback
//! too: user code lives there.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use camino::Utf8PathBuf;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use osmosis_core::PolicyVersion;
use osmosis_dialect::Dialect;
use rand::distr::{Alphanumeric, SampleString};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::{GatewayError, GatewayErrorKind};
use crate::policy::registry::{PolicyUpdate, Served};
use crate::policy::upstream::EndpointOptions;
use crate::secret::Secret;
use crate::serving::body::{BodyError, read_body};
use crate::serving::control_service::ControlService;
use crate::serving::error_reply::ErrorReply;
use crate::serving::identity::key_of;
use crate::serving::origin::foreign_origin;
use crate::serving::server::Shared;
use crate::telemetry::metrics;

/// A control request is a few lines.
const MAX_BODY_BYTES: usize = 1 << 20;
/// How long `pause` waits for the calls under way, unless it is told.
const DRAIN_LIMIT: Duration = Duration::from_mins(10);

/// What the control API is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    Policy,
    Pause,
    Resume,
    Metrics,
}

impl Control {
    pub(crate) fn at(path: &str) -> Option<Self> {
        match path {
            "/v1/policy" => Some(Self::Policy),
            "/v1/policy/pause" => Some(Self::Pause),
            "/v1/policy/resume" => Some(Self::Resume),
            "/metrics" => Some(Self::Metrics),
            _ => None,
        }
    }
}

/// The key that opens the control API and nothing else.
#[derive(Debug)]
pub(crate) struct ControlKey {
    pub(crate) key: Secret,
    digest: [u8; 32],
}

impl ControlKey {
    /// `given`, or a new one.
    pub(crate) fn new(given: Option<Secret>) -> Self {
        let key = given.unwrap_or_else(|| {
            let letters = Alphanumeric.sample_string(&mut rand::rng(), 43);
            Secret::new(format!("osm-control-{letters}"))
        });
        let digest = Sha256::digest(key.expose().as_bytes()).into();
        Self { key, digest }
    }

    fn check(&self, headers: &HeaderMap, shared: &Shared) -> Result<(), ErrorReply> {
        let Some(key) = key_of(headers) else {
            return Err(ErrorReply::unauthorized(
                "no key: send the control key as `Authorization: Bearer KEY`",
            ));
        };
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        if digest.ct_eq(&self.digest).into() {
            Ok(())
        } else if shared.opens_a_session(key) {
            Err(ErrorReply::forbidden(
                "this key opens a rollout; the control API has a key of its own",
            ))
        } else {
            Err(ErrorReply::unauthorized("this is not the control key"))
        }
    }
}

pub(crate) async fn serve(
    shared: &Shared,
    asked: Control,
    parts: Parts,
    body: Body,
) -> Result<Response, ErrorReply> {
    let open = asked == Control::Metrics && shared.open_metrics;
    admit(shared, (!open).then_some(&shared.control_key), &parts)?;
    match (asked, &parts.method) {
        (Control::Metrics, _) => page_of_metrics(shared, &parts),
        (Control::Policy, &Method::GET) => Ok(json_reply(&everything(shared))),
        (Control::Policy, &Method::POST) => update(shared, &fields(shared, body).await?).await,
        (Control::Pause, &Method::POST) => pause(shared, &fields(shared, body).await?).await,
        (Control::Resume, &Method::POST) => {
            let asked: RawName = read(&fields(shared, body).await?)?;
            let served = find(shared, asked.name.as_deref())?;
            served.resume();
            Ok(json_reply(&json!(served.status())))
        }
        (Control::Policy, _) => Err(ErrorReply::wrong_method(
            "the policy is read with GET and changed with POST",
        )),
        (Control::Pause | Control::Resume, _) => Err(ErrorReply::wrong_method(
            "pausing and resuming are asked for with POST",
        )),
    }
}

/// At an address of its own: `/metrics` and nothing else, under the same rules.
pub(crate) fn serve_metrics(shared: &Shared, key: &ControlKey, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = admit(shared, Some(key), &parts).and_then(|()| {
        if Control::at(parts.uri.path()) == Some(Control::Metrics) {
            page_of_metrics(shared, &parts)
        } else {
            Err(ErrorReply::not_found("only `/metrics` is here"))
        }
    });
    answer.unwrap_or_else(|refusal| refusal.response(Dialect::ChatCompletions))
}

/// Lets in who has the key, if there is one; never a web page.
fn admit(shared: &Shared, key: Option<&ControlKey>, parts: &Parts) -> Result<(), ErrorReply> {
    refuse_pages(parts)?;
    key.map_or(Ok(()), |key| key.check(&parts.headers, shared))
}

fn page_of_metrics(shared: &Shared, parts: &Parts) -> Result<Response, ErrorReply> {
    if parts.method != Method::GET {
        return Err(ErrorReply::wrong_method("metrics are read with GET"));
    }
    let page = shared.metrics.render(&shared.registry);
    Ok(reply(metrics::content_type(&parts.headers), page))
}

/// No web page has business here, whatever key it found.
fn refuse_pages(parts: &Parts) -> Result<(), ErrorReply> {
    match foreign_origin(&parts.uri, &parts.headers) {
        Some(origin) => Err(ErrorReply::forbidden(format!(
            "pages of `{origin}` may not use the control API"
        ))),
        None => Ok(()),
    }
}

/// Has a service answer that lives elsewhere, unless the gateway stops before it does.
pub(crate) async fn hand_over(
    shared: &Shared,
    service: &dyn ControlService,
    parts: Parts,
    body: Body,
) -> Result<Response, ErrorReply> {
    admit(shared, Some(&shared.control_key), &parts)?;
    tokio::select! {
        biased;
        answer = service.serve(parts, body) => Ok(answer?),
        () = shared.stop.cancelled() => Err(ErrorReply::stopping()),
    }
}

/// The run's policy, and the others by name.
fn everything(shared: &Shared) -> Value {
    let named: Map<String, Value> = shared
        .registry
        .named()
        .into_iter()
        .map(|(name, served)| (name, json!(served.status())))
        .collect();
    json!({ "policy": shared.registry.run_policy().status(), "named": named })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawName {
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPause {
    name: Option<String>,
    #[serde(default)]
    wait: bool,
    timeout_s: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawUpdate {
    name: Option<String>,
    endpoints: Option<Vec<Value>>,
    model: Option<String>,
    weights: Option<Utf8PathBuf>,
    version: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEndpoint {
    url: String,
    api_key: Option<String>,
    max_in_flight: Option<u32>,
}

async fn pause(shared: &Shared, body: &Value) -> Result<Response, ErrorReply> {
    let asked: RawPause = read(body)?;
    let limit = match asked.timeout_s {
        None => DRAIN_LIMIT,
        Some(seconds) => Duration::try_from_secs_f64(seconds)
            .map_err(|_| ErrorReply::bad_request("`timeout_s` is not a number of seconds"))?,
    };
    let served = find(shared, asked.name.as_deref())?;
    served.pause();
    let mut drained = served.status().in_flight == 0;
    if asked.wait {
        drained = tokio::time::timeout(limit, served.drained())
            .await
            .unwrap_or(false);
    }
    let mut status = json!(served.status());
    status["drained"] = json!(drained);
    Ok(json_reply(&status))
}

async fn update(shared: &Shared, body: &Value) -> Result<Response, ErrorReply> {
    let asked: RawUpdate = read(body)?;
    let served = find(shared, asked.name.as_deref())?;
    if asked.model.as_deref() == Some("") {
        return Err(ErrorReply::bad_request("`model` is empty"));
    }
    let endpoints = asked
        .endpoints
        .map(|all| {
            let checked = (0..).zip(all).map(|(at, raw)| endpoint(at, raw));
            checked.collect::<Result<Vec<_>, _>>()
        })
        .transpose()?;
    let version = asked.version.map(PolicyVersion);
    let changed = if let Some(folder) = &asked.weights {
        if endpoints.is_some() || asked.model.is_some() {
            return Err(ErrorReply::bad_request(
                "`weights` are for a policy in this process, `endpoints` and `model` for one behind \
                 servers; send one or the other",
            ));
        }
        if !folder.is_absolute() {
            return Err(ErrorReply::bad_request(format!(
                "`weights` is `{folder}`; write the whole path of the checkpoint folder"
            )));
        }
        served.load_weights(folder, version).await
    } else {
        served.update(PolicyUpdate {
            endpoints,
            model: asked.model,
            version,
        })
    };
    let version = changed.map_err(|error| refusal(&error))?;
    let name = asked.name.as_deref().unwrap_or("the run's policy");
    tracing::info!(policy = name, version = version.0, "another policy answers");
    Ok(json_reply(&json!(served.status())))
}

/// A URL, or an object with more about it.
fn endpoint(at: usize, raw: Value) -> Result<EndpointOptions, ErrorReply> {
    let raw = match raw {
        Value::String(url) => RawEndpoint {
            url,
            api_key: None,
            max_in_flight: None,
        },
        object @ Value::Object(_) => serde_json::from_value(object)
            .map_err(|error| ErrorReply::bad_request(format!("`endpoints[{at}]`: {error}")))?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err(ErrorReply::bad_request(format!(
                "`endpoints[{at}]` is neither a URL nor an object with a `url`"
            )));
        }
    };
    if raw.max_in_flight == Some(0) {
        return Err(ErrorReply::bad_request(format!(
            "`endpoints[{at}].max_in_flight` is 0; to hold calls back, pause the policy"
        )));
    }
    Ok(EndpointOptions {
        base_url: raw.url,
        api_key: raw.api_key.map(Secret::new),
        max_in_flight: raw.max_in_flight,
    })
}

fn find(shared: &Shared, name: Option<&str>) -> Result<Arc<Served>, ErrorReply> {
    shared.registry.get(name).map_err(|error| refusal(&error))
}

fn refusal(error: &GatewayError) -> ErrorReply {
    let message = match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    };
    match error.kind() {
        GatewayErrorKind::Unknown => ErrorReply::not_found(message),
        GatewayErrorKind::Conflict => ErrorReply::conflict(message),
        GatewayErrorKind::Settings | GatewayErrorKind::Listen | GatewayErrorKind::Environment => {
            ErrorReply::bad_request(message)
        }
    }
}

/// The body, a JSON object; nothing is an empty one.
async fn fields(shared: &Shared, body: Body) -> Result<Value, ErrorReply> {
    let read = read_body(body, MAX_BODY_BYTES, &shared.tasks).await;
    let bytes = read.map_err(|error| match error {
        BodyError::TooLarge => ErrorReply::too_large(MAX_BODY_BYTES),
        BodyError::TooSlow => ErrorReply::too_slow("the request body stopped coming"),
        BodyError::Broken => ErrorReply::bad_request("the request body broke off"),
    })?;
    if bytes.trim_ascii().is_empty() {
        return Ok(json!({}));
    }
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| ErrorReply::bad_request(format!("the body is not JSON: {error}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(ErrorReply::bad_request("the body is not a JSON object"))
    }
}

fn read<T: for<'de> Deserialize<'de>>(fields: &Value) -> Result<T, ErrorReply> {
    T::deserialize(fields).map_err(|error| {
        ErrorReply::bad_request(format!("the body is not a valid request: {error}"))
    })
}

fn json_reply(value: &Value) -> Response {
    reply("application/json", value.to_string())
}

fn reply(content_type: &'static str, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::OK;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
