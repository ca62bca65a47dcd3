//! Where workers dial in.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An address that a worker dials, as it is told: `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket, by its path where the worker is.
    Unix(PathBuf),
    Tcp {
        host: String,
        port: u16,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            // An IPv6 address stands in brackets, as everywhere before a port.
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// Where a pool listens for its workers. Whoever dials needs a token at either.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket in a folder that only this user can enter.
    #[default]
    PrivateSocket,
    /// A TCP address; port 0 takes a free one.
    Tcp {
        bind: SocketAddr,
        /// What workers dial instead of the bound address: a name or address that leads here from where they are.
        advertised_host: Option<String>,
    },
}

impl Listen {
    /// A free port on loopback, for workers that can't open a Unix socket.
    pub fn loopback() -> Self {
        Self::Tcp {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertised_host: None,
        }
    }
}

/// What workers dial when a pool listens at `bound`.
pub(crate) fn advertised(bound: SocketAddr, advertised_host: Option<String>) -> Endpoint {
    Endpoint::Tcp {
        host: advertised_host.unwrap_or_else(|| bound.ip().to_string()),
        port: bound.port(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_reads_as_workers_are_told() {
        let unix = Endpoint::Unix("/tmp/osmosis-1/s".into());
        assert_eq!(unix.to_string(), "unix:/tmp/osmosis-1/s");
        let bound = SocketAddr::from(([127, 0, 0, 1], 4000));
        assert_eq!(advertised(bound, None).to_string(), "tcp:127.0.0.1:4000");
        let named = advertised(bound, Some("engine.local".to_owned()));
        assert_eq!(named.to_string(), "tcp:engine.local:4000");
        let bound: SocketAddr = "[::1]:4000".parse().unwrap();
        assert_eq!(advertised(bound, None).to_string(), "tcp:[::1]:4000");
    }
}
