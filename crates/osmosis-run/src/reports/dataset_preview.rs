//! What a dataset holds, and its first rows as an agent would get them.

use std::collections::{BTreeSet, HashMap};

use camino::Utf8PathBuf;
use osmosis_core::JsonText;
use osmosis_core::config::{ColumnUse, DatasetColumns};
use osmosis_data::{DataError, Dataset, Row, RowProblem, Taking};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::RunError;
use crate::checked_dataset::data_error;

/// How many different columns are listed.
const MAX_COLUMNS: usize = 1000;

/// The `data` of `dataset preview --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetPreview {
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    /// The files that a pattern or a folder stands for, in the order of their rows.
    #[schemars(with = "Vec<String>")]
    pub files: Vec<Utf8PathBuf>,
    /// `JSON lines`, `CSV`, `parquet` or `Arrow`.
    pub format: String,
    /// `gzip` or `zstd`.
    pub compression: Option<String>,
    /// All rows, those that can't be read too.
    pub rows: u64,
    /// Rows that can't be read as a JSON object.
    pub unreadable_rows: u64,
    /// In the order in which they are met.
    pub columns: Vec<PreviewColumn>,
    /// Why the file can't be used as it is; `null` when no column is missing.
    pub problem: Option<String>,
    /// What to do about the problem.
    pub hint: Option<String>,
    /// The first rows.
    pub items: Vec<PreviewRow>,
}

/// A column of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PreviewColumn {
    /// As the file calls it.
    pub name: String,
    /// The types that it has in some row: `text`, `number`, `boolean`, `object`, `list`.
    pub types: Vec<String>,
    /// In how many rows it has a value.
    pub rows: u64,
    /// The column that it is read as; `null` when it is kept with the row and not read.
    pub read_as: Option<String>,
}

/// A row, as the workflow and the grader would get it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PreviewRow {
    pub row_index: u64,
    /// From 1; in parquet, Arrow and several files the row's number.
    pub line: u64,
    /// Chat messages for the workflow; empty for a row with metadata alone.
    pub prompt: Vec<Map<String, Value>>,
    /// For the grader alone.
    pub label: Option<String>,
    pub metadata: Option<JsonText>,
    /// The whole row; `null` for one that can't be read.
    pub row: Option<JsonText>,
    /// Why it can't be used.
    pub error: Option<String>,
}

impl DatasetPreview {
    /// Reads every row once for the columns, and the first of them again.
    pub fn of(dataset: &Dataset, rows: usize) -> Result<Self, RunError> {
        let mut columns = Columns::default();
        let (mut total, mut unreadable) = (0, 0);
        let whole = dataset
            .clone()
            .with(Taking::WholeRows)
            .with_columns(DatasetColumns::default());
        let mut bodies = Vec::new();
        for row in whole.rows() {
            match row {
                Ok(row) => {
                    columns.add(&row);
                    if bodies.len() < rows {
                        bodies.push((row.index, row.body));
                    }
                }
                Err(error) => match error.problem {
                    RowProblem::Unreadable { message } => {
                        return Err(data_error(&DataError::Unreadable {
                            path: error.file.unwrap_or_else(|| dataset.path().to_owned()),
                            message,
                        }));
                    }
                    RowProblem::BadColumns { problems } => {
                        return Err(data_error(&DataError::BadColumns {
                            path: error.file.unwrap_or_else(|| dataset.path().to_owned()),
                            problems,
                        }));
                    }
                    _ => unreadable += 1,
                },
            }
            total += 1;
        }
        let problem = dataset.check_columns(&columns.names()).err();
        // Rows of a file without the columns are shown as they are.
        let read = match &problem {
            None => dataset.clone(),
            Some(_) => whole,
        };
        let items = read.rows().take(rows).map(|row| match row {
            Ok(row) => PreviewRow::of(row),
            Err(error) => PreviewRow {
                row_index: error.index,
                line: error.line,
                prompt: Vec::new(),
                label: None,
                metadata: None,
                row: bodies
                    .iter()
                    .find(|(index, _)| *index == error.index)
                    .map(|(_, body)| body.clone()),
                error: Some(error.problem.to_string()),
            },
        });
        Ok(Self {
            path: dataset.path().to_owned(),
            files: match dataset.files() {
                [only] if only == dataset.path() => Vec::new(),
                several => several.to_vec(),
            },
            format: dataset.format().as_str().to_owned(),
            compression: dataset.compression().map(|it| it.as_str().to_owned()),
            rows: total,
            unreadable_rows: unreadable,
            items: items.collect(),
            columns: columns.into_report(dataset),
            hint: problem.as_ref().and_then(DataError::hint),
            problem: problem.map(|problem| problem.to_string()),
        })
    }
}

impl PreviewRow {
    fn of(row: Row) -> Self {
        Self {
            row_index: row.index,
            line: row.line,
            prompt: row.prompt,
            label: row.label,
            metadata: row.metadata,
            row: Some(row.body),
            error: None,
        }
    }
}

/// The columns that were met.
#[derive(Default)]
struct Columns {
    places: HashMap<String, usize>,
    met: Vec<Column>,
}

struct Column {
    name: String,
    types: BTreeSet<&'static str>,
    rows: u64,
}

impl Columns {
    fn add(&mut self, row: &Row) {
        // A row that was read is an object.
        let fields: Map<String, Value> = row.body.read().unwrap_or_default();
        for (name, value) in fields {
            let place = match self.places.get(&name) {
                Some(place) => *place,
                None if self.met.len() < MAX_COLUMNS => {
                    self.places.insert(name.clone(), self.met.len());
                    self.met.push(Column {
                        name,
                        types: BTreeSet::new(),
                        rows: 0,
                    });
                    self.met.len() - 1
                }
                None => continue,
            };
            if let (Some(column), Some(json_type)) = (self.met.get_mut(place), type_of(&value)) {
                column.types.insert(json_type);
                column.rows += 1;
            }
        }
    }

    fn names(&self) -> Vec<String> {
        self.met.iter().map(|column| column.name.clone()).collect()
    }

    fn into_report(self, dataset: &Dataset) -> Vec<PreviewColumn> {
        let ours = |name: &str| {
            let known = [
                "user_prompt",
                "ground_truth",
                "label",
                "system_prompt",
                "metadata",
            ];
            match dataset.columns().use_of(name) {
                ColumnUse::ReadAs(ours) => Some(ours.to_owned()),
                ColumnUse::Kept("label") => Some("ground_truth".to_owned()),
                ColumnUse::Kept(name) => known.contains(&name).then(|| name.to_owned()),
                ColumnUse::LeftOut => None,
            }
        };
        let columns = self.met.into_iter();
        columns
            .map(|column| PreviewColumn {
                read_as: ours(&column.name),
                types: column.types.iter().map(|&name| name.to_owned()).collect(),
                name: column.name,
                rows: column.rows,
            })
            .collect()
    }
}

/// `None` for null.
fn type_of(value: &Value) -> Option<&'static str> {
    match value {
        Value::Null => None,
        Value::Bool(_) => Some("boolean"),
        Value::Number(_) => Some("number"),
        Value::String(_) => Some("text"),
        Value::Array(_) => Some("list"),
        Value::Object(_) => Some("object"),
    }
}
