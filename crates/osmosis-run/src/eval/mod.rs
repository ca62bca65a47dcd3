//! Evaluations: prices and budgets, the probe of model servers, what can be seen while one is under way.

pub mod budget;
pub mod check;
pub mod evaluation;
pub mod live_view;
pub mod money;
pub mod one_row;
pub mod plan;
pub mod prices;
pub mod probe;
pub mod rollout_server;
mod sharing;
pub mod trace;
