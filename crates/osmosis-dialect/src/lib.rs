//! The protocols in which agents talk to models: Chat Completions and Responses of OpenAI, Messages of
//! Anthropic, and Completions, as pure functions over bytes.
//!
//! It reads and amends requests ([`ChatRequest`]), translates a call of another dialect to chat and its
//! answer back ([`to_chat`], [`Translator`]), takes server-sent events apart ([`sse`]), changes JSON without
//! touching its other bytes ([`json_edit`]), finds usage and ids in replies, and writes errors in the words of each dialect
//! ([`ErrorShape`]). It never awaits, opens nothing, reads no clock, draws no random number, and knows no
//! policies.
//!
//! ```
//! use osmosis_dialect::{Dialect, OutputLimit, ReplyStamp, to_chat};
//!
//! let call = r#"{"model": "m", "input": "Hello."}"#;
//! let translated = to_chat(Dialect::Responses, call, OutputLimit::MaxTokens, ReplyStamp::default()).unwrap();
//! assert_eq!(translated.request, r#"{"model":"m","messages":[{"role":"user","content":"Hello."}]}"#);
//! ```

mod chat;
mod completion;
mod completions;
mod conversation;
mod dialect;
mod error_shape;
mod event_writer;
mod fields;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod json_edit;
mod messages;
mod model_list;
mod output_limit;
#[cfg(test)]
mod properties;
mod rejection;
#[cfg(test)]
mod replies;
mod reply_id;
mod request;
mod responses;
mod sampling;
mod splice;
pub mod sse;
mod token_request;
mod translation;
mod usage;

pub use completion::completion_to_sse;
pub use dialect::Dialect;
pub use error_shape::ErrorShape;
pub use model_list::model_list;
pub use output_limit::OutputLimit;
pub use rejection::RequestError;
pub use reply_id::reply_id;
pub use request::{ChatRequest, checked, model_in};
pub use sampling::Sampling;
pub use token_request::TokenRequest;
pub use translation::{ReplyStamp, Translated, Translator, Unreadable, refusal_of, to_chat};
pub use usage::{Usage, usage_in};
