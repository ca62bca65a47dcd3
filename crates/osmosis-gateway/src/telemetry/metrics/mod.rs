//! What passes through the gateway, counted for Prometheus.
//!
//! Calls add to plain atomics, which cost a call next to nothing; `prometheus-client` reads them when somebody
//! asks for the page, and writes its text. Nothing here is labelled with a rollout, and the number of labels is
//! bounded.

mod histogram;
mod page;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use self::histogram::Histogram;
use self::page::Page;
pub(crate) use self::page::content_type;
use crate::policy::registry::{PolicyStatus, Registry};

/// More upstreams than this are counted together.
const MOST_UPSTREAMS: usize = 64;
/// What upstreams beyond that are called.
const OTHERS: &str = "others";

/// What a call adds to the numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallFigures<'a> {
    pub(crate) dialect: &'a str,
    pub(crate) upstream: &'a str,
    /// `ok`, or the code of the error.
    pub(crate) outcome: &'a str,
    pub(crate) duration_ms: u64,
    pub(crate) first_token_ms: Option<u64>,
    pub(crate) queued_ms: Option<u64>,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) retries: u64,
}

/// Gives lines in the format of Prometheus that belong on the same page.
#[derive(Clone)]
pub struct MoreMetrics(Arc<dyn Fn() -> String + Send + Sync>);

impl MoreMetrics {
    /// `lines` has whole lines, each with its end; it is asked whenever somebody reads the page.
    pub fn new(lines: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(lines))
    }
}

impl fmt::Debug for MoreMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MoreMetrics(..)")
    }
}

/// How a page ends.
const END: &str = "# EOF\n";

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// What else is on the page.
    pub(crate) more: OnceLock<MoreMetrics>,
    series: RwLock<Vec<Arc<Series>>>,
    replayed: AtomicU64,
    pub(crate) spans_dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Series {
    dialect: String,
    upstream: String,
    outcomes: Mutex<BTreeMap<String, u64>>,
    duration: Histogram,
    first_token: Histogram,
    queued: Histogram,
    input_tokens: AtomicU64,
    output_tokens: AtomicU64,
    retries: AtomicU64,
}

impl Metrics {
    pub(crate) fn count(&self, call: &CallFigures<'_>) {
        let series = self.series_of(call.dialect, call.upstream);
        {
            let mut outcomes = series.outcomes.lock();
            match outcomes.get_mut(call.outcome) {
                Some(count) => *count += 1,
                None => {
                    outcomes.insert(call.outcome.to_owned(), 1);
                }
            }
        }
        series.duration.observe(call.duration_ms);
        if let Some(wait) = call.first_token_ms {
            series.first_token.observe(wait);
        }
        if let Some(wait) = call.queued_ms {
            series.queued.observe(wait);
        }
        for (counter, more) in [
            (&series.input_tokens, call.input_tokens),
            (&series.output_tokens, call.output_tokens),
            (&series.retries, call.retries),
        ] {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// A call was answered with what an earlier one was answered with.
    pub(crate) fn count_replay(&self) {
        self.replayed.fetch_add(1, Ordering::Relaxed);
    }

    fn series_of(&self, dialect: &str, upstream: &str) -> Arc<Series> {
        let find = |all: &[Arc<Series>], upstream: &str| {
            all.iter()
                .find(|series| series.dialect == dialect && series.upstream == upstream)
                .map(Arc::clone)
        };
        if let Some(series) = find(&self.series.read(), upstream) {
            return series;
        }
        let mut all = self.series.write();
        let is_known = all.iter().any(|series| series.upstream == upstream);
        let mut upstreams: Vec<&str> = all.iter().map(|series| &*series.upstream).collect();
        upstreams.sort_unstable();
        upstreams.dedup();
        let upstream = if is_known || upstreams.len() < MOST_UPSTREAMS {
            upstream
        } else {
            OTHERS
        };
        if let Some(series) = find(&all, upstream) {
            return series;
        }
        let series = Arc::new(Series {
            dialect: dialect.to_owned(),
            upstream: upstream.to_owned(),
            outcomes: Mutex::default(),
            duration: Histogram::default(),
            first_token: Histogram::default(),
            queued: Histogram::default(),
            input_tokens: AtomicU64::new(0),
            output_tokens: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        });
        all.push(Arc::clone(&series));
        series
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn render(&self, registry: &Registry) -> String {
        let mut policies = vec![(String::new(), registry.run_policy().status())];
        for (name, served) in registry.named() {
            policies.push((name, served.status()));
        }
        let page = self.page(policies).text();
        match (self.more.get(), page.strip_suffix(END)) {
            (Some(more), Some(ours)) => format!("{ours}{}{END}", (more.0)()),
            (_, _) => page,
        }
    }

    fn page(&self, policies: Vec<(String, PolicyStatus)>) -> Page {
        Page {
            series: self.series.read().clone(),
            replayed: self.replayed.load(Ordering::Relaxed),
            spans_dropped: self.spans_dropped.load(Ordering::Relaxed),
            policies,
        }
    }
}

impl Series {
    fn labels(&self) -> [(&str, &str); 2] {
        [("dialect", &self.dialect), ("upstream", &self.upstream)]
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header};
    use osmosis_core::PolicyVersion;

    use super::*;
    use crate::policy::upstream::{EndpointLoad, Health};

    fn figures<'a>(upstream: &'a str, outcome: &'a str) -> CallFigures<'a> {
        CallFigures {
            dialect: "chat_completions",
            upstream,
            outcome,
            duration_ms: 1_200,
            first_token_ms: Some(80),
            queued_ms: Some(0),
            input_tokens: 10,
            output_tokens: 3,
            retries: 1,
        }
    }

    fn page(metrics: &Metrics) -> String {
        metrics.page(vec![]).text()
    }

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let metrics = Metrics::default();
        metrics.count(&figures("http://a/v1", "ok"));
        let status = PolicyStatus {
            model: "m".to_owned(),
            version: PolicyVersion(7),
            paused: true,
            in_flight: 1,
            held: 2,
            queued: 3,
            endpoints: vec![EndpointLoad {
                url: "http://a/v1".to_owned(),
                health: Health::Open,
                in_flight: 4,
                limit: Some(5),
                last_error: None,
                failed_tries: 0,
                rate_limited: 0,
                rests_ms: None,
            }],
        };
        insta::assert_snapshot!(metrics.page(vec![(String::new(), status)]).text());
    }

    #[test]
    fn a_scraper_gets_the_page_under_the_name_that_it_accepts() {
        let mut headers = HeaderMap::new();
        assert!(content_type(&headers).starts_with("text/plain; version=0.0.4"));
        let accepts = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        headers.insert(header::ACCEPT, HeaderValue::from_static(accepts));
        assert!(content_type(&headers).starts_with("application/openmetrics-text; version=1.0.0"));
    }

    #[test]
    fn calls_are_counted_by_dialect_upstream_and_outcome() {
        let metrics = Metrics::default();
        metrics.count(&figures("http://a/v1", "ok"));
        metrics.count(&figures("http://a/v1", "ok"));
        metrics.count(&figures("http://a/v1", "upstream_overloaded"));
        metrics.count(&figures("odd\"\\\n", "ok"));
        let page = page(&metrics);
        for line in [
            r#"requests_total{dialect="chat_completions",upstream="http://a/v1",outcome="ok"} 2"#,
            r#"requests_total{dialect="chat_completions",upstream="http://a/v1",outcome="upstream_overloaded"} 1"#,
            r#"requests_total{dialect="chat_completions",upstream="odd\"\\\n",outcome="ok"} 1"#,
            r#"tokens_total{dialect="chat_completions",upstream="http://a/v1",kind="output"} 9"#,
            r#"request_duration_seconds_bucket{le="1.0",dialect="chat_completions",upstream="http://a/v1"} 0"#,
            r#"request_duration_seconds_bucket{le="2.5",dialect="chat_completions",upstream="http://a/v1"} 3"#,
            r#"request_duration_seconds_sum{dialect="chat_completions",upstream="http://a/v1"} 3.6"#,
        ] {
            let line = format!("osmosis_gateway_{line}");
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }

    #[test]
    fn the_number_of_upstreams_is_bounded() {
        let metrics = Metrics::default();
        for n in 0..10 * MOST_UPSTREAMS {
            metrics.count(&figures(&format!("http://h{n}/v1"), "ok"));
        }
        assert_eq!(metrics.series.read().len(), MOST_UPSTREAMS + 1);
        let others = format!(
            "upstream=\"{OTHERS}\",outcome=\"ok\"}} {}",
            9 * MOST_UPSTREAMS
        );
        assert!(page(&metrics).contains(&others));
    }
}
