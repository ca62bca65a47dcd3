//! How long to wait before the next try.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

/// The wait before try number `tries + 1`: what the upstream asked for, else doubling from `first`;
/// never more than `longest`. `chance` in 0..1 spreads callers out, so that they do not come back together.
pub(crate) fn wait_before(
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

/// `Retry-After` in seconds or as a date, or the more exact `retry-after-ms`. A date that has passed is
/// no wait at all.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let seconds = |text: &str| -> Option<Duration> {
        let number: f64 = text.parse().ok().filter(|n: &f64| *n >= 0.0)?;
        Duration::try_from_secs_f64(number).ok()
    };
    if let Some(milliseconds) = text("retry-after-ms").and_then(seconds) {
        return Some(milliseconds / 1000);
    }
    let asked = text("retry-after")?;
    seconds(asked).or_else(|| {
        let date = httpdate::parse_http_date(asked).ok()?;
        Some(date.duration_since(now).unwrap_or_default())
    })
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
    fn retry_after_is_read_in_seconds_milliseconds_or_as_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(946_684_799);
        let read = |name: &'static str, text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(text));
            retry_after(&headers, now)
        };
        for (date, wait) in [
            ("Sat, 01 Jan 2000 00:00:09 GMT", 10),
            ("Fri, 31 Dec 1999 23:59:59 GMT", 0),
            ("Fri, 31 Dec 1999 23:00:00 GMT", 0),
            ("Saturday, 01-Jan-00 00:00:09 GMT", 10),
        ] {
            let wait = Some(Duration::from_secs(wait));
            assert_eq!(read("retry-after", date), wait, "{date}");
        }
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
            "Fri, 32 Dec 1999 23:59:59 GMT",
            "soon",
            "",
        ] {
            assert_eq!(read("retry-after", odd), None, "{odd}");
        }
    }
}
