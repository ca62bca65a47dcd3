//! Runs that serve, as `osmosis-run` has them live: what they prepare, drive and leave behind.

mod served_training;
mod serving;
mod state_key;
mod user_side;

pub use served_training::{ServedTraining, TrainerAddress};
pub use serving::{ServeEnd, ServerAddress, Serving, ServingLimits};
pub use state_key::load_state_key;
pub use user_side::{UserSide, UserSideRequest};
