//! What tests of more than one crate need: a model server with faults, a Python
//! environment with the real agent frameworks. A dev-dependency; it never ships.

pub mod model_server;
pub mod published_models;
pub mod python_environment;
