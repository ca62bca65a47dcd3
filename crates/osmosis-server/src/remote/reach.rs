//! Where a rollout server reaches us, and where we listen for it. Rules without I/O.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;

/// Our end of a run at a rollout server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// Gateway and callbacks listen here.
    pub listen: SocketAddr,
    /// What the server calls; `None` for the very address we listen on.
    pub base: Option<String>,
}

/// What is missing to be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    #[error("the rollout server `{host}` may be on another machine, and must reach this one")]
    NoPublicUrl { host: String },
    #[error("an address to listen on says not where the rollout server reaches it")]
    ListenAlone,
    #[error("`{url}` is encrypted, which this program does not speak itself")]
    Encrypted { url: String },
}

impl ReachError {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoPublicUrl { .. } | Self::ListenAlone => {
                "say where with `--public-url http://THIS-MACHINE:PORT`; if it is this machine, `--public-url http://127.0.0.1:PORT`"
            }
            Self::Encrypted { .. } => {
                "name the address that the proxy forwards to with `--listen 127.0.0.1:PORT`"
            }
        }
    }
}

impl Reach {
    /// A server on this machine reaches our loopback; any other must be told by `public` how. Then we
    /// listen on that port, unless `listen` says where it leads to.
    pub fn of(
        server: &Url,
        public: Option<&Url>,
        listen: Option<SocketAddr>,
    ) -> Result<Self, ReachError> {
        let Some(public) = public else {
            if listen.is_some() {
                return Err(ReachError::ListenAlone);
            }
            let host = server.host_str().unwrap_or_default();
            if !is_this_machine(host) {
                let host = host.to_owned();
                return Err(ReachError::NoPublicUrl { host });
            }
            let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            return Ok(Self { listen, base: None });
        };
        let base = Some(public.as_str().trim_end_matches('/').to_owned());
        if let Some(listen) = listen {
            return Ok(Self { listen, base });
        }
        let Some(port) = public
            .port_or_known_default()
            .filter(|_| public.scheme() == "http")
        else {
            let url = public.to_string();
            return Err(ReachError::Encrypted { url });
        };
        let host = public.host_str().unwrap_or_default();
        let ip = match bare(host).parse() {
            Ok(ip) if IpAddr::is_loopback(&ip) => ip,
            Ok(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            Err(_) if is_this_machine(host) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            // The name or number may be that of a router in between.
            Ok(IpAddr::V4(_)) | Err(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let listen = SocketAddr::new(ip, port);
        Ok(Self { listen, base })
    }
}

/// An `http` or `https` address. Keys have no place in it: it is recorded.
pub fn parse_url(text: &str) -> Result<Url, String> {
    let with_scheme = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let url: Url = with_scheme
        .parse()
        .map_err(|error| format!("`{text}` is no URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("`{text}` is no http or https URL"));
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err("an address without user, password and query is needed".to_owned());
    }
    Ok(url)
}

fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

fn is_this_machine(host: &str) -> bool {
    let loopback = |ip: IpAddr| ip.is_loopback();
    host == "localhost" || bare(host).parse().is_ok_and(loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(
        server: &str,
        public: Option<&str>,
        listen: Option<&str>,
    ) -> Result<String, ReachError> {
        let server = parse_url(server).unwrap();
        let public = public.map(|text| parse_url(text).unwrap());
        let listen = listen.map(|text| text.parse().unwrap());
        let reach = Reach::of(&server, public.as_ref(), listen)?;
        let base = reach.base.unwrap_or_else(|| "itself".to_owned());
        Ok(format!("{} as {base}", reach.listen))
    }

    #[test]
    fn where_we_listen_follows_from_where_we_are_reached() {
        for (server, public, listen, expected) in [
            ("http://127.0.0.1:1", None, None, "127.0.0.1:0 as itself"),
            ("localhost:8000", None, None, "127.0.0.1:0 as itself"),
            ("http://[::1]:1/", None, None, "127.0.0.1:0 as itself"),
            (
                "http://far:1",
                Some("http://near:8900/"),
                None,
                "0.0.0.0:8900 as http://near:8900",
            ),
            (
                "http://far:1",
                Some("10.0.0.7:8900"),
                None,
                "0.0.0.0:8900 as http://10.0.0.7:8900",
            ),
            (
                "http://far:1",
                Some("http://[fd00::7]:8900"),
                None,
                "[::]:8900 as http://[fd00::7]:8900",
            ),
            (
                "http://far:1",
                Some("http://127.0.0.1:8900"),
                None,
                "127.0.0.1:8900 as http://127.0.0.1:8900",
            ),
            (
                "http://far:1",
                Some("https://near/runs/"),
                Some("127.0.0.1:8900"),
                "127.0.0.1:8900 as https://near/runs",
            ),
        ] {
            assert_eq!(reach(server, public, listen).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let far = reach("http://far:1", None, None).unwrap_err();
        assert!(matches!(far, ReachError::NoPublicUrl { .. }));
        let alone = reach("http://127.0.0.1:1", None, Some("0.0.0.0:1")).unwrap_err();
        assert_eq!(alone, ReachError::ListenAlone);
        let encrypted = reach("http://far:1", Some("https://near"), None).unwrap_err();
        assert!(matches!(encrypted, ReachError::Encrypted { .. }));
    }

    #[test]
    fn an_address_carries_no_key() {
        for bad in [
            "http://",
            "ftp://a",
            "http://u:p@a",
            "http://a/?key=1",
            "http://a b",
        ] {
            assert!(parse_url(bad).is_err(), "{bad}");
        }
    }
}
