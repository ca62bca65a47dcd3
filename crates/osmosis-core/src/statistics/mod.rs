//! The numbers a run reports, each with its denominator said in words.
//!
//! ```
//! use osmosis_core::statistics::{pass_at_k, pass_hat_k};
//!
//! // Of 4 rollouts 2 passed: how likely is it that one of 2 passes, and that both do?
//! assert!((pass_at_k(4, 2, 2).unwrap() - 5.0 / 6.0).abs() < 1e-12);
//! assert!((pass_hat_k(4, 2, 2).unwrap() - 1.0 / 6.0).abs() < 1e-12);
//! ```

mod bootstrap;
mod comparison;
pub mod definition;
mod endpoint;
mod generator;
mod interval;
mod lost;
mod mcnemar;
mod normal;
mod outcome_counts;
mod paired;
mod pass;
mod permutation;
mod reward_numbers;
mod row_pair;
mod row_values;
mod run_comparison;
mod run_numbers;
mod run_tally;
mod spread;
mod student_t;
mod verdict;

pub use bootstrap::bootstrap_interval;
pub use comparison::{Comparison, PairedTest};
pub use endpoint::Endpoint;
pub use generator::Generator;
pub use interval::{Cluster, ClusteredMean, Interval};
pub use mcnemar::mcnemar_exact;
pub use outcome_counts::OutcomeCounts;
pub use paired::PairedDifference;
pub use pass::{pass_at_k, pass_hat_k};
pub use permutation::holm;
pub use reward_numbers::RewardNumbers;
pub use row_pair::{RowOutcome, RowPair};
pub use row_values::RowValues;
pub use run_comparison::{RewardBounds, RunComparison};
pub use run_numbers::{DurationNumbers, PhaseNumbers, RunNumbers};
pub use run_tally::{RolloutFact, RunTally};
pub use spread::Spread;
pub use student_t::student_t_975;
pub use verdict::{Finding, Verdict};

#[cfg(test)]
mod recorded_tests;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod verdict_simulation_tests;
