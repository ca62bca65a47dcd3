//! What passes through the gateway, counted, in the text format that Prometheus reads.
//!
//! Written by hand: a dozen numbers in a format of three kinds of lines are not worth a library. Nothing
//! here is labelled with a rollout, and the number of labels is bounded.

mod page;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use self::page::{Histogram, Page};
use crate::policy::registry::{PolicyStatus, Registry};
use crate::policy::upstream::Health;

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

#[derive(Debug, Default)]
pub(crate) struct Metrics {
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
        let mut page = Page::default();
        let all = self.series.read().clone();
        self.render_counters(&mut page, &all);
        let histogram = |page: &mut Page, name, help, of: fn(&Series) -> &Histogram| {
            page.head(name, "histogram", help);
            for series in &all {
                of(series).render(page, name, &series.labels());
            }
        };
        histogram(
            &mut page,
            "request_duration_seconds",
            "From the arrival of a call to its last byte.",
            |series| &series.duration,
        );
        histogram(
            &mut page,
            "time_to_first_token_seconds",
            "From sending a call to the upstream to the first byte of its reply.",
            |series| &series.first_token,
        );
        histogram(
            &mut page,
            "queue_wait_seconds",
            "From the arrival of a call to sending it to the upstream.",
            |series| &series.queued,
        );
        render_policies(&mut page, registry);
        page.text
    }

    fn render_counters(&self, page: &mut Page, all: &[Arc<Series>]) {
        page.head(
            "requests_total",
            "counter",
            "Calls by how they ended: ok, or the code of the error.",
        );
        for series in all {
            let [dialect, upstream] = series.labels();
            for (outcome, count) in series.outcomes.lock().iter() {
                let labels = [dialect, upstream, ("outcome", outcome)];
                page.line("requests_total", &labels, *count);
            }
        }
        page.head(
            "tokens_total",
            "counter",
            "Tokens as the upstream counts them.",
        );
        for series in all {
            let [dialect, upstream] = series.labels();
            for (kind, count) in [
                ("input", &series.input_tokens),
                ("output", &series.output_tokens),
            ] {
                let labels = [dialect, upstream, ("kind", kind)];
                page.line("tokens_total", &labels, count.load(Ordering::Relaxed));
            }
        }
        page.head(
            "retries_total",
            "counter",
            "Tries of calls beyond the first, by the upstream that came last.",
        );
        for series in all {
            let count = series.retries.load(Ordering::Relaxed);
            page.line("retries_total", &series.labels(), count);
        }
        page.head(
            "replayed_total",
            "counter",
            "Calls with a known idempotency key that were given the earlier answer.",
        );
        let replayed = self.replayed.load(Ordering::Relaxed);
        page.line("replayed_total", &[], replayed);
        page.head(
            "spans_dropped_total",
            "counter",
            "Spans that could not be exported.",
        );
        let dropped = self.spans_dropped.load(Ordering::Relaxed);
        page.line("spans_dropped_total", &[], dropped);
    }
}

impl Series {
    fn labels(&self) -> [(&str, &str); 2] {
        [("dialect", &self.dialect), ("upstream", &self.upstream)]
    }
}

/// A name, what it is, and where it is found.
type Gauge = (&'static str, &'static str, fn(&PolicyStatus) -> u64);

fn render_policies(page: &mut Page, registry: &Registry) {
    let mut policies = vec![(String::new(), registry.run_policy().status())];
    for (name, served) in registry.named() {
        policies.push((name, served.status()));
    }
    let gauges: [Gauge; 5] = [
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
    for (name, help, of) in gauges {
        page.head(name, "gauge", help);
        for (policy, status) in &policies {
            page.line(name, &[("policy", policy)], of(status));
        }
    }
    for (name, help) in [
        ("upstream_in_flight", "Calls under way at an endpoint."),
        ("upstream_limit", "How many calls an endpoint may have now."),
        (
            "upstream_up",
            "0 while an endpoint is left alone because it fails.",
        ),
    ] {
        page.head(name, "gauge", help);
        for (policy, status) in &policies {
            for endpoint in &status.endpoints {
                let value = match name {
                    "upstream_in_flight" => Some(endpoint.in_flight),
                    "upstream_limit" => endpoint.limit,
                    _ => Some(u32::from(endpoint.health != Health::Open)),
                };
                let labels = [("policy", &**policy), ("upstream", &*endpoint.url)];
                if let Some(value) = value {
                    page.line(name, &labels, value.into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut page = Page::default();
        let all = metrics.series.read().clone();
        metrics.render_counters(&mut page, &all);
        for series in &all {
            series
                .duration
                .render(&mut page, "request_duration_seconds", &series.labels());
        }
        page.text
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
            r#"request_duration_seconds_bucket{dialect="chat_completions",upstream="http://a/v1",le="1"} 0"#,
            r#"request_duration_seconds_bucket{dialect="chat_completions",upstream="http://a/v1",le="2.5"} 3"#,
            r#"request_duration_seconds_sum{dialect="chat_completions",upstream="http://a/v1"} 3.600"#,
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
