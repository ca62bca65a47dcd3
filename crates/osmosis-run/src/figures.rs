//! Numbers, durations and times as people write them.

use osmosis_core::statistics::Interval;

pub fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// At most three decimals.
pub fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `600 B`, `2.3 MB`.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub fn ms_text(ms: f64) -> String {
    if ms < 0.5 {
        "<1 ms".to_owned()
    } else if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else {
        duration_text(ms / 1000.0)
    }
}

/// Short times in milliseconds, longer ones as [`duration_text`].
pub fn seconds_text(seconds: f64) -> String {
    ms_text(1000.0 * seconds)
}

/// `35 s`, `3 m 20 s`, `2 h 5 m`.
pub fn duration_text(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{seconds:.1} s");
    }
    if seconds < 90.0 {
        return format!("{seconds:.0} s");
    }
    let minutes = (seconds / 60.0).floor();
    if minutes < 90.0 {
        return format!("{minutes:.0} m {:.0} s", seconds - 60.0 * minutes);
    }
    let hours = (minutes / 60.0).floor();
    format!("{hours:.0} h {:.0} m", minutes - 60.0 * hours)
}

/// A time as people write it, in UTC.
pub fn time_text(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(
        |_| "?".to_owned(),
        |time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
    )
}

/// Nothing where all rows agree: the estimate of the spread is then 0, which is no certainty.
pub fn interval(interval: Option<Interval>, show: fn(f64) -> String) -> String {
    interval
        .filter(|i| i.low < i.high)
        .map_or_else(String::new, |i| {
            format!(" [{}, {}]", show(i.low), show(i.high))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(12), "12");
        assert_eq!(number(0.5), "0.5");
        assert_eq!(number(1.0), "1");
        assert_eq!(number(-0.12345), "-0.123");
        assert_eq!(percent(0.8333), "83.3%");
        assert_eq!(duration_text(3.21), "3.2 s");
        assert_eq!(duration_text(200.0), "3 m 20 s");
        assert_eq!(duration_text(7500.0), "2 h 5 m");
    }
}
