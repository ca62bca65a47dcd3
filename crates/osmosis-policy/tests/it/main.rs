//! The embedded policy from outside.

mod builtin;
mod checkpoints;
mod learner_agreement;
mod learner_models;
mod learner_refusals;
mod learner_updates;
mod logits;
mod sampling;
mod smollm2;
