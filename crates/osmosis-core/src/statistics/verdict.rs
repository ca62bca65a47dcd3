use serde::{Deserialize, Serialize};

/// What a comparison comes to, in one of four words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Better,
    Worse,
    NoDifference,
    Inconclusive,
}

/// The verdict with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Every compared row came out the same.
    Identical,
    NoDifference,
    Better,
    Worse,
    /// Pass rate and reward moved in opposite directions.
    Mixed,
    /// One run fails more often, and the pass rates do not differ.
    FailuresDiffer,
    /// The rewards differ, but not the same rollouts have one in both runs; the pass rates do not differ.
    RewardNotComparable,
    /// Rollouts that failed outside the agent or were cancelled could turn the verdict.
    LostRollouts,
    NothingToCompare,
}

impl Finding {
    pub fn verdict(self) -> Verdict {
        match self {
            Self::Better => Verdict::Better,
            Self::Worse => Verdict::Worse,
            Self::Identical | Self::NoDifference => Verdict::NoDifference,
            Self::Mixed
            | Self::FailuresDiffer
            | Self::RewardNotComparable
            | Self::LostRollouts
            | Self::NothingToCompare => Verdict::Inconclusive,
        }
    }
}
