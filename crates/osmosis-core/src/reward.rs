use std::fmt;

use serde::{Deserialize, Serialize};

/// A grade: always finite.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Reward(f64);

/// A number that is no reward.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("a reward must be a finite number, not `{0}`")]
pub struct RewardError(pub f64);

impl Reward {
    pub fn new(value: f64) -> Result<Self, RewardError> {
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

impl TryFrom<f64> for Reward {
    type Error = RewardError;
    fn try_from(value: f64) -> Result<Self, RewardError> {
        Self::new(value)
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
