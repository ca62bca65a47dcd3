//! The embedded policy from outside.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy knows tests by their attribute, and these have functions beside them"
)]

mod builtin;
mod checkpoints;
mod constrained;
mod learner_agreement;
mod learner_conformance;
mod learner_models;
mod learner_refusals;
mod learner_updates;
mod logits;
mod lora;
mod sampler_changes;
mod sampling;
mod smollm2;
