//! Training runs: what is checked before one begins, and which rows are held out.

mod held_out;
mod learning_run;
pub mod outside_model;
mod overlap;
pub mod plan;
mod sharing;
pub mod supervised_plan;
pub mod supervised_training;
pub mod torch;
mod trained_model;
pub mod training;

pub use held_out::{HeldOutRows, held_out_rows, training_of, with_moved_rows};
pub use trained_model::TrainedModel;
