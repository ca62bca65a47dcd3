//! One model call, from its body to its last byte and its record.
//!
//! `pipeline` is the way that calls in text and calls in token ids go; `prepared` is a call as its policy is asked,
//! `reply_stream` a stream on its way to the caller, `record` the record that is made however a call ends. `replay` gives
//! answers again, `deadline` gives up in time, `call_trace` notes where a call went, `error` is how it failed.

pub(crate) mod call_trace;
pub(crate) mod deadline;
pub(crate) mod error;
pub(crate) mod pipeline;
pub(crate) mod prepared;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod reply_stream;
pub(crate) mod sent_bytes;
