//! What tests of more than one crate need: a model server with faults, the conformance suites of learners and of token engines, a policy
//! that is trained in no time, a PostgreSQL server, a Python environment with the real agent frameworks. A dev-dependency; it never ships.

pub mod learner_conformance;
pub mod left_processes;
pub mod model_server;
pub mod postgres_server;
pub mod published_models;
pub mod python_environment;
pub mod token_engines;
pub mod unigram;
pub mod waiting;
