//! Who may read: a key that opens the page once, a cookie after that, and a key for programs.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;

use crate::api::ApiError;
use crate::response;

/// The keys of one viewer; all of them end with it.
#[derive(Debug)]
pub(crate) struct Access {
    /// Opens the page once.
    one_time: Mutex<Option<String>>,
    /// What the cookie holds.
    session: String,
    api_key: String,
    /// Cookies of one address are shared by its ports.
    cookie: String,
    /// Whether only this machine reaches us.
    loopback: bool,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The name in the address is not ours: a page elsewhere may have made its name lead here.
    Host,
    /// Another page sent it.
    Origin,
    NoKey,
    WrongKey,
}

/// How a request was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Known,
    /// By the key that works once: the cookie goes with the answer.
    First,
}

impl Access {
    pub(crate) fn new(port: u16, loopback: bool) -> Self {
        // The prefix lets every log of ours recognise and redact it.
        let key = || format!("osm-{:032x}", rand::random::<u128>());
        Self {
            one_time: Mutex::new(Some(format!("{:032x}", rand::random::<u128>()))),
            session: key(),
            api_key: key(),
            cookie: format!("osmosis_view_{port}"),
            loopback,
        }
    }

    pub(crate) fn api_key(&self) -> &str {
        &self.api_key
    }

    /// The key for the address that is printed; empty once it was used.
    pub(crate) fn one_time_key(&self) -> String {
        self.one_time.lock().clone().unwrap_or_default()
    }

    fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<Entry, Refusal> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = host.ok_or(Refusal::Host)?;
        if !self.is_ours(host) {
            return Err(Refusal::Host);
        }
        if let Some(origin) = headers.get(ORIGIN) {
            let ours = format!("http://{host}");
            if origin.as_bytes() != ours.as_bytes() {
                return Err(Refusal::Origin);
            }
        }
        if let Some(given) = headers.get(AUTHORIZATION) {
            let key = given.to_str().ok().and_then(|text| {
                let (scheme, key) = text.split_once(' ')?;
                scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
            });
            return match key {
                Some(key) if equal(key, &self.api_key) => Ok(Entry::Known),
                Some(_) | None => Err(Refusal::WrongKey),
            };
        }
        if self.has_cookie(headers) {
            return Ok(Entry::Known);
        }
        match query_key(uri) {
            Some(given) => {
                let mut one_time = self.one_time.lock();
                if one_time.as_ref().is_some_and(|key| equal(key, given)) {
                    *one_time = None;
                    Ok(Entry::First)
                } else {
                    Err(Refusal::WrongKey)
                }
            }
            None => Err(Refusal::NoKey),
        }
    }

    /// A name that cannot be made to lead elsewhere: an address, or `localhost`. The port may be that of a tunnel.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        if name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let name = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name);
        match name.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || !self.loopback,
            Err(_) => false,
        }
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(COOKIE).iter();
        let mut each = cookies
            .filter_map(|cookies| cookies.to_str().ok())
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='));
        each.any(|(name, value)| name == self.cookie && equal(value, &self.session))
    }

    fn set_cookie(&self) -> Option<HeaderValue> {
        let Self {
            cookie, session, ..
        } = self;
        let cookie = format!("{cookie}={session}; Path=/; HttpOnly; SameSite=Strict");
        HeaderValue::from_str(&cookie).ok()
    }
}

/// Lets requests through that have a key, and refuses the others before anything of them is read.
pub(crate) async fn guard(
    State(access): State<std::sync::Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    let is_api = request.uri().path().starts_with("/api/");
    match access.check(request.headers(), request.uri()) {
        Ok(entry) => {
            let mut answer = next.run(request).await;
            if let (Entry::First, Some(cookie)) = (entry, access.set_cookie()) {
                answer.headers_mut().insert(SET_COOKIE, cookie);
            }
            answer
        }
        Err(refusal) if is_api => refusal.error().into_response(),
        Err(refusal) => response::refusal_page(&refusal.error()),
    }
}

impl Refusal {
    fn error(self) -> ApiError {
        let (status, code, message, hint) = match self {
            Self::Host => (
                StatusCode::FORBIDDEN,
                "host",
                "the address names another host",
                "open the viewer as `localhost` or by its IP address",
            ),
            Self::Origin => (
                StatusCode::FORBIDDEN,
                "origin",
                "the request comes from another page",
                "requests of programs have no `Origin` header",
            ),
            Self::NoKey => (
                StatusCode::UNAUTHORIZED,
                "no_key",
                "a key is missing",
                "open the address that `osmosis view` printed, or send `Authorization: Bearer API_KEY`",
            ),
            Self::WrongKey => (
                StatusCode::UNAUTHORIZED,
                "wrong_key",
                "the key is wrong, or was used before",
                "the printed address works once; start `osmosis view` again for a new one",
            ),
        };
        ApiError::new(status, code, message).hint(hint)
    }
}

fn query_key(uri: &Uri) -> Option<&str> {
    let mut pairs = uri
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == "key").map(|(_, key)| key)
}

fn equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let each = pairs.iter();
        each.map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_str(value).unwrap())
        })
        .collect()
    }

    fn check(access: &Access, uri: &str, pairs: &[(&'static str, &str)]) -> Result<Entry, Refusal> {
        access.check(&headers(pairs), &uri.parse().unwrap())
    }

    #[test]
    fn the_key_of_the_address_works_once_and_becomes_a_cookie() {
        let access = Access::new(7, true);
        let host = ("host", "127.0.0.1:7");
        let uri = format!("/?key={}", access.one_time_key());
        assert_eq!(check(&access, &uri, &[host]), Ok(Entry::First));
        assert_eq!(check(&access, &uri, &[host]), Err(Refusal::WrongKey));
        let cookie = access.set_cookie().unwrap();
        let cookie = cookie.to_str().unwrap();
        assert!(
            cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"),
            "{cookie}"
        );
        let pair = cookie.split(';').next().unwrap();
        let with_cookie = [host, ("cookie", pair)];
        assert_eq!(check(&access, &uri, &with_cookie), Ok(Entry::Known));
        assert_eq!(check(&access, "/", &with_cookie), Ok(Entry::Known));
        let other = Access::new(7, true);
        assert_eq!(check(&other, "/", &with_cookie), Err(Refusal::NoKey));
    }

    #[test]
    fn programs_have_a_key_of_their_own() {
        let access = Access::new(7, true);
        let host = ("host", "localhost:7");
        let bearer = format!("Bearer {}", access.api_key());
        let given = [host, ("authorization", bearer.as_str())];
        assert_eq!(check(&access, "/api/v1/runs", &given), Ok(Entry::Known));
        assert_eq!(check(&access, "/api/v1/runs", &given), Ok(Entry::Known));
        let wrong = [host, ("authorization", "Bearer osm-1")];
        assert_eq!(check(&access, "/", &wrong), Err(Refusal::WrongKey));
        assert_eq!(check(&access, "/", &[host]), Err(Refusal::NoKey));
        // The key of the address is not one for programs, nor the other way round.
        let uri = format!("/?key={}", access.api_key());
        assert_eq!(check(&access, &uri, &[host]), Err(Refusal::WrongKey));
    }

    #[test]
    fn other_names_and_other_pages_are_refused_whatever_key_they_have() {
        let access = Access::new(7, true);
        let bearer = format!("Bearer {}", access.api_key());
        let key = ("authorization", bearer.as_str());
        for host in [
            "evil.example",
            "evil.example:7",
            "10.0.0.1:7",
            "127.0.0.1.nip.io",
            "",
        ] {
            let refused = check(&access, "/", &[("host", host), key]);
            assert_eq!(refused, Err(Refusal::Host), "{host}");
        }
        assert_eq!(check(&access, "/", &[key]), Err(Refusal::Host));
        for host in ["127.0.0.1:7", "localhost", "LOCALHOST:9000", "[::1]:7"] {
            let known = check(&access, "/", &[("host", host), key]);
            assert_eq!(known, Ok(Entry::Known), "{host}");
        }
        let open = Access::new(7, false);
        assert!(open.is_ours("10.0.0.1:7") && !open.is_ours("evil.example:7"));
        let host = ("host", "localhost:7");
        for origin in [
            "http://evil.example",
            "null",
            "https://localhost:7",
            "http://localhost:8",
        ] {
            let refused = check(&access, "/", &[host, key, ("origin", origin)]);
            assert_eq!(refused, Err(Refusal::Origin), "{origin}");
        }
        let own = [host, key, ("origin", "http://localhost:7")];
        assert_eq!(check(&access, "/", &own), Ok(Entry::Known));
    }
}
