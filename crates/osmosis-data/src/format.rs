use camino::Utf8Path;
use serde::Serialize;

use crate::DataError;

/// How a dataset is written. Every reader of one yields the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One JSON object on each line.
    Jsonl,
    /// A header, and cells that are text.
    Csv,
    /// Columns with types.
    Parquet,
    /// Columns with types, as Hugging Face's `datasets` saves them.
    Arrow,
}

impl Format {
    /// The format that a file's name promises.
    pub fn of(path: &Utf8Path) -> Result<Self, DataError> {
        let unknown = || DataError::UnknownFormat {
            path: path.to_owned(),
        };
        let compression = Compression::of(path);
        let named = match compression {
            Some(_) => Utf8Path::new(path.file_stem().unwrap_or("")),
            None => path,
        };
        let extension = named.extension().unwrap_or("").to_ascii_lowercase();
        match (extension.as_str(), compression) {
            ("jsonl" | "ndjson", _) => Ok(Self::Jsonl),
            ("csv", _) => Ok(Self::Csv),
            // Parquet compresses inside, and is read out of order.
            ("parquet", None) => Ok(Self::Parquet),
            ("arrow", None) => Ok(Self::Arrow),
            _ => Err(unknown()),
        }
    }
}

impl Format {
    /// What its rows are in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Jsonl => "JSON lines",
            Self::Csv => "CSV",
            Self::Parquet => "parquet",
            Self::Arrow => "Arrow",
        }
    }
}

/// What a whole file was compressed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// The compression that a file's name promises.
    pub fn of(path: &Utf8Path) -> Option<Self> {
        let extension = path.extension()?.to_ascii_lowercase();
        match extension.as_str() {
            "gz" => Some(Self::Gzip),
            "zst" => Some(Self::Zstd),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}
