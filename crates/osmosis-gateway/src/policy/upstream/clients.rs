//! HTTP clients, made when they are first needed and shared by all that speak to servers of a kind.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use reqwest::Url;

use super::direct::DirectClient;
use super::endpoint::without_credentials;
use super::reply;
use crate::error::GatewayError;
use crate::serving::address_rules::{AddressRules, ElsewhereResolver};

/// Clients for servers that are not known beforehand. Connections are kept and reused across callers;
/// redirects are not followed, because they would carry a key elsewhere.
pub struct HttpClients {
    connect_timeout: Duration,
    rules: AddressRules,
    made: [OnceLock<reqwest::Client>; KINDS],
    /// By scheme, host and port.
    direct: Mutex<HashMap<String, Weak<DirectClients>>>,
}

/// The clients of one server.
#[derive(Debug)]
pub(crate) struct DirectClients {
    /// Its connections read in steps that grow with what comes.
    whole: Arc<DirectClient>,
    /// Its connections read in small steps: thousands of streams are open at once, and their events are small.
    streams: Arc<DirectClient>,
}

/// What a connection that streams has for what comes.
const STREAM_BUFFER_BYTES: usize = 4 << 10;

pub(super) const USER_AGENT: &str = concat!("osmosis-rs/", env!("CARGO_PKG_VERSION"));

/// Plain or encrypted, this machine or another, guarded or not.
const KINDS: usize = 8;

impl HttpClients {
    pub fn new(connect_timeout: Duration) -> Self {
        Self::with_rules(connect_timeout, AddressRules::anywhere())
    }

    /// Clients that are led to no address that `rules` refuse, also when a name leads there.
    pub fn with_rules(connect_timeout: Duration, rules: AddressRules) -> Self {
        Self {
            connect_timeout,
            rules,
            made: Default::default(),
            direct: Mutex::default(),
        }
    }

    /// The clients for an address that is reached by plain HTTP without a proxy.
    pub(crate) fn direct_for(&self, url: &Url) -> Option<Arc<DirectClients>> {
        if url.scheme() != "http" || !url.username().is_empty() || url.password().is_some() {
            return None;
        }
        // This client looks names up by itself.
        if self.rules.is_guarded(url) {
            return None;
        }
        if !is_loopback(url) && has_proxy() {
            return None;
        }
        let origin = url.origin().ascii_serialization();
        let server: Uri = origin.parse().ok()?;
        let mut all = self.direct.lock();
        if let Some(clients) = all.get(&origin).and_then(Weak::upgrade) {
            return Some(clients);
        }
        all.retain(|_, clients| clients.strong_count() > 0);
        let clients = Arc::new(DirectClients::new(&server, self.connect_timeout));
        all.insert(origin, Arc::downgrade(&clients));
        Some(clients)
    }

    /// The client for this address.
    pub fn for_url(&self, url: &Url) -> Result<reqwest::Client, GatewayError> {
        self.rules.check(url)?;
        let encrypted = url.scheme() != "http";
        let (loopback, guarded) = (is_loopback(url), self.rules.is_guarded(url));
        let kind = [encrypted, loopback, guarded];
        let kind = kind.iter().fold(0, |kind, is| kind * 2 + usize::from(*is));
        let slot = &self.made[kind];
        if let Some(client) = slot.get() {
            return Ok(client.clone());
        }
        let client = client_for(url, self.connect_timeout, guarded)?;
        Ok(slot.get_or_init(|| client).clone())
    }
}

impl DirectClients {
    fn new(server: &Uri, connect_timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_timeout));
        Self {
            whole: DirectClient::new(server.clone(), connector.clone(), None),
            streams: DirectClient::new(server.clone(), connector, Some(STREAM_BUFFER_BYTES)),
        }
    }

    pub(crate) fn one_for(&self, streamed: bool) -> &Arc<DirectClient> {
        if streamed { &self.streams } else { &self.whole }
    }
}

impl fmt::Debug for HttpClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClients").finish_non_exhaustive()
    }
}

fn client_for(
    url: &Url,
    connect_timeout: Duration,
    guarded: bool,
) -> Result<reqwest::Client, GatewayError> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails only when another thread was faster, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let mut builder = reqwest::Client::builder()
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(USER_AGENT);
    if url.scheme() == "http" {
        // Reading the system's certificates takes tens of milliseconds, and fails where there are none.
        builder = builder.tls_certs_only([]);
    }
    if is_loopback(url) {
        builder = builder.no_proxy();
    }
    if guarded {
        builder = builder.dns_resolver(ElsewhereResolver);
    }
    builder
        .build()
        .map_err(|error| GatewayError::UpstreamClient {
            url: without_credentials(url),
            message: reply::error_chain(&error),
        })
}

/// Whether the environment may put a proxy before a plain address.
fn has_proxy() -> bool {
    ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// A proxy cannot reach this machine's loopback.
fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn guarded_clients_are_led_to_no_local_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = |host: &str| Url::parse(&format!("http://{host}:{port}/v1")).unwrap();
        let open = url("127.0.0.1");
        let rules = AddressRules::elsewhere_only(vec![open.clone()]);
        let clients = HttpClients::with_rules(Duration::from_secs(5), rules);
        assert!(clients.for_url(&url("127.0.0.2")).is_err());
        assert!(clients.for_url(&url("[::1]")).is_err());
        clients.for_url(&open).unwrap();
        assert!(clients.direct_for(&open).is_some());
        let named = Url::parse("http://example.com/v1").unwrap();
        assert!(clients.direct_for(&named).is_none());
        // A name whose meaning changed after it was checked.
        let rebound = url("localhost");
        let client = clients.for_url(&named).unwrap();
        let sent = client.get(rebound).timeout(Duration::from_secs(10)).send();
        let error = sent.await.unwrap_err();
        assert!(reply::error_chain(&error).contains("refused"), "{error:?}");
    }

    #[test]
    fn loopback_is_recognised() {
        for (url, expected) in [
            ("http://127.0.0.1:1/", true),
            ("http://[::1]:1/", true),
            ("http://localhost/", true),
            ("http://example.com/", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
        }
    }
}
