//! Sections whose values are the user's: for the workflow, the grader, the worker's environment.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value as Json};
use toml_edit::{Item, TableLike, Value as Toml};

use super::reader::Reader;
use super::section::{Section, type_of};
use super::{ConfigProblem, ModelPath};

const JUDGE_MODEL: &str = "judge_model";

/// What goes to the user's code as it is.
pub(super) struct PassedOn {
    pub(super) workflow: Map<String, Json>,
    pub(super) grader: Map<String, Json>,
    pub(super) judge_model: Option<ModelPath>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) secrets: Secrets,
    pub(super) advanced: Map<String, Json>,
}

/// `[secrets]`: names only; the values come from a file or the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Secrets {
    /// A run without one of these is refused.
    pub required: Vec<String>,
    /// These are passed if they have a value. Left out of what a run is pinned to when there are none: runs
    /// from before there was this resume.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub optional: Vec<String>,
}

pub(super) fn read(reader: &mut Reader<'_>) -> PassedOn {
    let workflow = read_object(reader, "workflow");
    let mut grader = read_object(reader, "grader");
    // The one key of `[grader]` that is ours: which model its judge is, not a field of its config.
    grader.remove(JUDGE_MODEL);
    let section = reader.section("grader");
    let judge_model = reader.parsed(section, JUDGE_MODEL, str::parse::<ModelPath>, |error| {
        Some(error.hint())
    });
    let advanced = read_object(reader, "advanced");
    let env = read_env(reader);
    let secrets = read_secrets(reader, &env);
    PassedOn {
        workflow,
        grader,
        judge_model,
        env,
        secrets,
        advanced,
    }
}

fn read_object(reader: &mut Reader<'_>, name: &'static str) -> Map<String, Json> {
    let section = reader.section(name);
    let mut object = Map::new();
    for (key, entry) in section.entries() {
        match json_of_item(entry.item) {
            Ok(value) => {
                object.insert(key.to_owned(), value);
            }
            Err(NotFinite { offset }) => {
                let problem = ConfigProblem::Unusable {
                    section: name,
                    key: key.to_owned(),
                    message: "infinity and NaN have no place in JSON".to_owned(),
                    suggestion: Some("write a string and convert it in your code".to_owned()),
                };
                reader.report(offset.unwrap_or(entry.offset), problem);
            }
        }
    }
    object
}

/// A float that JSON can't say, and where it is.
struct NotFinite {
    offset: Option<usize>,
}

fn json_of_item(item: &Item) -> Result<Json, NotFinite> {
    match item {
        Item::None => Ok(Json::Null),
        Item::Value(value) => json_of_value(value),
        Item::Table(table) => json_of_table(table),
        Item::ArrayOfTables(tables) => tables
            .iter()
            .map(|table| json_of_table(table))
            .collect::<Result<_, _>>()
            .map(Json::Array),
    }
}

fn json_of_table(table: &dyn TableLike) -> Result<Json, NotFinite> {
    table
        .iter()
        .map(|(key, item)| Ok((key.to_owned(), json_of_item(item)?)))
        .collect::<Result<_, _>>()
        .map(Json::Object)
}

fn json_of_value(value: &Toml) -> Result<Json, NotFinite> {
    match value {
        Toml::String(text) => Ok(Json::String(text.value().clone())),
        Toml::Integer(number) => Ok(Json::from(*number.value())),
        Toml::Float(number) => serde_json::Number::from_f64(*number.value())
            .map(Json::Number)
            .ok_or_else(|| NotFinite {
                offset: value.span().map(|span| span.start),
            }),
        Toml::Boolean(truth) => Ok(Json::Bool(*truth.value())),
        Toml::Datetime(time) => Ok(Json::String(time.value().to_string())),
        Toml::Array(items) => items
            .iter()
            .map(json_of_value)
            .collect::<Result<_, _>>()
            .map(Json::Array),
        Toml::InlineTable(table) => json_of_table(table),
    }
}

fn read_env(reader: &mut Reader<'_>) -> BTreeMap<String, String> {
    let section = reader.section("env");
    let mut variables = BTreeMap::new();
    for (name, entry) in section.entries() {
        if let Err((message, suggestion)) = check_variable(name) {
            reader.report(
                entry.key_offset,
                unusable(section, name, &message, suggestion),
            );
        }
        match entry.item.as_str() {
            Some(text) if text.contains('\0') => reader.report(
                entry.offset,
                unusable(section, name, "must not contain a zero byte", None),
            ),
            Some(text) => {
                variables.insert(name.to_owned(), text.to_owned());
            }
            None => {
                let scalar = entry.item.as_value().filter(|value| {
                    matches!(value, Toml::Integer(_) | Toml::Float(_) | Toml::Boolean(_))
                });
                let suggestion = scalar
                    .map(|_| format!("quote it: `{name} = \"{}\"`", section.source(entry.item)));
                let problem = ConfigProblem::WrongType {
                    subject: format!("`{name}` in `[env]`"),
                    expected: "a string",
                    found: type_of(entry.item),
                    suggestion,
                };
                reader.report(entry.offset, problem);
            }
        }
    }
    variables
}

/// `^[A-Z_][A-Z0-9_]*$`, and not ours.
fn check_variable(name: &str) -> Result<(), (String, Option<String>)> {
    if name.starts_with("_OSMOSIS_") {
        return Err((
            "names that start with `_OSMOSIS_` are reserved".to_owned(),
            None,
        ));
    }
    if !is_name(name, |b| b.is_ascii_uppercase() || b == b'_') {
        return Err((
            "a variable's name is capital letters, digits and `_`, and starts with no digit"
                .to_owned(),
            corrected(name),
        ));
    }
    Ok(())
}

fn is_name(name: &str, first: impl Fn(u8) -> bool) -> bool {
    name.bytes().next().is_some_and(first)
        && name
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

fn corrected(name: &str) -> Option<String> {
    let better = name.to_ascii_uppercase().replace(['-', '.', ' '], "_");
    is_name(&better, |b| b.is_ascii_uppercase()).then(|| format!("write `{better}`"))
}

fn read_secrets(reader: &mut Reader<'_>, env: &BTreeMap<String, String>) -> Secrets {
    let mut listed = Vec::new();
    let required = read_names(reader, "required", env, &mut listed);
    let optional = read_names(reader, "optional", env, &mut listed);
    Secrets { required, optional }
}

/// The names in one key of `[secrets]`; `listed` holds those of all keys.
fn read_names(
    reader: &mut Reader<'_>,
    key: &'static str,
    env: &BTreeMap<String, String>,
    listed: &mut Vec<String>,
) -> Vec<String> {
    let section = reader.section("secrets");
    let Some(entry) = section.entry(key) else {
        return Vec::new();
    };
    let Some(items) = entry.item.as_array() else {
        let problem = section.wrong_type(key, "an array of strings", entry.item);
        reader.report(entry.offset, problem);
        return Vec::new();
    };
    let mut names: Vec<String> = Vec::new();
    for item in items {
        let offset = item.span().map_or(entry.offset, |span| span.start);
        let Some(name) = item.as_str() else {
            let found = Item::Value(item.clone());
            let problem = section.wrong_type(key, "an array of strings", &found);
            reader.report(offset, problem);
            continue;
        };
        if let Err((message, suggestion)) = check_secret(name, env, listed) {
            reader.report(offset, unusable(section, key, &message, suggestion));
            continue;
        }
        listed.push(name.to_owned());
        names.push(name.to_owned());
    }
    names
}

/// `^[A-Z][A-Z0-9_]*$`, not ours, and listed nowhere else.
fn check_secret(
    name: &str,
    env: &BTreeMap<String, String>,
    listed: &[String],
) -> Result<(), (String, Option<String>)> {
    let shown = name.escape_debug();
    if !is_name(name, |b| b.is_ascii_uppercase()) {
        return Err((
            format!(
                "`{shown}` is no secret's name: capital letters, digits and `_`, a letter first"
            ),
            corrected(name),
        ));
    }
    if name.starts_with("OSMOSIS_") {
        return Err((
            format!("`{shown}` is never passed: names that start with `OSMOSIS_` are reserved"),
            Some("give your code its value under another name".to_owned()),
        ));
    }
    if env.contains_key(name) {
        return Err((
            format!("`{shown}` is set in `[env]` too"),
            Some("a secret's value never stands in the config: remove it from `[env]`".to_owned()),
        ));
    }
    if listed.iter().any(|other| other == name) {
        return Err((format!("`{shown}` is listed twice"), None));
    }
    Ok(())
}

fn unusable(
    section: Section<'_>,
    key: &str,
    message: &str,
    suggestion: Option<String>,
) -> ConfigProblem {
    ConfigProblem::Unusable {
        section: section.name,
        key: key.to_owned(),
        message: message.to_owned(),
        suggestion,
    }
}
