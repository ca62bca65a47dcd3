use std::fmt;
use std::str::FromStr;

use camino::Utf8PathBuf;
use serde::{Serialize, Serializer};

use crate::id::is_path_segment;

/// The extensions a dataset found by name may have, in the order they are looked for.
pub const DATASET_EXTENSIONS: [&str; 3] = ["jsonl", "csv", "parquet"];

/// Which dataset a config means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatasetRef {
    /// A file, a pattern (`data/part-*.parquet`) or a folder that Hugging Face's `datasets` saved, relative to the
    /// workspace.
    Path(Utf8PathBuf),
    /// `data/NAME.{jsonl,csv,parquet}` of the workspace, or the folder `data/NAME`.
    Name(String),
}

/// Why a text names no dataset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatasetRefError {
    #[error("`{0}` contains control characters")]
    ControlCharacter(String),
    #[error("`{0}` names a folder")]
    Folder(String),
}

impl DatasetRefError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::ControlCharacter(_) => None,
            Self::Folder(_) => Some("name a `.jsonl`, `.csv` or `.parquet` file".to_owned()),
        }
    }
}

impl FromStr for DatasetRef {
    type Err = DatasetRefError;

    fn from_str(text: &str) -> Result<Self, DatasetRefError> {
        if text.chars().any(char::is_control) {
            return Err(DatasetRefError::ControlCharacter(
                text.escape_debug().to_string(),
            ));
        }
        if matches!(text.trim_end_matches('/'), "" | "." | "..") {
            return Err(DatasetRefError::Folder(text.to_owned()));
        }
        let extension = text.rsplit_once('.').map(|(_, extension)| extension);
        let looks_like_a_file = extension.is_some_and(|extension| {
            DATASET_EXTENSIONS.contains(&extension)
                || matches!(extension, "arrow" | "json" | "ndjson" | "gz" | "zst")
        });
        if is_path_segment(text) && !looks_like_a_file {
            Ok(Self::Name(text.to_owned()))
        } else {
            Ok(Self::Path(text.into()))
        }
    }
}

impl fmt::Display for DatasetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl Serialize for DatasetRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_a_name_and_everything_else_a_path() {
        for name in ["multiply", "gsm8k.v2", "train-1_b"] {
            assert_eq!(name.parse(), Ok(DatasetRef::Name(name.to_owned())));
        }
        for path in [
            "data/multiply.jsonl",
            "multiply.jsonl",
            "/abs/x.csv",
            "../x",
            "data/x",
            "a b",
            "data/",
            "data/gsm8k/train/",
            "part-*.parquet",
            "train.arrow",
        ] {
            assert_eq!(path.parse(), Ok(DatasetRef::Path(path.into())));
        }
    }

    #[test]
    fn a_folder_is_refused_with_the_files_that_would_do() {
        for folder in ["./", ".", ".."] {
            let error = folder.parse::<DatasetRef>().unwrap_err();
            assert_eq!(error, DatasetRefError::Folder(folder.to_owned()));
            let hint = error.hint().unwrap();
            assert!(hint.contains("`.jsonl`, `.csv` or `.parquet`"), "{hint}");
        }
        let error = "a\nb".parse::<DatasetRef>().unwrap_err();
        assert_eq!(error.to_string(), "`a\\nb` contains control characters");
        assert_eq!(error.hint(), None);
    }
}
