use std::collections::BTreeMap;

use crate::PolicyVersion;

use super::histogram::StalenessHistogram;

/// How many tokens of a rollout each version of the policy sampled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenVersions(BTreeMap<PolicyVersion, u64>);

/// From the versions of a training row; tokens that the policy did not sample have none.
impl FromIterator<Option<PolicyVersion>> for TokenVersions {
    fn from_iter<I: IntoIterator<Item = Option<PolicyVersion>>>(versions: I) -> Self {
        let mut counts = BTreeMap::new();
        for version in versions.into_iter().flatten() {
            *counts.entry(version).or_default() += 1;
        }
        Self(counts)
    }
}

impl TokenVersions {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// How much of a rollout may be trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// All of its sampled tokens, be it none.
    Fresh,
    PartlyStale,
    /// None of them.
    Stale,
}

/// The versions whose tokens may be trained on: the current one and those before it that are not too old.
/// Tokens from the future, which a resume from an older checkpoint may find, are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Of the weights that are about to be updated.
    pub version: PolicyVersion,
    pub max_staleness: u32,
}

impl Window {
    /// How many versions ago; `None` when it is not in the window.
    pub fn staleness(&self, sampled: PolicyVersion) -> Option<u64> {
        let age = self.version.0.checked_sub(sampled.0)?;
        (age <= u64::from(self.max_staleness)).then_some(age)
    }

    /// Takes the tokens outside the window out of a row's loss mask; returns how many it took out.
    pub fn mask(&self, versions: &[Option<PolicyVersion>], loss_mask: &mut [bool]) -> u64 {
        let mut masked = 0;
        for (version, trained) in versions.iter().zip(loss_mask) {
            if *trained && version.is_some_and(|version| self.staleness(version).is_none()) {
                *trained = false;
                masked += 1;
            }
        }
        masked
    }

    pub(super) fn freshness(&self, tokens: &TokenVersions) -> Freshness {
        let fresh = |version: &PolicyVersion| self.staleness(*version).is_some();
        if tokens.0.keys().all(fresh) {
            Freshness::Fresh
        } else if tokens.0.keys().any(fresh) {
            Freshness::PartlyStale
        } else {
            Freshness::Stale
        }
    }

    /// Counts the tokens in the window by their staleness; returns how many are outside.
    pub(super) fn count(&self, tokens: &TokenVersions, into: &mut StalenessHistogram) -> u64 {
        let mut outside = 0;
        for (version, count) in &tokens.0 {
            match self.staleness(*version) {
                Some(age) => into.add(age, *count),
                None => outside += count,
            }
        }
        outside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window {
        version: PolicyVersion(5),
        max_staleness: 2,
    };

    fn versions(numbers: &[i64]) -> Vec<Option<PolicyVersion>> {
        let version = |number: &i64| u64::try_from(*number).ok().map(PolicyVersion);
        numbers.iter().map(version).collect()
    }

    #[test]
    fn a_token_counts_while_its_version_is_in_the_window() {
        let ages: Vec<_> = (2..=6)
            .map(|v| WINDOW.staleness(PolicyVersion(v)))
            .collect();
        assert_eq!(ages, [None, Some(2), Some(1), Some(0), None]);
    }

    #[test]
    fn masking_takes_out_stale_tokens_and_nothing_else() {
        let mut mask = [false, true, true, false, true, true];
        let masked = WINDOW.mask(&versions(&[-1, 2, 3, 1, 5, 6]), &mut mask);
        assert_eq!(masked, 2);
        assert_eq!(mask, [false, false, true, false, true, false]);
    }

    #[test]
    fn freshness_is_that_of_all_sampled_tokens() {
        let freshness = |numbers: &[i64]| {
            let tokens: TokenVersions = versions(numbers).into_iter().collect();
            WINDOW.freshness(&tokens)
        };
        assert_eq!(freshness(&[-1, -1]), Freshness::Fresh);
        assert_eq!(freshness(&[-1, 3, 5]), Freshness::Fresh);
        assert_eq!(freshness(&[2, 3]), Freshness::PartlyStale);
        assert_eq!(freshness(&[0, 2, 6]), Freshness::Stale);
    }
}
