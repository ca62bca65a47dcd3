//! Who may call, and what became of their calls: the key of one attempt of a rollout (`rollout_session`), one request with it (`visit`), what its calls said
//! before (`call_history`), which faults of servers they met (`fault_tally`), and the sums that can be seen meanwhile (`live`).
//!
//! It knows policies by their faults alone, and nothing of HTTP.

pub(crate) mod call_history;
pub(crate) mod fault_tally;
pub(crate) mod live;
pub(crate) mod rollout_session;
pub(crate) mod visit;
