//! What tokens cost. An unknown price or an unknown count makes an unknown cost, never 0.

use std::str::FromStr;

use osmosis_store::CallSummary;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reports::CostReport;
use crate::runs::Pinned;

const MILLION: f64 = 1e6;

/// An amount in US dollars: finite and not negative.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Dollars(f64);

impl Dollars {
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Dollars {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix('$').unwrap_or(text);
        match digits.parse::<f64>() {
            Ok(amount) if amount.is_finite() && amount >= 0.0 => Ok(Self(amount)),
            Ok(_) | Err(_) => Err("write an amount in US dollars, like `2.50`".to_owned()),
        }
    }
}

/// US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prices {
    prompt: f64,
    completion: f64,
    /// Of prompt tokens from a cache; without it they cost what others do.
    cached: Option<f64>,
}

impl Prices {
    /// For a million tokens each; what comes from a cache costs as much as the rest unless it is said.
    pub fn new(prompt: Dollars, completion: Dollars, cached: Option<Dollars>) -> Self {
        Self {
            prompt: prompt.get(),
            completion: completion.get(),
            cached: cached.map(Dollars::get),
        }
    }

    /// As given now, or else as the run was begun with.
    pub fn given_or_pinned(given: Option<Self>, pinned: &Pinned) -> Option<Self> {
        given.or(pinned.remembered.prices)
    }

    /// As a run remembers them.
    pub(crate) fn to_text(self) -> String {
        serde_json::to_string(&self).unwrap_or_default()
    }

    pub(crate) fn of_text(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// What these calls cost; `None` when the server did not tell their tokens.
    pub fn cost_of(&self, calls: &CallSummary) -> Option<f64> {
        let tokens = calls.prompt_tokens + calls.completion_tokens;
        if tokens == 0 && calls.model_calls > 0 {
            return None;
        }
        let cached = calls.cached_tokens.unwrap_or(0).min(calls.prompt_tokens);
        let fresh = calls.prompt_tokens - cached;
        let cost = fresh as f64 * self.prompt
            + cached as f64 * self.cached.unwrap_or(self.prompt)
            + calls.completion_tokens as f64 * self.completion;
        Some(cost / MILLION)
    }
}

/// What a run has cost so far, all attempts counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    prices: Prices,
    /// Of the policy's calls.
    policy: Option<f64>,
    /// Of a judge's calls, which have a price of their own.
    judge: Option<f64>,
}

impl Cost {
    /// `calls` are those of the policy.
    pub fn of(prices: Prices, calls: &CallSummary) -> Self {
        Self {
            prices,
            policy: prices.cost_of(calls),
            judge: None,
        }
    }

    pub fn total(&self) -> Option<f64> {
        Some(self.policy? + self.judge.unwrap_or(0.0))
    }

    pub fn report(&self) -> CostReport {
        CostReport {
            currency: "USD".to_owned(),
            total: self.total(),
            policy: self.policy,
            judge: self.judge,
            per_million_tokens: self.prices,
        }
    }
}

/// `$0.0042`, `$1.25`, `$1,234`.
pub fn dollars_text(amount: f64) -> String {
    if amount == 0.0 {
        "$0".to_owned()
    } else if amount < 0.01 {
        format!("${amount:.5}")
    } else if amount < 1.0 {
        format!("${amount:.4}")
    } else {
        format!("${amount:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(cached: Option<f64>) -> Prices {
        Prices {
            prompt: 2.0,
            completion: 10.0,
            cached,
        }
    }

    fn calls() -> CallSummary {
        CallSummary {
            model_calls: 3,
            prompt_tokens: 1_000_000,
            completion_tokens: 100_000,
            cached_tokens: Some(400_000),
            reasoning_tokens: Some(50_000),
            ..CallSummary::default()
        }
    }

    #[test]
    fn cached_tokens_have_a_price_of_their_own_and_reasoning_is_part_of_the_completion() {
        assert_eq!(prices(Some(0.5)).cost_of(&calls()), Some(1.2 + 0.2 + 1.0));
        assert_eq!(prices(None).cost_of(&calls()), Some(2.0 + 1.0));
    }

    #[test]
    fn calls_without_counted_tokens_have_no_known_cost() {
        let untold = CallSummary {
            model_calls: 3,
            ..CallSummary::default()
        };
        assert_eq!(prices(None).cost_of(&untold), None);
        assert_eq!(prices(None).cost_of(&CallSummary::default()), Some(0.0));
    }

    #[test]
    fn prices_are_remembered_by_the_run_and_replaced_by_what_is_said() {
        let mut pinned = Pinned::default();
        pinned.remembered.prices = Prices::of_text(&prices(None).to_text());
        assert_eq!(Prices::given_or_pinned(None, &pinned), Some(prices(None)));
        let said = Prices::new("1".parse().unwrap(), "$4".parse().unwrap(), None);
        let found = Prices::given_or_pinned(Some(said), &pinned).unwrap();
        assert_eq!((found.prompt, found.completion), (1.0, 4.0));
        pinned.remembered.prices = None;
        assert_eq!(Prices::given_or_pinned(None, &pinned), None);
    }

    #[test]
    fn an_amount_is_finite_and_not_negative() {
        for bad in ["", "-1", "inf", "nan", "two", "$"] {
            assert!(bad.parse::<Dollars>().is_err(), "{bad}");
        }
        assert_eq!("$2.5".parse(), Ok(Dollars(2.5)));
    }
}
