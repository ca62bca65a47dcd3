//! Delivers one callback: the same body again and again, until somebody takes it or it is given up.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use osmosis_core::RolloutId;
use osmosis_gateway::{AddressRules, GatewayErrorKind, HttpClients};
use reqwest::Url;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::CallbackOptions;
use crate::request::shown;

/// Callbacks on their way at once; those that wait for their next try do not count.
const MAX_ON_THEIR_WAY: usize = 64;

/// Delivers callbacks.
pub(crate) struct CallbackSender {
    options: CallbackOptions,
    clients: HttpClients,
    on_their_way: Semaphore,
    /// Nothing is tried any more.
    stop: CancellationToken,
}

/// Where a callback goes, and how it says who it is from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address<'a> {
    pub(crate) rollout: &'a RolloutId,
    pub(crate) kind: &'static str,
    pub(crate) url: &'a Url,
    pub(crate) authorization: Option<&'a HeaderValue>,
}

/// What became of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Taken,
    /// The receiver does not want it.
    Refused,
    /// The receiver was out of reach for too long, or we are leaving.
    GivenUp,
}

impl Delivery {
    /// Whether it is not to be tried again at another time.
    pub(crate) fn is_final(self) -> bool {
        match self {
            Self::Taken | Self::Refused => true,
            Self::GivenUp => false,
        }
    }
}

/// Why a try came to nothing.
struct FailedTry {
    why: String,
    retry: bool,
    retry_after: Option<Duration>,
}

impl CallbackSender {
    pub(crate) fn new(
        options: CallbackOptions,
        rules: AddressRules,
        stop: CancellationToken,
    ) -> Self {
        Self {
            clients: HttpClients::with_rules(options.connect_timeout, rules),
            options,
            on_their_way: Semaphore::new(MAX_ON_THEIR_WAY),
            stop,
        }
    }

    /// Tries until the body is taken. The body is made anew for each try, so that it need not be kept
    /// while a receiver is out of reach; `make` must make the same each time.
    pub(crate) async fn deliver<M, F>(&self, to: Address<'_>, make: M) -> Delivery
    where
        M: Fn() -> F,
        F: Future<Output = Result<Bytes, String>>,
    {
        let trying = self.keep_trying(to, make);
        self.stop
            .run_until_cancelled(trying)
            .await
            .unwrap_or(Delivery::GivenUp)
    }

    async fn keep_trying<M, F>(&self, to: Address<'_>, make: M) -> Delivery
    where
        M: Fn() -> F,
        F: Future<Output = Result<Bytes, String>>,
    {
        let deadline = Instant::now() + self.options.give_up_after;
        for tries in 1.. {
            let failed = match self.try_once(to, &make).await {
                Ok(()) => return Delivery::Taken,
                Err(failed) => failed,
            };
            let wait = wait_before(
                tries,
                failed.retry_after,
                &self.options,
                rand::random::<f64>(),
            );
            let Address { rollout, kind, .. } = to;
            let (url, why) = (shown(to.url), &failed.why);
            if !failed.retry {
                tracing::warn!(%rollout, kind, url, why, tries, "a callback is refused for good");
                return Delivery::Refused;
            }
            if Instant::now() + wait > deadline {
                tracing::warn!(%rollout, kind, url, why, tries, "a callback is given up until the next start");
                return Delivery::GivenUp;
            }
            tracing::info!(%rollout, kind, url, why, tries, "a callback is tried again");
            tokio::time::sleep(wait).await;
        }
        Delivery::GivenUp
    }

    async fn try_once<M, F>(&self, to: Address<'_>, make: &M) -> Result<(), FailedTry>
    where
        M: Fn() -> F,
        F: Future<Output = Result<Bytes, String>>,
    {
        let Ok(_seat) = self.on_their_way.acquire().await else {
            return Err(FailedTry::again("the server has ended"));
        };
        let body = make().await.map_err(FailedTry::again)?;
        let client = self
            .clients
            .for_url(to.url)
            .map_err(|error| match error.kind() {
                GatewayErrorKind::Settings => FailedTry::last(error.to_string()),
                // This machine may be mended.
                GatewayErrorKind::Listen
                | GatewayErrorKind::Unknown
                | GatewayErrorKind::Conflict
                | GatewayErrorKind::Environment => FailedTry::again(error.to_string()),
            })?;
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(authorization) = to.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        let request = client.post(to.url.clone()).headers(headers).body(body);
        let response = tokio::time::timeout(self.options.try_limit, request.send()).await;
        match response {
            Err(_) => Err(FailedTry::again("it took too long")),
            // The text of the error holds the address, which may hold a password.
            Ok(Err(error)) => Err(FailedTry::again(chain(&error.without_url()))),
            Ok(Ok(response)) if response.status().is_success() => Ok(()),
            Ok(Ok(response)) => Err(FailedTry {
                why: format!("it answered with status {}", response.status().as_u16()),
                retry: worth_retrying(response.status()),
                retry_after: retry_after(response.headers()),
            }),
        }
    }
}

impl fmt::Debug for CallbackSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackSender").finish_non_exhaustive()
    }
}

impl FailedTry {
    fn again(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            retry: true,
            retry_after: None,
        }
    }

    fn last(why: impl Into<String>) -> Self {
        Self {
            retry: false,
            ..Self::again(why)
        }
    }
}

fn worth_retrying(status: StatusCode) -> bool {
    status.is_server_error()
        || status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
}

pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: f64 = headers
        .get(header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// What was asked for, else doubling from the first; `chance` in 0..1 spreads callers out.
fn wait_before(
    tries: u32,
    asked_for: Option<Duration>,
    options: &CallbackOptions,
    chance: f64,
) -> Duration {
    let doubled = options
        .first_wait
        .saturating_mul(2_u32.saturating_pow(tries.saturating_sub(1)));
    match asked_for {
        Some(asked) => asked.min(options.longest_wait).mul_f64(1.0 + 0.1 * chance),
        None => doubled
            .min(options.longest_wait)
            .mul_f64(0.5 + 0.5 * chance),
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_what_is_asked_for_is_honoured() {
        let options = CallbackOptions::default();
        let wait = |tries| wait_before(tries, None, &options, 1.0).as_millis();
        assert_eq!([wait(1), wait(2), wait(3)], [500, 1000, 2000]);
        assert_eq!(wait(1_000_000), 30_000);
        assert_eq!(wait_before(1, None, &options, 0.0).as_millis(), 250);
        let asked = |seconds| wait_before(1, Some(Duration::from_secs(seconds)), &options, 0.0);
        assert_eq!(asked(3), Duration::from_secs(3));
        assert_eq!(asked(9000), options.longest_wait);
    }

    #[test]
    fn only_a_receiver_that_may_recover_is_tried_again() {
        let retried = |status: u16| worth_retrying(StatusCode::from_u16(status).unwrap());
        for status in [408, 429, 500, 502, 503, 504] {
            assert!(retried(status), "{status}");
        }
        for status in [301, 400, 401, 403, 404, 409, 410, 422] {
            assert!(!retried(status), "{status}");
        }
    }
}
