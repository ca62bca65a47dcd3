//! Datasets in: rows of a file, one at a time, checked and turned into prompt, label and metadata.
//! Exports out: rollouts with their samples, as files that other programs open.
//!
//! Never holds a whole file, and knows nothing of how rollouts run. A row is either sound or an
//! error with its line; which of the two says nothing about the rows after it. Whatever the format,
//! a row is the same JSON object, and one judge reads it.
//!
//! ```
//! use osmosis_core::JsonText;
//! use osmosis_data::Row;
//!
//! let body = JsonText::parse(r#"{"user_prompt": "6 * 7?", "ground_truth": 42}"#)?;
//! let row = Row::from_body(0, 1, &body)?;
//! assert_eq!(row.prompt[0]["content"], "6 * 7?");
//! assert_eq!(row.label.as_deref(), Some("42"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrow;
mod column_names;
mod content_digest;
pub mod conversation;
mod csv;
mod dataset;
mod decompress;
mod error;
pub mod export;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod json_string;
mod jsonl;
mod missing;
mod parquet;
mod pattern;
mod report;
mod resolve;
mod row;
mod saved_folder;
mod table;

pub use arrow::ArrowRows;
pub use content_digest::{ContentDigest, RowContent};
pub use csv::CsvRows;
pub use dataset::{Dataset, Rows};
pub use error::{DataError, DataErrorKind, RowError, RowProblem};
pub use format::{Compression, Format};
pub use jsonl::{JsonlRows, MAX_ROW_BYTES};
pub use parquet::ParquetRows;
pub use report::{MAX_SHOWN_ERRORS, Report, ReportMode, validate};
pub use resolve::resolve;
pub use row::{Row, RowMode, Taking};
pub use table::ColumnProblem;
