//! Where a database is: out of a `postgres:` URL, with what libpq calls `sslmode` and `sslrootcert`.

use std::fmt;
use std::time::Duration;

use osmosis_store::{StoreError, StoreUrl};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio_postgres::config::{Config, SslMode};

use crate::tls::{Tls, Verification};

/// What stands as it is in the fragment of a run's URL.
const IN_FRAGMENTS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// After so long without a word from the other end a connection is given up.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// How to get to a database.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    /// The URL without its password and without a run.
    pub(crate) shown: String,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.shown).finish()
    }
}

impl Address {
    pub(crate) fn of(url: &StoreUrl) -> Result<Self, StoreError> {
        let refused = |message: String| StoreError::InvalidUrl {
            url: url.as_str().to_owned(),
            message,
        };
        if !url.is_postgres() {
            return Err(refused("only `postgres:` URLs name a database".to_owned()));
        }
        let whole = without_fragment(url.with_secrets());
        let (address, query) = whole.split_once('?').unwrap_or((whole, ""));
        let mut mode = None;
        let mut root_certificates = None;
        let mut passed_on = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let decoded = || percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "sslmode" => mode = Some(decoded()),
                "sslrootcert" => root_certificates = Some(decoded()),
                _ => passed_on.push(parameter),
            }
        }
        let mut text = address.to_owned();
        if !passed_on.is_empty() {
            text.push('?');
            text.push_str(&passed_on.join("&"));
        }
        let mut config: Config = text.parse().map_err(|error: tokio_postgres::Error| {
            let why = std::error::Error::source(&error);
            refused(why.map_or_else(|| error.to_string(), ToString::to_string))
        })?;
        let verification = match (mode.as_deref(), root_certificates) {
            (Some("disable"), _) => {
                config.ssl_mode(SslMode::Disable);
                Verification::Nothing
            }
            (None | Some("allow" | "prefer"), None) => {
                config.ssl_mode(SslMode::Prefer);
                Verification::Nothing
            }
            (Some("require"), None) => {
                config.ssl_mode(SslMode::Require);
                Verification::Nothing
            }
            (Some("verify-full"), None) => {
                config.ssl_mode(SslMode::Require);
                Verification::System
            }
            (None | Some("allow" | "prefer" | "require" | "verify-full"), Some(file)) => {
                config.ssl_mode(SslMode::Require);
                Verification::File(file.into())
            }
            (Some(other), _) => {
                return Err(refused(format!(
                    "sslmode is `{other}`; `disable`, `prefer`, `require` and `verify-full` are known"
                )));
            }
        };
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.keepalives_idle(KEEPALIVE_IDLE);
        config.tcp_user_timeout(USER_TIMEOUT);
        if config.get_application_name().is_none() {
            config.application_name("osmosis");
        }
        Ok(Self {
            config,
            tls: Tls::new(&verification).map_err(refused)?,
            shown: without_fragment(url.as_str()).to_owned(),
        })
    }

    /// Where something in the database is: `#evaluation/NAME`. The password is not in it.
    pub(crate) fn url_of(&self, group: &str, name: &str) -> Result<StoreUrl, StoreError> {
        let name = utf8_percent_encode(name, IN_FRAGMENTS);
        StoreUrl::parse(&format!("{}#{group}/{name}", self.shown))
    }
}

fn without_fragment(url: &str) -> &str {
    // A password may hold a `#` when somebody forgot to encode it; a run is named after the last one.
    match (url.rfind('#'), url.rfind('@')) {
        (Some(fragment), at) if at.is_none_or(|at| at < fragment) => &url[..fragment],
        (_, _) => url,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Result<Address, StoreError> {
        Address::of(&StoreUrl::parse(text).unwrap())
    }

    #[test]
    fn a_password_is_used_and_never_shown() {
        let found = address("postgres://ada:s3cret@h/db?sslmode=require#evaluation/x").unwrap();
        assert_eq!(found.config.get_password(), Some(&b"s3cret"[..]));
        assert_eq!(found.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(found.config.get_dbname(), Some("db"));
        let run = found.url_of("evaluation", "a b").unwrap();
        assert_eq!(
            run.with_secrets(),
            "postgres://ada:***@h/db?sslmode=require#evaluation/a%20b"
        );
        let told = format!("{found:?} {run:?} {:?}", found.config);
        assert!(!told.contains("s3cret"), "{told}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        for (text, reason) in [
            ("file:///x", "only `postgres:` URLs"),
            ("postgres://h/db?sslmode=verify", "sslmode is `verify`"),
            ("postgres://a:s3cret@h/db?nonsense=1", "nonsense"),
            ("postgres://h/db?sslrootcert=/nowhere", "/nowhere"),
        ] {
            let error = address(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
