//! The numbers a run reports, each with its denominator said in words.
//!
//! ```
//! use osmosis_core::statistics::{pass_at_k, pass_hat_k};
//!
//! // Of 4 rollouts 2 passed: how likely is it that one of 2 passes, and that both do?
//! assert!((pass_at_k(4, 2, 2).unwrap() - 5.0 / 6.0).abs() < 1e-12);
//! assert!((pass_hat_k(4, 2, 2).unwrap() - 1.0 / 6.0).abs() < 1e-12);
//! ```

pub mod definition;
mod interval;
mod outcome_counts;
mod pass;
mod run_numbers;
mod spread;
mod student_t;

pub use interval::{Interval, clustered_interval};
pub use outcome_counts::OutcomeCounts;
pub use pass::{pass_at_k, pass_hat_k};
pub use run_numbers::{
    DurationNumbers, PhaseNumbers, RewardNumbers, RolloutFact, RunNumbers, RunTally,
};
pub use spread::Spread;
pub use student_t::student_t_975;
