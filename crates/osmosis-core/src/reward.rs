use std::fmt;

use serde::{Deserialize, Serialize};

/// The largest reward, and the smallest with a minus. Squares of such numbers and their sums stay finite,
/// in 32 bits too, so that means, intervals and advantages are numbers. The Python SDK has the same limit.
pub const MAX_REWARD: f64 = 1e15;

/// A grade: always finite, and unless it was recorded long ago at most [`MAX_REWARD`] from 0.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "f64", into = "f64")]
pub struct Reward(f64);

/// A number that is no reward.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("a reward must be a finite number between -{MAX_REWARD:e} and {MAX_REWARD:e}, not `{0:?}`")]
pub struct RewardError(pub f64);

impl Reward {
    /// A reward that is given now.
    pub fn new(value: f64) -> Result<Self, RewardError> {
        if value.abs() <= MAX_REWARD {
            Ok(Self(value))
        } else {
            Err(RewardError(value))
        }
    }

    /// A reward as it was recorded or sent. Whoever sent it is told by [`Reward::new`] when it is too
    /// large; runs of older versions may hold such.
    pub fn recorded(value: f64) -> Result<Self, RewardError> {
        if value.is_finite() {
            Ok(Self(value))
        } else {
            Err(RewardError(value))
        }
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

/// The lowest and the highest reward there can be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "[f64; 2]", into = "[f64; 2]")]
pub struct RewardRange {
    low: f64,
    high: f64,
}

/// Two numbers that are no range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("the lower end must be below the upper end, and both finite, not `[{0}, {1}]`")]
pub struct RewardRangeError(pub f64, pub f64);

impl RewardRange {
    /// From 0 to 1.
    pub const UNIT: Self = Self {
        low: 0.0,
        high: 1.0,
    };

    pub fn new(low: f64, high: f64) -> Result<Self, RewardRangeError> {
        // An infinite or undefined end makes the width infinite or undefined too.
        if low < high && (high - low).is_finite() {
            Ok(Self { low, high })
        } else {
            Err(RewardRangeError(low, high))
        }
    }

    pub fn low(self) -> f64 {
        self.low
    }

    pub fn high(self) -> f64 {
        self.high
    }

    pub fn width(self) -> f64 {
        self.high - self.low
    }

    pub fn contains(self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether the value is the lowest or the highest there can be.
    pub fn is_end(self, value: f64) -> bool {
        self.contains(value) && !(self.low < value && value < self.high)
    }
}

impl TryFrom<[f64; 2]> for RewardRange {
    type Error = RewardRangeError;
    fn try_from([low, high]: [f64; 2]) -> Result<Self, RewardRangeError> {
        Self::new(low, high)
    }
}

impl From<RewardRange> for [f64; 2] {
    fn from(range: RewardRange) -> Self {
        [range.low, range.high]
    }
}

impl fmt::Display for RewardRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.low, self.high)
    }
}

impl TryFrom<f64> for Reward {
    type Error = RewardError;
    fn try_from(value: f64) -> Result<Self, RewardError> {
        Self::recorded(value)
    }
}

impl From<Reward> for f64 {
    fn from(reward: Reward) -> Self {
        reward.0
    }
}

impl fmt::Display for Reward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_are_small_enough_to_be_squared_and_added() {
        for value in [0.0, -0.5, MAX_REWARD, -MAX_REWARD, f64::MIN_POSITIVE] {
            assert!(Reward::new(value).is_ok(), "{value}");
        }
        for value in [1.7e308, -1.7e308, 1.1e15, f64::NAN, f64::INFINITY] {
            let error = Reward::new(value).unwrap_err().to_string();
            let expected =
                format!("a reward must be a finite number between -1e15 and 1e15, not `{value:?}`");
            assert_eq!(error, expected);
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the question is whether it fits"
        )]
        let squares = (MAX_REWARD * MAX_REWARD * 1e6) as f32;
        assert!(squares.is_finite());
        // What is recorded can be read.
        assert!(serde_json::from_str::<Reward>("1.7e308").is_ok());
        assert!(Reward::recorded(f64::NAN).is_err());
    }

    #[test]
    fn a_range_goes_up_and_is_finite() {
        let range = RewardRange::new(-1.0, 2.0).unwrap();
        assert_eq!(range.to_string(), "[-1, 2]");
        assert!(range.contains(-1.0) && range.contains(2.0));
        assert!(!range.contains(-1.001) && !range.contains(f64::NAN));
        assert!(range.is_end(-1.0) && range.is_end(2.0));
        assert!(!range.is_end(0.0) && !range.is_end(3.0) && !range.is_end(f64::NAN));
        for (low, high) in [
            (1.0, 1.0),
            (2.0, 1.0),
            (f64::NAN, 1.0),
            (0.0, f64::INFINITY),
            (f64::NEG_INFINITY, 0.0),
            (f64::MIN, f64::MAX),
        ] {
            assert!(RewardRange::new(low, high).is_err(), "{low} {high}");
        }
        let read: RewardRange = serde_json::from_str("[0, 2]").unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), "[0.0,2.0]");
        assert!(serde_json::from_str::<RewardRange>("[2, 0]").is_err());
    }
}
