use std::fmt;
use std::ops::Bound;

/// The numbers a key accepts. Infinities and NaN are in no range.
#[derive(Debug, Clone, Copy)]
pub(super) struct NumberRange {
    low: Bound<f64>,
    high: Bound<f64>,
}

impl NumberRange {
    pub(super) const ANY: Self = Self {
        low: Bound::Unbounded,
        high: Bound::Unbounded,
    };
    pub(super) const POSITIVE: Self = Self {
        low: Bound::Excluded(0.0),
        high: Bound::Unbounded,
    };
    pub(super) const AT_LEAST_1: Self = Self {
        low: Bound::Included(1.0),
        high: Bound::Unbounded,
    };
    pub(super) const MORE_THAN_1: Self = Self {
        low: Bound::Excluded(1.0),
        high: Bound::Unbounded,
    };
    pub(super) const FROM_0_TO_1: Self = Self {
        low: Bound::Included(0.0),
        high: Bound::Included(1.0),
    };
    pub(super) const NOT_NEGATIVE: Self = Self {
        low: Bound::Included(0.0),
        high: Bound::Unbounded,
    };
    /// A part of something, the whole included.
    pub(super) const SHARE: Self = Self {
        low: Bound::Excluded(0.0),
        high: Bound::Included(1.0),
    };
    /// A part of something that leaves something over.
    pub(super) const TRUE_SHARE: Self = Self {
        low: Bound::Excluded(0.0),
        high: Bound::Excluded(1.0),
    };
    /// A deadline in seconds: up to a year, which every clock can add to now.
    pub(super) const SECONDS: Self = Self {
        low: Bound::Excluded(0.0),
        high: Bound::Included(31_536_000.0),
    };

    pub(super) fn contains(self, value: f64) -> bool {
        let above = match self.low {
            Bound::Included(low) => value >= low,
            Bound::Excluded(low) => value > low,
            Bound::Unbounded => true,
        };
        let below = match self.high {
            Bound::Included(high) => value <= high,
            Bound::Excluded(high) => value < high,
            Bound::Unbounded => true,
        };
        value.is_finite() && above && below
    }
}

impl fmt::Display for NumberRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = match self.low {
            Bound::Included(low) => Some(format!("at least {low}")),
            Bound::Excluded(low) => Some(format!("more than {low}")),
            Bound::Unbounded => None,
        };
        let high = match self.high {
            Bound::Included(high) => Some(format!("at most {high}")),
            Bound::Excluded(high) => Some(format!("less than {high}")),
            Bound::Unbounded => None,
        };
        match (low, high) {
            (Some(low), Some(high)) => write!(f, "{low} and {high}"),
            (Some(one), None) | (None, Some(one)) => write!(f, "{one} and finite"),
            (None, None) => f.write_str("finite"),
        }
    }
}
