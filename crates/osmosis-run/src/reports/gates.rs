//! `--fail-under`: numbers that a complete run must reach.

use std::fmt;
use std::str::FromStr;

use osmosis_core::statistics::RunNumbers;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::figures::number;
use crate::{RunError, RunErrorKind};

/// One number and its limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    metric: Metric,
    at_least: f64,
}

/// A number of the report that can be too low.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metric {
    PassRate,
    PassRateLow,
    Reward,
    RewardMedian,
    RewardMin,
    RewardLow,
    PassAt(u32),
    PassHat(u32),
    /// Scored / all that ran.
    Scored,
}

/// How a gate turned out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GateResult {
    /// `pass_rate`, `pass@2`, …
    pub number: String,
    pub at_least: f64,
    /// `null` when the run does not have the number, which is below any limit.
    pub value: Option<f64>,
    pub holds: bool,
    /// Of a reward: rollouts that ran and have none, so that the number says nothing about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_reward: Option<u64>,
}

impl GateResult {
    /// One line for people.
    pub fn text(&self) -> String {
        let Self {
            number: name,
            at_least,
            value,
            holds,
            without_reward,
        } = self;
        let at_least = number(*at_least);
        let Some(value) = value else {
            return format!("{name} is not known, and {at_least} is asked for");
        };
        let word = if *holds { "reaches" } else { "is below" };
        let text = format!("{name} {} {word} {at_least}", number(*value));
        match without_reward {
            None | Some(0) => text,
            Some(failed) => format!(
                "{text}; rollouts that failed and have no reward: {failed} (`--fail-under scored=LIMIT` limits them)"
            ),
        }
    }
}

const KNOWN: &str = "`pass_rate`, `pass_rate.low`, `reward`, `reward.median`, `reward.min`, \
                     `reward.low`, `pass@K`, `pass^K` and `scored`";

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PassRate => f.write_str("pass_rate"),
            Self::PassRateLow => f.write_str("pass_rate.low"),
            Self::Reward => f.write_str("reward"),
            Self::RewardMedian => f.write_str("reward.median"),
            Self::RewardMin => f.write_str("reward.min"),
            Self::RewardLow => f.write_str("reward.low"),
            Self::PassAt(k) => write!(f, "pass@{k}"),
            Self::PassHat(k) => write!(f, "pass^{k}"),
            Self::Scored => f.write_str("scored"),
        }
    }
}

impl Metric {
    fn parse(name: &str) -> Option<Self> {
        let k = |text: &str| text.parse().ok().filter(|k| *k > 0);
        Some(match name {
            "pass_rate" => Self::PassRate,
            "pass_rate.low" => Self::PassRateLow,
            "reward" | "reward.mean" => Self::Reward,
            "reward.median" => Self::RewardMedian,
            "reward.min" => Self::RewardMin,
            "reward.low" => Self::RewardLow,
            "scored" => Self::Scored,
            other => match (other.strip_prefix("pass@"), other.strip_prefix("pass^")) {
                (Some(text), _) => Self::PassAt(k(text)?),
                (_, Some(text)) => Self::PassHat(k(text)?),
                (None, None) => return None,
            },
        })
    }

    fn is_share(self) -> bool {
        match self {
            Self::PassRate
            | Self::PassRateLow
            | Self::PassAt(_)
            | Self::PassHat(_)
            | Self::Scored => true,
            Self::Reward | Self::RewardMedian | Self::RewardMin | Self::RewardLow => false,
        }
    }

    /// Its value in the numbers of a run.
    fn of(self, numbers: &RunNumbers) -> Option<f64> {
        match self {
            Self::PassRate => numbers.pass_rate,
            Self::PassRateLow => numbers.pass_rate_ci95.map(|interval| interval.low),
            Self::Reward => numbers.reward.mean,
            Self::RewardMedian => numbers.reward.median,
            Self::RewardMin => numbers.reward.min,
            Self::RewardLow => numbers.reward.ci95.map(|interval| interval.low),
            Self::PassAt(k) => numbers.pass_at_k.get(&k).copied().flatten(),
            Self::PassHat(k) => numbers.pass_hat_k.get(&k).copied().flatten(),
            Self::Scored => {
                let (scored, ran) = (numbers.outcomes.scored, numbers.ran);
                (ran > 0).then(|| scored as f64 / ran as f64)
            }
        }
    }
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, limit) = text
            .split_once('=')
            .ok_or_else(|| "write NUMBER=LIMIT, like `pass_rate=0.8`".to_owned())?;
        let name = name.trim();
        let metric = Metric::parse(name).ok_or_else(|| {
            format!("`{name}` is no number that can be a gate; those are {KNOWN}")
        })?;
        let limit = limit.trim();
        let at_least = match limit.strip_suffix('%') {
            Some(percent) if metric.is_share() => percent.parse::<f64>().map(|p| p / 100.0),
            _ => limit.parse::<f64>(),
        };
        let at_least = at_least
            .ok()
            .filter(|limit| limit.is_finite())
            .ok_or_else(|| format!("`{limit}` is no limit; write a number, like `0.8`"))?;
        if metric.is_share() && !(0.0..=1.0).contains(&at_least) {
            return Err(format!(
                "`{metric}` is a share: its limit lies between 0 and 1"
            ));
        }
        Ok(Self { metric, at_least })
    }
}

impl Gate {
    /// Refuses a gate that no run with `n` rollouts for each row can have a number for.
    pub fn check_for(&self, n: u32) -> Result<(), RunError> {
        match self.metric {
            Metric::PassAt(k) | Metric::PassHat(k) if k > n => Err(RunError::usage(
                RunErrorKind::Usage,
                format!(
                    "--fail-under: `{}` needs {k} rollouts of each row, and the run has {n}",
                    self.metric
                ),
            )
            .hint(format!(
                "set `n = {k}` or more in [evaluation], or ask for a lower K"
            ))),
            _ => Ok(()),
        }
    }

    pub fn judge(&self, numbers: &RunNumbers) -> GateResult {
        let value = self.metric.of(numbers);
        // Rollouts that ran and were not scored.
        let failed = || numbers.ran.checked_sub(numbers.outcomes.scored);
        GateResult {
            number: self.metric.to_string(),
            at_least: self.at_least,
            value,
            // Sums of floats: what is printed as 0.8 shall reach 0.8.
            holds: value.is_some_and(|value| value >= self.at_least - 1e-12),
            without_reward: (!self.metric.is_share()).then(failed).flatten(),
        }
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::statistics::{Interval, RunTally};

    use super::*;

    fn numbers() -> RunNumbers {
        let mut numbers = RunTally::new(2).numbers();
        numbers.pass_rate = Some(0.8);
        numbers.pass_rate_ci95 = Some(Interval {
            low: 0.6,
            high: 1.0,
        });
        numbers.reward.mean = Some(0.5);
        numbers.reward.median = Some(1.0);
        numbers.reward.min = Some(-1.0);
        numbers.pass_at_k = [(1, Some(0.8)), (2, Some(0.9))].into();
        numbers.pass_hat_k = [(2, Some(0.7))].into();
        numbers.ran = 10;
        numbers.outcomes.scored = 9;
        numbers
    }

    #[test]
    fn gates_read_the_numbers_of_the_report() {
        for (gate, holds) in [
            ("pass_rate=0.8", true),
            ("pass_rate=80%", true),
            ("pass_rate=0.81", false),
            ("pass_rate.low=0.6", true),
            ("reward=0.5", true),
            ("reward.mean=0.51", false),
            ("reward.median=1", true),
            ("reward.min=0", false),
            ("reward.low=-5", false),
            ("pass@2=0.9", true),
            ("pass^2=0.71", false),
            ("pass@3=0", false),
            ("scored=90%", true),
            ("scored=0.91", false),
        ] {
            let result = gate.parse::<Gate>().unwrap().judge(&numbers());
            assert_eq!(result.holds, holds, "{result:?}");
        }
    }

    #[test]
    fn only_a_reward_leaves_failures_out() {
        let judged = |gate: &str| gate.parse::<Gate>().unwrap().judge(&numbers());
        assert_eq!(judged("reward=0.8").without_reward, Some(1));
        assert_eq!(judged("pass_rate=0.5").without_reward, None);
        assert_eq!(judged("scored=0.9").without_reward, None);
    }

    #[test]
    fn a_bad_gate_is_told_what_is_wrong() {
        for (gate, complaint) in [
            ("pass_rate", "write NUMBER=LIMIT"),
            ("pas_rate=0.8", "`pas_rate` is no number"),
            ("pass_rate=high", "`high` is no limit"),
            ("pass_rate=nan", "`nan` is no limit"),
            ("pass_rate=80", "is a share"),
            ("reward=80%", "`80%` is no limit"),
            ("pass@0=0.5", "`pass@0` is no number"),
        ] {
            let error = gate.parse::<Gate>().unwrap_err();
            assert!(error.contains(complaint), "{gate}: {error}");
        }
        let gate: Gate = "pass@4=0.5".parse().unwrap();
        assert!(gate.check_for(4).is_ok());
        assert!(gate.check_for(3).is_err());
    }

    fn result(name: &str, value: Option<f64>, at_least: f64) -> GateResult {
        GateResult {
            number: name.to_owned(),
            at_least,
            value,
            holds: value.is_some_and(|value| value >= at_least),
            without_reward: None,
        }
    }

    #[test]
    fn a_reward_that_leaves_failures_out_says_so() {
        let reward = GateResult {
            without_reward: Some(86),
            ..result("reward", Some(0.9), 0.8)
        };
        assert_eq!(
            reward.text(),
            "reward 0.9 reaches 0.8; rollouts that failed and have no reward: 86 (`--fail-under scored=LIMIT` limits them)"
        );
        assert_eq!(
            result("pass_rate", Some(0.5), 0.5).text(),
            "pass_rate 0.5 reaches 0.5"
        );
        assert_eq!(
            result("scored", Some(154.0 / 240.0), 0.9).text(),
            "scored 0.642 is below 0.9"
        );
        assert_eq!(
            result("pass@2", None, 0.9).text(),
            "pass@2 is not known, and 0.9 is asked for"
        );
    }
}
