//! Whether a browser sends a request for a page from elsewhere.

use http::uri::Authority;
use http::{HeaderMap, Uri, header};
use reqwest::Url;

/// Whom a request was sent to, in its own words.
pub fn host_of(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    if let Some(authority) = uri.authority() {
        return Some(authority.clone());
    }
    Authority::try_from(headers.get(header::HOST)?.as_bytes()).ok()
}

/// The `Origin` of a request, when it is not the server's own: a page may use the server that it came from.
pub fn foreign_origin(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
    origins.peek()?;
    let host = host_of(uri, headers);
    origins
        .map(|origin| String::from_utf8_lossy(origin.as_bytes()).into_owned())
        .find(|origin| !host.as_ref().is_some_and(|host| is_of(origin, host)))
}

fn is_of(origin: &str, host: &Authority) -> bool {
    let Ok(origin) = Url::parse(origin) else {
        return false;
    };
    let port = host.port_u16().or(match origin.scheme() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    });
    let named = origin.host_str().unwrap_or_default();
    named.eq_ignore_ascii_case(host.host()) && origin.port_or_known_default() == port
}
