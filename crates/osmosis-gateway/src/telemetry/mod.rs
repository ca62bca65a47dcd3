//! What can be seen of calls from outside: numbers for Prometheus (`metrics`), spans for OpenTelemetry (`spans`).

pub(crate) mod metrics;
pub(crate) mod spans;
