//! The numbers of one moment, as the text that Prometheus reads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderMap, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;

use super::Series;
use super::histogram::Histogram;
use crate::policy::registry::PolicyStatus;
use crate::policy::upstream::{EndpointLoad, Health};

/// What the page is called for whoever sent these headers. The text is OpenMetrics, which a reader of the older
/// format understands too: all it misses is that names in `_total` are counters.
pub(crate) fn content_type(headers: &HeaderMap) -> &'static str {
    let accepted = headers.get_all(header::ACCEPT).into_iter();
    let reads_open_metrics = accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("application/openmetrics-text"));
    if reads_open_metrics {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; version=0.0.4; charset=utf-8"
    }
}

/// What stands before every name.
const PREFIX: &str = "osmosis_gateway";

#[derive(Debug)]
pub(super) struct Page {
    pub(super) series: Vec<Arc<Series>>,
    pub(super) replayed: u64,
    pub(super) spans_dropped: u64,
    /// By name; the run's own has none.
    pub(super) policies: Vec<(String, PolicyStatus)>,
}

impl Page {
    pub(super) fn text(self) -> String {
        let mut registry = prometheus_client::registry::Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        // Writing into a `String` cannot fail.
        let _ = text::encode(&mut page, &registry);
        page
    }
}

/// A name, what it is, and where it is found.
type OfCalls = (&'static str, &'static str, fn(&Series) -> &Histogram);
type OfPolicy = (&'static str, &'static str, fn(&PolicyStatus) -> u64);
type OfEndpoint = (&'static str, &'static str, fn(&EndpointLoad) -> Option<u32>);

const HISTOGRAMS: [OfCalls; 3] = [
    (
        "request_duration_seconds",
        "From the arrival of a call to its last byte.",
        |series| &series.duration,
    ),
    (
        "time_to_first_token_seconds",
        "From sending a call to the upstream to the first byte of its reply.",
        |series| &series.first_token,
    ),
    (
        "queue_wait_seconds",
        "From the arrival of a call to sending it to the upstream.",
        |series| &series.queued,
    ),
];

const OF_POLICIES: [OfPolicy; 5] = [
    (
        "in_flight",
        "Calls that were let in and are not recorded yet.",
        |policy| policy.in_flight as u64,
    ),
    (
        "queue_length",
        "Calls that wait for an endpoint to have room.",
        |policy| policy.queued as u64,
    ),
    (
        "held",
        "Calls that wait for the policy to be resumed.",
        |policy| policy.held as u64,
    ),
    ("paused", "1 while the policy is paused.", |policy| {
        u64::from(policy.paused)
    }),
    ("policy_version", "The version that is served.", |policy| {
        policy.version.0
    }),
];

const OF_ENDPOINTS: [OfEndpoint; 3] = [
    (
        "upstream_in_flight",
        "Calls under way at an endpoint.",
        |endpoint| Some(endpoint.in_flight),
    ),
    (
        "upstream_limit",
        "How many calls an endpoint may have now.",
        |endpoint| endpoint.limit,
    ),
    (
        "upstream_up",
        "0 while an endpoint is left alone because it fails.",
        |endpoint| Some(u32::from(endpoint.health != Health::Open)),
    ),
];

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.counters(&mut encoder)?;
        for (name, help, of) in HISTOGRAMS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for series in &self.series {
                let (histogram, labels) = (of(series), series.labels());
                let buckets = histogram.buckets();
                let count = buckets.iter().map(|(_, count)| count).sum();
                let mut one = metric.encode_family(&labels)?;
                one.encode_histogram::<NoLabelSet>(histogram.sum(), count, &buckets, None)?;
            }
        }
        self.gauges(&mut encoder)
    }
}

impl Page {
    /// `_total` stands after the name of every counter.
    fn counters(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Calls by how they ended: ok, or the code of the error.";
        let mut metric = encoder.encode_descriptor("requests", help, None, MetricType::Counter)?;
        for series in &self.series {
            let [dialect, upstream] = series.labels();
            for (outcome, value) in series.outcomes.lock().iter() {
                count(
                    &mut metric,
                    &[dialect, upstream, ("outcome", outcome)],
                    *value,
                )?;
            }
        }
        let help = "Tokens as the upstream counts them.";
        let mut metric = encoder.encode_descriptor("tokens", help, None, MetricType::Counter)?;
        for series in &self.series {
            let [dialect, upstream] = series.labels();
            for (kind, value) in [
                ("input", &series.input_tokens),
                ("output", &series.output_tokens),
            ] {
                let labels = [dialect, upstream, ("kind", kind)];
                count(&mut metric, &labels, value.load(Ordering::Relaxed))?;
            }
        }
        let help = "Tries of calls beyond the first, by the upstream that came last.";
        let mut metric = encoder.encode_descriptor("retries", help, None, MetricType::Counter)?;
        for series in &self.series {
            let value = series.retries.load(Ordering::Relaxed);
            count(&mut metric, &series.labels(), value)?;
        }
        for (name, help, value) in [
            (
                "replayed",
                "Calls with a known idempotency key that were given the earlier answer.",
                self.replayed,
            ),
            (
                "spans_dropped",
                "Spans that could not be exported.",
                self.spans_dropped,
            ),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn gauges(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, of) in OF_POLICIES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (policy, status) in &self.policies {
                let labels = [("policy", &**policy)];
                metric.encode_family(&labels)?.encode_gauge(&of(status))?;
            }
        }
        for (name, help, of) in OF_ENDPOINTS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (policy, status) in &self.policies {
                for endpoint in &status.endpoints {
                    let labels = [("policy", &**policy), ("upstream", &*endpoint.url)];
                    if let Some(value) = of(endpoint) {
                        metric.encode_family(&labels)?.encode_gauge(&value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// One line of a counter.
fn count(metric: &mut MetricEncoder<'_>, labels: &impl EncodeLabelSet, value: u64) -> fmt::Result {
    let mut one = metric.encode_family(labels)?;
    one.encode_counter::<NoLabelSet, _, u64>(&value, None)
}
