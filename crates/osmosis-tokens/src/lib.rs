//! Token truth: tokenizers, chat templates, the call tree of a sample and the training rows it gives.
//!
//! Text is never re-tokenised to guess what was sampled. What the policy saw and sampled is kept as a
//! [`TokenRecord`] per call; the calls of a sample form a [`CallTree`], and each of its root-to-leaf
//! paths is one [`TrainingRow`].
//!
//! ```no_run
//! # fn main() -> Result<(), osmosis_tokens::TokensError> {
//! use osmosis_core::{PolicyVersion, SampleId};
//! use osmosis_tokens::{CallTree, ChatFormat};
//! use serde_json::{Map, json};
//!
//! let format = ChatFormat::load("checkpoint".into())?;
//! let mut tree = CallTree::default();
//! let question = json!({"role": "user", "content": "6 times 7?"});
//! let prompt = tree.plan(&format, &[question], None, &Map::new())?;
//!
//! // The policy sees `prompt.ids` and samples, say, one token:
//! let sampled = vec![42];
//! let reply = json!({"role": "assistant", "content": format.decode(&sampled, true)?});
//! let version = PolicyVersion(1);
//! let record = tree.finished(prompt, sampled, vec![-0.1], vec![version], 1.0, Some(&reply));
//!
//! let sample = SampleId::new("main").expect("an id");
//! let rows = CallTree::rows(&sample, &[record])?;
//! assert_eq!(rows[0].id, "main/0");
//! # Ok(())
//! # }
//! ```
//!
//! Beyond reading and writing the files of a [`ChatFormat`], nothing here does I/O.

mod chat_format;
mod closed_objects;
mod constraint;
mod continuation;
mod error;
mod fingerprint;
mod format_files;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod gguf;
mod hermes;
mod ids_index;
mod matching;
mod messages;
mod model_file;
mod python_json;
mod record;
mod reply;
mod rows;
mod structured;
mod supervised;
mod template;
mod token_bytes;
mod tool_support;
mod tree;
mod trial;

pub use chat_format::{ChatFormat, ChatFormatParts, ChatSettings};
pub use constraint::{TokenGrammars, TokenMatcher};
pub use error::{TokensError, TokensErrorKind};
pub use gguf::GgufVocabulary;
pub use matching::{MatchError, Unsampled, WhyUnsampled, match_sequences};
pub use model_file::{open_model_file, read_model_text};
pub use record::{Origin, RecordedConstraint, TokenRecord};
pub use reply::{ParsedReply, ToolCall};
pub use rows::{CallRow, TrainingRow};
pub use structured::StructuredReply;
pub use supervised::{SupervisedError, supervised_rows};
pub use tool_support::ToolSupport;
pub use tree::{CallTree, Given, PlannedPrompt};
pub use trial::{TemplateTrial, TemplateTrialRunner, try_templates_with};
