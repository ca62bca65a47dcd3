use serde::Serialize;

use super::reader::Reader;
use super::{ConfigProblem, error::listed};

/// `[dataset]`: how the files that `dataset` and `eval_dataset` name are read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DatasetSection {
    pub columns: DatasetColumns,
}

/// `[dataset.columns]`: what the file calls the columns that we read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DatasetColumns {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ground_truth: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
}

/// What becomes of a column of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnUse<'a> {
    /// It keeps its name.
    Kept(&'a str),
    /// It is read as this column of ours.
    ReadAs(&'static str),
    /// Another column is read under its name, so it is left out.
    LeftOut,
}

/// Why a mapping can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ColumnsError {
    #[error("unknown column `{0}`")]
    Unknown(String),
    #[error("`{column}` is read as `{first}` already")]
    Twice { column: String, first: &'static str },
    #[error("the name of a column must not be empty")]
    Empty,
}

impl ColumnsError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown(_) => Some(format!("the columns are {}", listed(COLUMNS, "and"))),
            Self::Twice { .. } => Some("name another column of the file".to_owned()),
            Self::Empty => None,
        }
    }
}

/// The columns that we read, as `[dataset.columns]` names them.
pub const COLUMNS: [&str; 4] = ["user_prompt", "ground_truth", "system_prompt", "metadata"];

impl DatasetSection {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl DatasetColumns {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the file calls a column of ours, when the mapping names it.
    pub fn of(&self, column: &str) -> Option<&str> {
        match column {
            "user_prompt" => self.user_prompt.as_deref(),
            "ground_truth" => self.ground_truth.as_deref(),
            "system_prompt" => self.system_prompt.as_deref(),
            "metadata" => self.metadata.as_deref(),
            _ => None,
        }
    }

    /// Every column that the mapping names: ours, and the file's.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        COLUMNS
            .into_iter()
            .filter_map(|column| Some((column, self.of(column)?)))
    }

    /// What becomes of a column that the file calls this.
    pub fn use_of<'a>(&self, column: &'a str) -> ColumnUse<'a> {
        if let Some((ours, _)) = self.named().find(|(_, theirs)| *theirs == column) {
            return ColumnUse::ReadAs(ours);
        }
        // `label` is the other name of `ground_truth`.
        let ours = if column == "label" {
            "ground_truth"
        } else {
            column
        };
        match self.of(ours) {
            Some(_) => ColumnUse::LeftOut,
            None => ColumnUse::Kept(column),
        }
    }

    /// Adds that the file calls `ours` by the name `theirs`.
    pub fn set(&mut self, ours: &str, theirs: &str) -> Result<(), ColumnsError> {
        if theirs.trim().is_empty() {
            return Err(ColumnsError::Empty);
        }
        if let Some((first, _)) = self.named().find(|(_, column)| *column == theirs) {
            return Err(ColumnsError::Twice {
                column: theirs.to_owned(),
                first,
            });
        }
        let place = match ours {
            "user_prompt" => &mut self.user_prompt,
            "ground_truth" => &mut self.ground_truth,
            "system_prompt" => &mut self.system_prompt,
            "metadata" => &mut self.metadata,
            _ => return Err(ColumnsError::Unknown(ours.to_owned())),
        };
        *place = Some(theirs.to_owned());
        Ok(())
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> DatasetSection {
    let section = reader.section("dataset.columns");
    let mut columns = DatasetColumns::default();
    for ours in COLUMNS {
        let Some(entry) = section.entry(ours) else {
            continue;
        };
        let Some(theirs) = entry.item.as_str() else {
            let problem = section.wrong_type(ours, "a string", entry.item);
            reader.report(entry.offset, problem);
            continue;
        };
        if let Err(error) = columns.set(ours, theirs) {
            let problem = ConfigProblem::Unusable {
                section: section.name,
                key: ours.to_owned(),
                message: error.to_string(),
                suggestion: error.hint(),
            };
            reader.report(entry.offset, problem);
        }
    }
    DatasetSection { columns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_names_the_columns_of_a_file() {
        let mut columns = DatasetColumns::default();
        assert!(columns.is_empty());
        columns.set("user_prompt", "question").unwrap();
        columns.set("ground_truth", "answer").unwrap();
        assert_eq!(columns.use_of("question"), ColumnUse::ReadAs("user_prompt"));
        assert_eq!(columns.use_of("id"), ColumnUse::Kept("id"));
        // What the file calls by these names itself is not what is meant.
        for column in ["user_prompt", "ground_truth", "label"] {
            assert_eq!(columns.use_of(column), ColumnUse::LeftOut);
        }
        assert_eq!(columns.use_of("metadata"), ColumnUse::Kept("metadata"));
    }

    #[test]
    fn a_column_of_the_file_is_read_once() {
        let mut columns = DatasetColumns::default();
        columns.set("user_prompt", "question").unwrap();
        let twice = columns.set("metadata", "question").unwrap_err();
        assert_eq!(
            twice.to_string(),
            "`question` is read as `user_prompt` already"
        );
        let unknown = columns.set("prompt", "question2").unwrap_err();
        assert_eq!(
            unknown.hint().unwrap(),
            "the columns are `user_prompt`, `ground_truth`, `system_prompt` and `metadata`"
        );
        assert_eq!(columns.set("metadata", " "), Err(ColumnsError::Empty));
    }
}
