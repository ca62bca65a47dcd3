//! `--fail-under`: numbers that a complete run must reach.

use std::fmt;
use std::str::FromStr;

use osmosis_run::{RunError, RunErrorKind};
use serde_json::{Value, json};

use crate::error::Exit;
use crate::figures::number;
use crate::output::Output;

/// One number and its limit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gate {
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
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GateResult {
    gate: Gate,
    /// `None` when the run does not have the number.
    value: Option<f64>,
    /// Of a reward: rollouts that ran and have none, so that the number says nothing about them.
    failed: Option<u64>,
}

const KNOWN: &str = "`pass_rate`, `pass_rate.low`, `reward`, `reward.median`, `reward.min`, \
                     `reward.low`, `pass@K`, `pass^K` and `scored`";

/// Numbers of a run that is not complete may still move.
pub(crate) const NOT_JUDGED: &str = "--fail-under: not judged, the run is not complete";

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

    /// Its value in the numbers of a run, as `metrics.json` has them.
    fn of(self, numbers: &Value) -> Option<f64> {
        match self {
            Self::PassRate => &numbers["pass_rate"],
            Self::PassRateLow => &numbers["pass_rate_ci95"][0],
            Self::Reward => &numbers["reward"]["mean"],
            Self::RewardMedian => &numbers["reward"]["median"],
            Self::RewardMin => &numbers["reward"]["min"],
            Self::RewardLow => &numbers["reward"]["ci95"][0],
            Self::PassAt(k) => &numbers["pass_at_k"][k.to_string()],
            Self::PassHat(k) => &numbers["pass_hat_k"][k.to_string()],
            Self::Scored => {
                let scored = numbers["outcomes"]["scored"].as_f64()?;
                let ran = numbers["ran"].as_f64().filter(|ran| *ran > 0.0)?;
                return Some(scored / ran);
            }
        }
        .as_f64()
    }
}

/// Rollouts that ran and were not scored.
fn failed(numbers: &Value) -> Option<u64> {
    let (ran, scored) = (&numbers["ran"], &numbers["outcomes"]["scored"]);
    ran.as_u64()?.checked_sub(scored.as_u64()?)
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
    pub(crate) fn check_for(&self, n: u32) -> Result<(), RunError> {
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

    pub(crate) fn judge(&self, numbers: &Value) -> GateResult {
        GateResult {
            gate: self.clone(),
            value: self.metric.of(numbers),
            failed: (!self.metric.is_share()).then(|| failed(numbers)).flatten(),
        }
    }
}

/// A complete run with its numbers and what was asked of them.
#[derive(Debug)]
pub(crate) struct Judged {
    results: Vec<GateResult>,
    numbers: Value,
}

impl Judged {
    /// `numbers` is the resource that is told in JSON mode.
    pub(crate) fn of(gates: &[Gate], mut numbers: Value) -> Self {
        let results: Vec<GateResult> = gates.iter().map(|gate| gate.judge(&numbers)).collect();
        if let (Value::Object(map), false) = (&mut numbers, results.is_empty()) {
            let told: Vec<Value> = results.iter().map(GateResult::to_json).collect();
            map.insert("gates".to_owned(), json!(told));
        }
        Self { results, numbers }
    }

    pub(crate) fn numbers(&self) -> &Value {
        &self.numbers
    }

    /// Says how each gate turned out.
    pub(crate) fn tell(&self, output: &Output) -> Exit {
        for result in &self.results {
            output.note(format_args!("--fail-under: {result}"));
        }
        if self.results.iter().all(GateResult::holds) {
            Exit::Ok
        } else {
            Exit::Gate
        }
    }

    /// Tells the end of a complete run; `status` when nothing is below.
    pub(crate) fn conclude(&self, status: &str, output: &Output) -> Exit {
        let exit = self.tell(output);
        let status = if exit == Exit::Gate {
            "below_gate"
        } else {
            status
        };
        output.operation(status, &self.numbers);
        exit
    }
}

impl GateResult {
    /// A number that is not there is below any limit.
    pub(crate) fn holds(&self) -> bool {
        // Sums of floats: what is printed as 0.8 shall reach 0.8.
        self.value
            .is_some_and(|value| value >= self.gate.at_least - 1e-12)
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut told = json!({
            "number": self.gate.metric.to_string(),
            "at_least": self.gate.at_least,
            "value": self.value,
            "holds": self.holds(),
        });
        if let (Some(failed), Value::Object(told)) = (self.failed, &mut told) {
            told.insert("without_reward".to_owned(), json!(failed));
        }
        told
    }
}

impl fmt::Display for GateResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gate { metric, at_least } = &self.gate;
        match self.value {
            Some(value) => {
                let word = if self.holds() { "reaches" } else { "is below" };
                write!(f, "{metric} {} {word} {}", number(value), number(*at_least))?;
                match self.failed {
                    None | Some(0) => Ok(()),
                    Some(failed) => write!(
                        f,
                        "; rollouts that failed and have no reward: {failed} (`--fail-under scored=LIMIT` limits them)"
                    ),
                }
            }
            None => write!(
                f,
                "{metric} is not known, and {} is asked for",
                number(*at_least)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_read_the_numbers_of_the_report() {
        let numbers = json!({
            "pass_rate": 0.8, "pass_rate_ci95": [0.6, 1.0],
            "reward": {"mean": 0.5, "median": 1.0, "min": -1.0, "ci95": null},
            "pass_at_k": {"1": 0.8, "2": 0.9}, "pass_hat_k": {"2": 0.7},
            "ran": 10, "outcomes": {"scored": 9},
        });
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
            let result = gate.parse::<Gate>().unwrap().judge(&numbers);
            assert_eq!(result.holds(), holds, "{result}");
        }
    }

    #[test]
    fn a_reward_that_leaves_failures_out_says_so() {
        let numbers = json!({
            "pass_rate": 0.5, "reward": {"mean": 0.9}, "ran": 240, "outcomes": {"scored": 154},
        });
        let judged = |gate: &str| gate.parse::<Gate>().unwrap().judge(&numbers);
        assert_eq!(
            judged("reward=0.8").to_string(),
            "reward 0.9 reaches 0.8; rollouts that failed and have no reward: 86 (`--fail-under scored=LIMIT` limits them)"
        );
        assert_eq!(judged("reward=0.8").to_json()["without_reward"], 86);
        assert_eq!(
            judged("pass_rate=0.5").to_string(),
            "pass_rate 0.5 reaches 0.5"
        );
        assert_eq!(
            judged("pass_rate=0.5").to_json()["without_reward"],
            Value::Null
        );
        assert_eq!(
            judged("scored=0.9").to_string(),
            "scored 0.642 is below 0.9"
        );
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
}
