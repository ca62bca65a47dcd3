//! What tests of more than one crate need: a model server with faults, conformance suites, a Python
//! environment with the real agent frameworks. A dev-dependency; it never ships.

pub mod left_processes;
pub mod model_server;
pub mod published_models;
pub mod python_environment;
pub mod store_conformance;
pub mod waiting;
