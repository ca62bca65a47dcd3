//! Who may call, and what became of their calls: the key of one attempt of a rollout (`door`), what its calls said
//! before (`session`), which faults of servers they met (`fault_tally`), and the sums that can be seen meanwhile (`live`).
//!
//! It knows policies by their faults alone, and nothing of HTTP.

pub(crate) mod door;
pub(crate) mod fault_tally;
pub(crate) mod live;
pub(crate) mod session;
