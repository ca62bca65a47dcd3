//! Which addresses a client may be sent to by somebody else. A server that others can reach must not ask
//! this machine's own services, or those beside it on the link, in their place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::policy::upstream::without_credentials;

/// How long a name may take to be looked up before a request is accepted.
const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// Which URLs may be asked.
#[derive(Debug, Clone, Default)]
pub struct AddressRules {
    refuses_local: bool,
    allowed: Arc<[Url]>,
}

/// A URL that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{url}` is an address of the server's own machine or link, which a server that others can reach refuses; \
     `--allow-url` allows it"
)]
pub struct ForbiddenAddress {
    /// Without credentials.
    pub url: String,
}

impl AddressRules {
    /// Every address may be asked.
    pub fn anywhere() -> Self {
        Self::default()
    }

    /// No loopback and no link-local address may be asked, whatever name it has, unless its URL begins with
    /// one of `allowed`: same scheme, host and port, and a path below the path there.
    pub fn elsewhere_only(allowed: Vec<Url>) -> Self {
        Self {
            refuses_local: true,
            allowed: allowed.into(),
        }
    }

    /// What can be said without looking up a name.
    pub fn check(&self, url: &Url) -> Result<(), ForbiddenAddress> {
        let local = match host_of(url) {
            Some(Host::Ip(ip)) => is_local(ip),
            Some(Host::Name(name)) => is_localhost(name),
            None => true,
        };
        if local && self.is_guarded(url) {
            return Err(forbidden(url));
        }
        Ok(())
    }

    /// The same, after a look at where a name leads. A name that leads nowhere is let pass: whoever connects
    /// looks again.
    pub async fn check_resolved(&self, url: &Url) -> Result<(), ForbiddenAddress> {
        self.check(url)?;
        let Some(Host::Name(name)) = host_of(url) else {
            return Ok(());
        };
        if !self.is_guarded(url) {
            return Ok(());
        }
        let port = url.port_or_known_default().unwrap_or_default();
        let found = tokio::time::timeout(LOOKUP_LIMIT, tokio::net::lookup_host((name, port)));
        let Ok(Ok(found)) = found.await else {
            return Ok(());
        };
        let found: Vec<SocketAddr> = found.collect();
        if !found.is_empty() && found.iter().all(|address| is_local(address.ip())) {
            return Err(forbidden(url));
        }
        Ok(())
    }

    /// Whether connections to this URL are to be looked at.
    pub(crate) fn is_guarded(&self, url: &Url) -> bool {
        self.refuses_local && !self.allowed.iter().any(|prefix| is_below(url, prefix))
    }
}

enum Host<'a> {
    Ip(IpAddr),
    Name(&'a str),
}

/// A `Url` has every way to write an IPv4 address in one form already.
fn host_of(url: &Url) -> Option<Host<'_>> {
    let host = url.host_str()?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    Some(bare.parse().map_or(Host::Name(host), Host::Ip))
}

fn forbidden(url: &Url) -> ForbiddenAddress {
    ForbiddenAddress {
        url: without_credentials(url),
    }
}

fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.is_empty()
}

fn is_below(url: &Url, prefix: &Url) -> bool {
    let path = prefix.path().trim_end_matches('/');
    url.scheme() == prefix.scheme()
        && url.host() == prefix.host()
        && url.port_or_known_default() == prefix.port_or_known_default()
        && url
            .path()
            .strip_prefix(path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Loopback, link-local, and the address that means "here"; also in the IPv6 forms of an IPv4 address.
fn is_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_local_v4(ip),
        IpAddr::V6(ip) => {
            ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_unicast_link_local()
                || embedded(ip).is_some_and(is_local_v4)
        }
    }
}

fn is_local_v4(ip: Ipv4Addr) -> bool {
    // All of 0.0.0.0/8 is "this host".
    ip.is_loopback() || ip.is_link_local() || ip.octets()[0] == 0
}

/// The IPv4 address that an IPv6 address stands for.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    // Compatible, mapped, translated, by the prefix of NAT64, and 6to4.
    let ([0, 0, 0, 0, 0, 0 | 0xffff, high, low]
    | [0, 0, 0, 0, 0xffff, 0, high, low]
    | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
    | [0x2002, high, low, ..]) = ip.segments()
    else {
        return None;
    };
    Some(Ipv4Addr::from_bits(
        (u32::from(high) << 16) | u32::from(low),
    ))
}

/// Looks names up when a connection is made, and leads to no local address.
#[derive(Debug)]
pub(crate) struct ElsewhereResolver;

impl Resolve for ElsewhereResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let elsewhere: Vec<SocketAddr> =
                found.filter(|address| !is_local(address.ip())).collect();
            if elsewhere.is_empty() {
                let message =
                    "the name leads to the server's own machine or link, which is refused";
                return Err(
                    std::io::Error::new(std::io::ErrorKind::PermissionDenied, message).into(),
                );
            }
            Ok(Box::new(elsewhere.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn every_way_to_write_a_local_address_is_refused() {
        let rules = AddressRules::elsewhere_only(vec![]);
        for text in [
            "http://127.0.0.1:80/",
            "http://127.8.9.10/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://0.0.0.0:8080/",
            "http://0/",
            "http://169.254.169.254/latest/meta-data",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[::127.0.0.1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://[2002:a9fe:a9fe::1]/",
            "http://[fe80::1]/",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://a.localhost/",
            "http://１２７.0.0.1/",
            "https://u:hunter2@127.0.0.1/",
        ] {
            let refused = rules.check(&url(text)).unwrap_err();
            assert!(!refused.to_string().contains("hunter2"), "{refused}");
            assert_eq!(AddressRules::anywhere().check(&url(text)), Ok(()));
        }
        for text in [
            "http://10.0.0.1/",
            "http://192.168.1.1/",
            "http://8.8.8.8/",
            "http://[2001:db8::1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://[fd00::1]/",
            "http://example.com/",
            "http://localhost.example.com/",
        ] {
            assert_eq!(rules.check(&url(text)), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_prefix_allows_what_is_below_it_and_nothing_beside_it() {
        let allowed = ["http://127.0.0.1:8000/v1", "http://localhost:9000/"];
        let rules = AddressRules::elsewhere_only(allowed.map(url).to_vec());
        for text in [
            "http://127.0.0.1:8000/v1",
            "http://127.0.0.1:8000/v1/chat/completions?x=1",
            "http://localhost:9000/any/thing",
        ] {
            assert_eq!(rules.check(&url(text)), Ok(()), "{text}");
        }
        for text in [
            "http://127.0.0.1:8000/v10",
            "http://127.0.0.1:8000/",
            "http://127.0.0.1:8000/v1/../admin",
            "http://127.0.0.1:8001/v1",
            "https://127.0.0.1:8000/v1",
            "http://127.0.0.2:8000/v1",
            "http://127.0.0.1:9000/",
        ] {
            assert!(rules.check(&url(text)).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_before_and_when_a_connection_is_made() {
        // Whatever it is called, the machine's own name for its loopback address.
        let name: Name = "localhost".parse().unwrap();
        let refused = ElsewhereResolver.resolve(name).await.err().unwrap();
        assert!(refused.to_string().contains("refused"), "{refused}");
        let rules = AddressRules::elsewhere_only(vec![]);
        let nowhere = url("http://no-such-host.invalid/");
        assert_eq!(rules.check_resolved(&nowhere).await, Ok(()));
        assert!(rules.check_resolved(&url("http://0/")).await.is_err());
    }
}
