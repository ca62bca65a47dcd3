use std::collections::HashMap;

use osmosis_core::{JsonText, JsonTextError, duplicate_json_field};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::{RowError, RowProblem};

/// A dataset row, and what the workflow and the grader get of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// From 0, counting rows.
    pub index: u64,
    /// Where it stands in its file, from 1. In parquet the row's number.
    pub line: u64,
    /// The whole row: as it was in jsonl, and otherwise as the same object would be there.
    pub body: JsonText,
    /// For the workflow: chat messages; empty when the row has metadata alone.
    pub prompt: Vec<Map<String, Value>>,
    /// For the grader alone.
    pub label: Option<String>,
    /// For both: a JSON object with something in it.
    pub metadata: Option<JsonText>,
    pub mode: RowMode,
}

/// Which columns a row must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowMode {
    /// `user_prompt` and `ground_truth`.
    Prompt,
    /// A `metadata` column makes the others optional.
    Metadata,
    /// None: the workflow takes the row as it is.
    Whole,
}

/// What is taken of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Taking {
    /// Prompt, label and metadata, each from its column.
    #[default]
    Columns,
    /// The row as it is, whatever its columns.
    WholeRows,
}

impl Row {
    /// Reads a row again from the body it was stored as.
    pub fn from_body(index: u64, line: u64, body: &JsonText) -> Result<Self, RowError> {
        read_recorded(index, line, body.clone(), Taking::Columns)
    }

    /// The prompt as the JSON array that goes to a worker.
    pub fn prompt_json(&self) -> Result<JsonText, JsonTextError> {
        JsonText::of(&self.prompt)
    }
}

/// Reads a row of a dataset.
pub(crate) fn read(index: u64, line: u64, body: JsonText, taking: Taking) -> Result<Row, RowError> {
    let row = read_recorded(index, line, body, taking)?;
    let deep = [
        ("the row", Some(&row.body)),
        ("the JSON in `metadata`", row.metadata.as_ref()),
    ]
    .into_iter()
    .find(|(_, document)| document.is_some_and(JsonText::is_too_deep));
    let twice = row.metadata.as_ref().map(JsonText::as_str);
    if let Some(name) = twice.and_then(duplicate_json_field) {
        let what = "the JSON in `metadata`";
        let problem = RowProblem::DuplicateField { what, name };
        return Err(RowError::new(index, line, None, problem));
    }
    // A label may be any number: it is taken as the text it was written as.
    let taken = match taking {
        Taking::WholeRows => Some(&row.body),
        Taking::Columns => row.metadata.as_ref(),
    };
    match deep {
        None => match taken.and_then(JsonText::problem) {
            None => Ok(row),
            Some(message) => {
                let problem = RowProblem::NotJson { message };
                Err(RowError::new(index, line, None, problem))
            }
        },
        Some((what, _)) => {
            let problem = RowProblem::TooDeep { what };
            Err(RowError::new(index, line, None, problem))
        }
    }
}

/// Reads a row that was accepted once, however deep it is.
fn read_recorded(index: u64, line: u64, body: JsonText, taking: Taking) -> Result<Row, RowError> {
    let text = body.as_str();
    let found = type_of(text);
    if found != "an object" {
        let problem = RowProblem::NotAnObject { found };
        return Err(RowError::new(index, line, Some(1), problem));
    }
    if taking == Taking::WholeRows {
        return Ok(Row {
            index,
            line,
            body,
            prompt: vec![],
            label: None,
            metadata: None,
            mode: RowMode::Whole,
        });
    }
    // Values stay the text they are: `1.50` as a label is not `1.5`.
    let columns: HashMap<String, &RawValue> = serde_json::from_str(text)
        .map_err(|error| not_json(index, line, text, &JsonTextError::from(error)))?;
    let parts = Columns(columns).parts().map_err(|(at, problem)| {
        let column = at.and_then(|value| column_of(text, value.get()));
        RowError::new(index, line, column, problem)
    })?;
    Ok(Row {
        index,
        line,
        prompt: parts.prompt,
        label: parts.label,
        metadata: parts.metadata,
        mode: parts.mode,
        body,
    })
}

/// The error of a text that is not JSON, in a row of one line.
pub(crate) fn not_json(index: u64, line: u64, text: &str, error: &JsonTextError) -> RowError {
    if let Some((column, word)) = foreign_start(text) {
        let message = format!("it starts with `{word}`");
        return RowError::new(index, line, Some(column), RowProblem::NotJson { message });
    }
    let (message, byte) = plain_message(error);
    let column = byte.map(|byte| {
        // The parser counts bytes up to and including the offending one.
        let before = text.floor_char_boundary(byte.saturating_sub(1));
        text[..before].chars().count() as u64 + 1
    });
    RowError::new(index, line, column, RowProblem::NotJson { message })
}

/// The first word of a text that begins like no JSON value, with its column: more telling than what the parser expected.
fn foreign_start(text: &str) -> Option<(u64, String)> {
    const MOST: usize = 20;
    let start = text.trim_start();
    let word = start.split_whitespace().next()?;
    let begins = |c: char| matches!(c, '{' | '[' | '"' | '-') || c.is_ascii_digit();
    if start.starts_with(begins) || matches!(word, "true" | "false" | "null") {
        return None;
    }
    let column = text[..text.len() - start.len()].chars().count() as u64 + 1;
    Some((column, word.chars().take(MOST).collect()))
}

/// The parser's message without its own idea of the place, and the column of that place.
fn plain_message(error: &JsonTextError) -> (String, Option<usize>) {
    let text =
        std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    match text.rsplit_once(" at line ") {
        Some((message, place)) => {
            let column = place.split_once(" column ").map(|(_, column)| column);
            (
                message.to_owned(),
                column.and_then(|column| column.parse().ok()),
            )
        }
        None => (text, None),
    }
}

/// How many columns of a row an error knows.
const MAX_COLUMNS: usize = 1000;

struct Parts {
    prompt: Vec<Map<String, Value>>,
    label: Option<String>,
    metadata: Option<JsonText>,
    mode: RowMode,
}

/// What is wrong, and the value it is wrong with.
type Complaint<'a> = (Option<&'a RawValue>, RowProblem);

struct Columns<'a>(HashMap<String, &'a RawValue>);

impl<'a> Columns<'a> {
    fn parts(&self) -> Result<Parts, Complaint<'a>> {
        let mode = if self.0.contains_key("metadata") {
            RowMode::Metadata
        } else {
            RowMode::Prompt
        };
        let metadata = self.metadata()?;
        let system = self.text("system_prompt")?;
        let user = self.text("user_prompt")?;
        let label = self.label()?;
        let said = user.filter_blank();
        match mode {
            RowMode::Prompt => {
                if said.is_none() {
                    return Err(match user.at {
                        Some(value) => (
                            Some(value),
                            RowProblem::Blank {
                                column: "user_prompt",
                            },
                        ),
                        None => (None, self.missing("user_prompt")),
                    });
                }
                if label.is_none() {
                    return Err((None, self.missing("ground_truth")));
                }
            }
            // Rows taken whole have no parts.
            RowMode::Metadata | RowMode::Whole => {
                if said.is_none() && metadata.is_none() {
                    return Err((None, RowProblem::NothingToDo));
                }
            }
        }
        let mut prompt = Vec::new();
        if let Some(text) = system.filter_blank() {
            prompt.push(message("system", text));
        }
        if let Some(text) = said {
            prompt.push(message("user", text));
        }
        Ok(Parts {
            prompt,
            label,
            metadata,
            mode,
        })
    }

    fn missing(&self, column: &'static str) -> RowProblem {
        let mut there: Vec<String> = self.0.keys().take(MAX_COLUMNS).cloned().collect();
        there.sort_unstable();
        RowProblem::Missing {
            column,
            named: None,
            there,
        }
    }

    /// A column's value; `null` is the same as no column.
    fn get(&self, column: &str) -> Option<&'a RawValue> {
        self.0
            .get(column)
            .copied()
            .filter(|value| value.get() != "null")
    }

    fn text(&self, column: &'static str) -> Result<Text<'a>, Complaint<'a>> {
        let Some(value) = self.get(column) else {
            return Ok(Text {
                at: None,
                text: None,
            });
        };
        let text = string(column, "a string", value)?;
        Ok(Text {
            at: Some(value),
            text: Some(text),
        })
    }

    fn label(&self) -> Result<Option<String>, Complaint<'a>> {
        let truth = self.one_label("ground_truth")?;
        let alias = self.one_label("label")?;
        match (truth, alias) {
            (Some(truth), Some(alias)) if truth != alias => {
                Err((self.get("label"), RowProblem::TwoLabels))
            }
            (truth, alias) => Ok(truth.or(alias)),
        }
    }

    fn one_label(&self, column: &'static str) -> Result<Option<String>, Complaint<'a>> {
        let Some(value) = self.get(column) else {
            return Ok(None);
        };
        match type_of(value.get()) {
            "a number" => Ok(Some(value.get().to_owned())),
            _ => string(column, "a string or a number", value).map(Some),
        }
    }

    fn metadata(&self) -> Result<Option<JsonText>, Complaint<'a>> {
        let Some(value) = self.get("metadata") else {
            return Ok(None);
        };
        let text = match type_of(value.get()) {
            "an object" => value.get().to_owned(),
            "a string" => {
                let complain =
                    |message: String| (Some(value), RowProblem::MetadataText { message });
                let held = string("metadata", "a string", value)?;
                if held.trim().is_empty() {
                    return Ok(None);
                }
                if let Err(error) = serde_json::from_str::<&RawValue>(&held) {
                    return Err(complain(plain_message(&error.into()).0));
                }
                match type_of(held.trim()) {
                    "an object" => held.trim().to_owned(),
                    "null" => return Ok(None),
                    found => return Err(complain(format!("found {found}"))),
                }
            }
            _ => {
                return Err(wrong_type(
                    "metadata",
                    "an object or a string that holds one",
                    value,
                ));
            }
        };
        let fields: HashMap<String, &RawValue> = serde_json::from_str(&text).map_err(|error| {
            let message = plain_message(&error.into()).0;
            (Some(value), RowProblem::MetadataText { message })
        })?;
        if fields.is_empty() {
            return Ok(None);
        }
        JsonText::parse(text).map(Some).map_err(|error| {
            let message = plain_message(&error).0;
            (Some(value), RowProblem::MetadataText { message })
        })
    }
}

/// A string column: the value it came from, and the string.
struct Text<'a> {
    at: Option<&'a RawValue>,
    text: Option<String>,
}

impl Text<'_> {
    fn filter_blank(&self) -> Option<&str> {
        self.text.as_deref().filter(|text| !text.trim().is_empty())
    }
}

fn message(role: &str, content: &str) -> Map<String, Value> {
    Map::from_iter([
        ("role".to_owned(), Value::from(role)),
        ("content".to_owned(), Value::from(content)),
    ])
}

/// A JSON string. One that is no text after all (half a surrogate pair) is not JSON to us.
fn string<'a>(
    column: &'static str,
    expected: &'static str,
    value: &'a RawValue,
) -> Result<String, Complaint<'a>> {
    if type_of(value.get()) != "a string" {
        return Err(wrong_type(column, expected, value));
    }
    serde_json::from_str(value.get()).map_err(|error| {
        let message = plain_message(&error.into()).0;
        (Some(value), RowProblem::NotJson { message })
    })
}

fn wrong_type<'a>(
    column: &'static str,
    expected: &'static str,
    value: &'a RawValue,
) -> Complaint<'a> {
    let problem = RowProblem::WrongType {
        column,
        expected,
        found: type_of(value.get()),
    };
    (Some(value), problem)
}

/// What kind of value a JSON text is, by its first character.
fn type_of(json: &str) -> &'static str {
    match json.trim_start().bytes().next() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// Where in `text` the part that was borrowed from it starts.
fn column_of(text: &str, part: &str) -> Option<u64> {
    let offset = part.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
    let before = text.get(..offset)?;
    Some(before.chars().count() as u64 + 1)
}
