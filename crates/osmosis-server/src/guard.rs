//! Who may ask at all: checked before a body is read, in this order. A browser that shows a foreign page sends
//! requests too, to any address, and a name that its owner controls may lead here.

use std::net::IpAddr;

use axum::extract::Request;
use http::{HeaderMap, HeaderValue, Method, Uri, header};
use osmosis_gateway::{Secret, foreign_origin, host_of};
use rand::distr::{Alphanumeric, SampleString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::ServerOptions;
use crate::refusal::Refusal;

/// What `create_rollout_server()` sends along, so that nobody comes in past it.
const FACADE_HEADER: &str = "x-osmosis-serve-token";
/// The one path that needs no key.
const HEALTH: &str = "/health";

/// 43 letters and digits carry 256 bits.
const KEY_LENGTH: usize = 43;

/// A key for a server that was given none.
pub fn generate_api_key() -> Secret {
    let letters = Alphanumeric.sample_string(&mut rand::rng(), KEY_LENGTH);
    Secret::new(format!("osm-serve-{letters}"))
}

/// What is asked of every request.
#[derive(Debug)]
pub(crate) struct Guard {
    api_key: Option<Secret>,
    facade_token: Option<Secret>,
    /// `None` when any name may be used.
    hosts: Option<Vec<String>>,
}

impl Guard {
    /// `loopback`: nobody but this machine reaches the server, so by no other name than its own.
    pub(crate) fn new(options: &ServerOptions, loopback: bool) -> Self {
        // Behind a façade, it is the façade that is called by names.
        let checks_hosts = loopback && options.facade_token.is_none();
        Self {
            api_key: options.api_key.clone(),
            facade_token: options.facade_token.clone(),
            hosts: checks_hosts.then(|| options.allowed_hosts.clone()),
        }
    }

    pub(crate) fn check(&self, request: &Request) -> Result<(), Refusal> {
        let headers = request.headers();
        if let Some(token) = &self.facade_token {
            let brought = headers
                .get(FACADE_HEADER)
                .map_or(&b""[..], HeaderValue::as_bytes);
            if !same(brought, token) {
                return Err(Refusal::Unauthorized);
            }
        }
        self.check_host(request)?;
        check_origin(request.uri(), headers)?;
        if request.uri().path() == HEALTH {
            return Ok(());
        }
        if let Some(key) = &self.api_key
            && !same(bearer(headers).unwrap_or_default().as_bytes(), key)
        {
            return Err(Refusal::Unauthorized);
        }
        if request.method() == Method::POST && !is_json(headers) {
            return Err(Refusal::NotJson);
        }
        Ok(())
    }

    fn check_host(&self, request: &Request) -> Result<(), Refusal> {
        let Some(allowed) = &self.hosts else {
            return Ok(());
        };
        let headers = request.headers();
        let host = host_of(request.uri(), headers);
        let ours = host
            .as_ref()
            .is_some_and(|host| is_ours(host.host(), allowed));
        if ours && headers.get_all(header::HOST).iter().count() <= 1 {
            return Ok(());
        }
        Err(Refusal::WrongHost(
            host.map_or_else(String::new, |host| host.to_string()),
        ))
    }
}

/// Of digests, so that neither content nor length shows in the time it takes.
fn same(brought: &[u8], secret: &Secret) -> bool {
    Sha256::digest(brought)
        .ct_eq(&Sha256::digest(secret.expose()))
        .into()
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| key.trim_start())
}

fn is_ours(host: &str, allowed: &[String]) -> bool {
    let host = host.trim_end_matches('.');
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        || host.eq_ignore_ascii_case("localhost")
        || allowed.iter().any(|name| name.eq_ignore_ascii_case(host))
}

/// No page from elsewhere may ask, whatever key it found.
pub(crate) fn check_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    match foreign_origin(uri, headers) {
        Some(origin) => Err(Refusal::ForeignOrigin(origin)),
        None => Ok(()),
    }
}

/// `text/plain` and forms are what a foreign page may send without asking first.
fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(one), None) = (types.next(), types.next()) else {
        return false;
    };
    let Ok(text) = one.to_str() else { return false };
    let essence = text.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn guard(loopback: bool) -> Guard {
        let options = ServerOptions {
            allowed_hosts: vec!["rollouts.internal".to_owned()],
            ..ServerOptions::default()
        };
        Guard::new(&options, loopback)
    }

    fn status(guard: &Guard, headers: &[(&str, &str)]) -> u16 {
        use axum::response::IntoResponse as _;
        let mut request = Request::post("/rollout").header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match guard.check(&request.body(Body::empty()).unwrap()) {
            Ok(()) => 200,
            Err(refusal) => refusal.into_response().status().as_u16(),
        }
    }

    #[test]
    fn on_loopback_only_names_of_this_machine_are_answered() {
        for (host, expected) in [
            ("127.0.0.1:8080", 200),
            ("127.9.9.9", 200),
            ("[::1]:8080", 200),
            ("localhost:1", 200),
            ("LocalHost.", 200),
            ("rollouts.internal:80", 200),
            ("ROLLOUTS.internal", 200),
            ("evil.example:8080", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("10.0.0.1", 421),
            ("0.0.0.0", 421),
            ("", 421),
        ] {
            assert_eq!(status(&guard(true), &[("host", host)]), expected, "{host}");
            assert_eq!(status(&guard(false), &[("host", host)]), 200, "{host}");
        }
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(status(&guard(true), &two), 421);
        assert_eq!(status(&guard(true), &[]), 421);
    }

    #[test]
    fn pages_from_elsewhere_are_refused_wherever_it_listens() {
        for (host, origin, expected) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080", 200),
            ("localhost", "http://localhost", 200),
            ("localhost", "https://localhost:443", 200),
            ("127.0.0.1:8080", "http://127.0.0.1:8081", 403),
            ("127.0.0.1:8080", "http://127.0.0.1", 403),
            ("127.0.0.1:8080", "https://evil.example", 403),
            ("127.0.0.1:8080", "null", 403),
            ("127.0.0.1:8080", "file://", 403),
            ("127.0.0.1:8080", "", 403),
        ] {
            let headers = [("host", host), ("origin", origin)];
            for loopback in [true, false] {
                let found = status(&guard(loopback), &headers);
                assert_eq!(found, expected, "{host} {origin}");
            }
        }
    }

    #[test]
    fn what_is_not_said_to_be_json_is_refused() {
        for (kind, expected) in [
            (Some("application/json"), true),
            (Some("Application/JSON; charset=utf-8"), true),
            (Some("application/problem+json"), true),
            (Some("text/plain"), false),
            (Some("text/plain; application/json"), false),
            (Some("application/x-www-form-urlencoded"), false),
            (Some("multipart/form-data"), false),
            (Some("application/jsonp"), false),
            (None, false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(kind) = kind {
                headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            }
            assert_eq!(is_json(&headers), expected, "{kind:?}");
        }
    }

    #[test]
    fn behind_a_facade_only_the_facade_comes_in() {
        let options = ServerOptions {
            facade_token: Some(Secret::new("the-token")),
            ..ServerOptions::default()
        };
        let guard = Guard::new(&options, true);
        let named = ("host", "rollouts.example:8080");
        assert_eq!(status(&guard, &[named]), 401);
        assert_eq!(status(&guard, &[named, (FACADE_HEADER, "guess")]), 401);
        assert_eq!(status(&guard, &[named, (FACADE_HEADER, "the-token")]), 200);
    }
}
