use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// How many tokens were trained on at each staleness: 0 for those of the version that was updated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct StalenessHistogram(#[serde(deserialize_with = "by_staleness")] BTreeMap<u64, u64>);

/// Serde reads the keys of a map as texts when the struct around it is part of another one.
fn by_staleness<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<u64, u64>, D::Error> {
    let by_text = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let parsed = by_text
        .into_iter()
        .map(|(staleness, tokens)| Ok((staleness.parse()?, tokens)));
    parsed
        .collect::<Result<_, std::num::ParseIntError>>()
        .map_err(D::Error::custom)
}

impl StalenessHistogram {
    pub fn add(&mut self, staleness: u64, tokens: u64) {
        if tokens > 0 {
            *self.0.entry(staleness).or_default() += tokens;
        }
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Self) {
        for (staleness, tokens) in other.counts() {
            self.add(staleness, tokens);
        }
    }

    /// Each staleness that occurred and its tokens, from fresh to old.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0
            .iter()
            .map(|(staleness, tokens)| (*staleness, *tokens))
    }

    pub fn tokens(&self) -> u64 {
        self.0.values().sum()
    }

    /// Over the tokens; `None` without any.
    pub fn mean(&self) -> Option<f64> {
        let sum: f64 = self
            .counts()
            .map(|(age, tokens)| age as f64 * tokens as f64)
            .sum();
        let tokens = self.tokens();
        (tokens > 0).then(|| sum / tokens as f64)
    }

    pub fn max(&self) -> Option<u64> {
        self.0.last_key_value().map(|(staleness, _)| *staleness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_maximum_are_over_tokens() {
        let mut histogram = StalenessHistogram::default();
        assert_eq!((histogram.mean(), histogram.max()), (None, None));
        histogram.add(0, 6);
        histogram.add(3, 0);
        let mut other = StalenessHistogram::default();
        other.add(2, 1);
        other.add(0, 1);
        histogram.merge(&other);
        assert_eq!(histogram.counts().collect::<Vec<_>>(), [(0, 7), (2, 1)]);
        assert_eq!(
            (histogram.tokens(), histogram.mean(), histogram.max()),
            (8, Some(0.25), Some(2))
        );
    }

    #[test]
    fn the_mean_weighs_each_staleness_by_its_tokens() {
        let mut histogram = StalenessHistogram::default();
        histogram.add(1, 6);
        histogram.add(4, 2);
        assert_eq!(histogram.mean(), Some(1.75));
    }

    #[test]
    fn a_histogram_is_written_as_an_object_by_staleness() {
        let mut histogram = StalenessHistogram::default();
        histogram.add(1, 4);
        let text = serde_json::to_string(&histogram).unwrap();
        assert_eq!(text, r#"{"1":4}"#);
        assert_eq!(
            serde_json::from_str::<StalenessHistogram>(&text).unwrap(),
            histogram
        );
    }
}
