//! `OTEL_*` of the environment, as the OpenTelemetry specification names them.

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use percent_encoding::percent_decode_str;
use reqwest::Url;
use serde_json::{Value, json};

use super::span::text;

/// Where spans go and what they say about us.
#[derive(Clone, PartialEq)]
pub struct TelemetryOptions {
    /// The whole address, `http://127.0.0.1:4318/v1/traces`.
    pub url: Url,
    pub headers: HeaderMap,
    /// `service.name` and the other attributes of the resource.
    pub resource: Vec<(String, String)>,
    pub timeout: Duration,
    /// How long spans are collected before they are sent.
    pub delay: Duration,
    /// Spans beyond this are dropped while the collector is slow.
    pub queue: usize,
    /// Most spans of one request.
    pub batch: usize,
}

impl fmt::Debug for TelemetryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The headers hold a key, the URL may hold a password.
        f.debug_struct("TelemetryOptions")
            .field("resource", &self.resource)
            .finish_non_exhaustive()
    }
}

impl TelemetryOptions {
    /// What the environment asks for, `None` when it asks for nothing; the text says what is wrong.
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        let get = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let either = |name: &str| {
            get(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))
                .or_else(|| get(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        if get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || get("OTEL_TRACES_EXPORTER").is_some_and(|value| value != "otlp")
        {
            return Ok(None);
        }
        // One for traces is taken as it is, the general one is a base.
        let url = match (
            get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
            get("OTEL_EXPORTER_OTLP_ENDPOINT"),
        ) {
            (Some(url), _) => url,
            (None, Some(base)) => format!("{}/v1/traces", base.trim_end_matches('/')),
            (None, None) => return Ok(None),
        };
        let url = Url::parse(&url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or("OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL")?;
        if either("PROTOCOL").is_some_and(|protocol| protocol == "grpc") {
            return Err(
                "OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`, and spans are sent over HTTP; set it to \
                 `http/json` and use the collector's HTTP port, usually 4318"
                    .to_owned(),
            );
        }
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        for (name, value) in pairs(&either("HEADERS").unwrap_or_default()) {
            let header: Option<(HeaderName, HeaderValue)> =
                name.parse().ok().zip(value.parse().ok());
            let (name, mut value) =
                header.ok_or("OTEL_EXPORTER_OTLP_HEADERS is not a list of `name=value`")?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let mut resource = pairs(&get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default());
        let service = get("OTEL_SERVICE_NAME");
        if service.is_some() || !resource.iter().any(|(name, _)| name == "service.name") {
            resource.retain(|(name, _)| name != "service.name");
            let service = service.unwrap_or_else(|| "osmosis".to_owned());
            resource.insert(0, ("service.name".to_owned(), service));
        }
        let number = |value: Option<String>, default: u64| {
            value
                .and_then(|value| value.trim().parse().ok())
                .unwrap_or(default)
        };
        let count = |name: &str, default: u64| {
            usize::try_from(number(get(name), default))
                .unwrap_or(usize::MAX)
                .clamp(1, 1 << 20)
        };
        Ok(Some(Self {
            url,
            headers,
            resource,
            timeout: Duration::from_millis(number(either("TIMEOUT"), 10_000)),
            delay: Duration::from_millis(number(get("OTEL_BSP_SCHEDULE_DELAY"), 5_000)),
            queue: count("OTEL_BSP_MAX_QUEUE_SIZE", 2_048),
            batch: count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512),
        }))
    }

    /// The body of a request with these spans.
    pub(super) fn envelope(&self, spans: &[Value]) -> Value {
        let resource: Vec<Value> = self
            .resource
            .iter()
            .map(|(name, value)| text(name, value))
            .collect();
        json!({ "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{
                "scope": { "name": "osmosis-gateway", "version": env!("CARGO_PKG_VERSION") },
                "spans": spans,
            }],
        }]})
    }
}

/// `name=value,name=value`, percent-decoded; what is not a pair is left out.
fn pairs(text: &str) -> Vec<(String, String)> {
    text.split(',')
        .filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            Some((name.trim().to_owned(), value.into_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<TelemetryOptions>, String> {
        TelemetryOptions::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const BASE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/otlp/");

    #[test]
    fn nothing_is_sent_unless_an_endpoint_is_named() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("OTEL_SERVICE_NAME", "x")]), Ok(None));
        assert_eq!(read(&[BASE, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        assert_eq!(read(&[BASE, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        assert_eq!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), Ok(None));
    }

    #[test]
    fn the_variables_mean_what_the_specification_says() {
        let options = read(&[
            BASE,
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, x-two=2"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team=rl,service.name=ignored"),
            ("OTEL_SERVICE_NAME", "gateway"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000"),
            ("OTEL_BSP_SCHEDULE_DELAY", "7"),
        ])
        .unwrap()
        .unwrap();
        assert_eq!(options.url.as_str(), "http://c:4318/otlp/v1/traces");
        assert_eq!(options.headers["x-key"], "a b");
        assert_eq!(options.headers["x-two"], "2");
        let resource: Vec<(&str, &str)> = options
            .resource
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        assert_eq!(resource, [("service.name", "gateway"), ("team", "rl")]);
        assert_eq!(options.timeout, Duration::from_secs(2));
        assert_eq!(options.delay, Duration::from_millis(7));
        assert!(!format!("{options:?}").contains("a b"));
        let traces = [BASE, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/in")];
        let options = read(&traces).unwrap().unwrap();
        assert_eq!(options.url.as_str(), "http://t/in");
        assert_eq!(options.resource[0].1, "osmosis");
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        let grpc = [BASE, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        assert!(read(&grpc).unwrap_err().contains("http/json"));
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318")]).is_err());
        let headers = [BASE, ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c")];
        assert!(read(&headers).is_err());
    }
}
