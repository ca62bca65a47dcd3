//! How long to wait before the next try.

use std::time::Duration;

use http::HeaderMap;

/// The wait before try number `tries + 1`: what the upstream asked for, else doubling from `first`;
/// never more than `longest`. `chance` in 0..1 spreads callers out, so that they do not come back together.
pub(super) fn wait_before(
    tries: u32,
    asked_for: Option<Duration>,
    first: Duration,
    longest: Duration,
    chance: f64,
) -> Duration {
    match asked_for {
        Some(asked) => asked.min(longest).mul_f64(1.0 + 0.1 * chance),
        None => first
            .saturating_mul(
                1_u32
                    .checked_shl(tries.saturating_sub(1))
                    .unwrap_or(u32::MAX),
            )
            .min(longest)
            .mul_f64(0.5 + 0.5 * chance),
    }
}

/// `Retry-After` in seconds, or the more exact `retry-after-ms`; the date form is not worth a parser.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| -> Option<f64> {
        let text = headers.get(name)?.to_str().ok()?;
        text.trim().parse().ok().filter(|n: &f64| *n >= 0.0)
    };
    let seconds = number("retry-after-ms")
        .map(|ms| ms / 1000.0)
        .or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(30);

    #[test]
    fn waits_double_up_to_the_longest() {
        let wait = |tries| wait_before(tries, None, FIRST, LONGEST, 1.0).as_millis();
        assert_eq!([wait(1), wait(2), wait(3)], [500, 1000, 2000]);
        assert_eq!(wait(20), 30_000);
        assert_eq!(wait(4_000_000), 30_000);
        assert_eq!(wait_before(1, None, FIRST, LONGEST, 0.0).as_millis(), 250);
    }

    #[test]
    fn what_the_upstream_asks_for_is_honoured_within_bounds() {
        let wait = |asked| wait_before(1, Some(Duration::from_secs(asked)), FIRST, LONGEST, 0.0);
        assert_eq!(wait(2), Duration::from_secs(2));
        assert_eq!(wait(9000), LONGEST);
    }

    #[test]
    fn retry_after_is_read_in_seconds_or_milliseconds() {
        let read = |name: &'static str, text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(text));
            retry_after(&headers)
        };
        assert_eq!(read("retry-after", "2"), Some(Duration::from_secs(2)));
        assert_eq!(read("retry-after", "0.5"), Some(Duration::from_millis(500)));
        assert_eq!(
            read("retry-after-ms", "20"),
            Some(Duration::from_millis(20))
        );
        for odd in [
            "-1",
            "NaN",
            "inf",
            "1e400",
            "Fri, 31 Dec 1999 23:59:59 GMT",
            "",
        ] {
            assert_eq!(read("retry-after", odd), None, "{odd}");
        }
    }
}
