use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, Url};

use crate::{Endpoint, SdkError};

const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// The connections that all rollouts of this process share. A call may take as long as it takes:
/// the rollout has a deadline.
pub(super) fn shared_client(endpoint: &Endpoint) -> Result<Client, SdkError> {
    static NEAR: OnceLock<Client> = OnceLock::new();
    static FAR: OnceLock<Client> = OnceLock::new();

    let builder = Client::builder().connect_timeout(CONNECT_LIMIT);
    if is_loopback(&endpoint.base_url) {
        // A proxy of the environment does not know what `localhost` means here.
        built(&NEAR, builder.no_proxy(), endpoint)
    } else {
        built(&FAR, builder, endpoint)
    }
}

fn built(
    shared: &OnceLock<Client>,
    builder: ClientBuilder,
    endpoint: &Endpoint,
) -> Result<Client, SdkError> {
    if let Some(client) = shared.get() {
        return Ok(client.clone());
    }
    let client = builder
        .build()
        .map_err(|error| no_client(endpoint, &error))?;
    Ok(shared.get_or_init(|| client).clone())
}

pub(super) fn no_client(endpoint: &Endpoint, error: &dyn std::error::Error) -> SdkError {
    SdkError::Client {
        url: endpoint.base_url.clone(),
        reason: error.to_string(),
    }
}

fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else {
        return false;
    };
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known_by_name_and_by_address() {
        for near in [
            "http://127.0.0.1:80/v1",
            "http://[::1]:80/v1",
            "http://localhost/v1",
        ] {
            assert!(is_loopback(near), "{near}");
        }
        for far in ["http://10.0.0.1/v1", "http://gateway/v1", "nonsense"] {
            assert!(!is_loopback(far), "{far}");
        }
    }
}
