//! Who may call, and what became of their calls: the key of one attempt of a rollout (`door`), what its calls said
//! before (`session`), what they suffered from servers (`suffered`), and the sums that can be seen meanwhile (`live`).
//!
//! It knows policies by their faults alone, and nothing of HTTP.

pub(crate) mod door;
pub(crate) mod live;
pub(crate) mod session;
pub(crate) mod suffered;
