use camino::Utf8Path;
use serde::Serialize;

use crate::DataError;

/// How a dataset is written. Every reader of one yields the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One JSON object on each line.
    Jsonl,
}

impl Format {
    /// The format that a file's name promises.
    pub fn of(path: &Utf8Path) -> Result<Self, DataError> {
        let extension = path.extension().unwrap_or("").to_ascii_lowercase();
        let format = match extension.as_str() {
            "jsonl" | "ndjson" => return Ok(Self::Jsonl),
            "csv" => "csv",
            "parquet" => "parquet",
            "gz" | "zst" => "compressed",
            _ => {
                return Err(DataError::UnknownFormat {
                    path: path.to_owned(),
                });
            }
        };
        Err(DataError::NotYet {
            path: path.to_owned(),
            format,
        })
    }
}
