//! `[workflow]` and `[grader]` of the run config, read into the user's types.

use std::any::{TypeId, type_name};

use osmosis_core::JsonText;
use osmosis_core::frame::Problem;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A config, and a remark for each key that is not a field of it.
#[derive(Debug)]
pub(crate) struct Read<C> {
    pub(crate) config: C,
    pub(crate) remarks: Vec<String>,
}

/// Reads a table; `table` is its name in the TOML.
pub(crate) fn read<C: DeserializeOwned + 'static>(
    text: &JsonText,
    table: &str,
) -> Result<Read<C>, Problem> {
    let mut unknown = Vec::new();
    let config = deserialize::<C>(text, &mut unknown).map_err(|(path, message)| {
        let place = if path.is_empty() {
            format!("[{table}]")
        } else {
            format!("[{table}] `{path}`")
        };
        Problem {
            code: "invalid_config".to_owned(),
            message: format!("{place}: {message}"),
            hint: Some(format!(
                "the table is read into `{}`",
                short_name(type_name::<C>())
            )),
            traceback: None,
        }
    })?;
    let remarks = unknown
        .into_iter()
        .map(|key| match name_of::<C>() {
            Some(name) => format!("[{table}] `{key}` is not a field of `{name}` and is ignored"),
            None => format!("[{table}] `{key}` is ignored: the {table} takes no config"),
        })
        .collect();
    Ok(Read { config, remarks })
}

/// The name of a config type; `()` is none.
pub(crate) fn name_of<C: 'static>() -> Option<String> {
    (!is_unit::<C>()).then(|| short_name(type_name::<C>()).to_owned())
}

/// `calculator::Solver<f64>` is `Solver<f64>` to people.
pub(crate) fn short_name(name: &str) -> &str {
    let base = name.split('<').next().unwrap_or(name);
    let start = base.rfind("::").map_or(0, |at| at + 2);
    &name[start..]
}

fn is_unit<C: 'static>() -> bool {
    TypeId::of::<C>() == TypeId::of::<()>()
}

/// The error is the path of the field, empty for the table itself, and what is wrong there.
fn deserialize<C: DeserializeOwned + 'static>(
    text: &JsonText,
    unknown: &mut Vec<String>,
) -> Result<C, (String, String)> {
    // By way of a value: places in a JSON text that nobody wrote would only confuse.
    let mut value: Value =
        serde_json::from_str(text.as_str()).map_err(|error| (String::new(), error.to_string()))?;
    if is_unit::<C>() {
        if let Value::Object(keys) = &value {
            unknown.extend(keys.keys().cloned());
        }
        value = Value::Null;
    }
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string())).map_err(
        |error: serde_json::Error| {
            let path = track.path().to_string();
            (
                if path == "." { String::new() } else { path },
                error.to_string(),
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Settings {
        max_turns: u32,
        #[serde(default)]
        limits: Vec<Limit>,
    }

    #[derive(Debug, Deserialize)]
    struct Limit {
        tokens: u32,
    }

    fn problem(text: &str) -> String {
        let text = JsonText::parse(text).unwrap();
        read::<Settings>(&text, "workflow").unwrap_err().message
    }

    #[test]
    fn a_value_that_does_not_fit_is_told_with_its_path() {
        assert_eq!(
            problem(r#"{"max_turns": "many"}"#),
            "[workflow] `max_turns`: invalid type: string \"many\", expected u32"
        );
        assert_eq!(
            problem(r#"{"max_turns": 1, "limits": [{"tokens": 1}, {"tokens": -1}]}"#),
            "[workflow] `limits[1].tokens`: invalid value: integer `-1`, expected u32"
        );
        assert_eq!(problem("{}"), "[workflow]: missing field `max_turns`");
    }

    #[test]
    fn a_key_that_is_no_field_is_remarked_upon() {
        let text = JsonText::parse(
            r#"{"max_turns": 2, "max_turn": 3, "limits": [{"tokens": 1, "x": 1}]}"#,
        );
        let read = read::<Settings>(&text.unwrap(), "workflow").unwrap();
        assert_eq!(read.config.max_turns, 2);
        assert_eq!(read.config.limits[0].tokens, 1);
        assert_eq!(
            read.remarks,
            [
                "[workflow] `max_turn` is not a field of `Settings` and is ignored",
                "[workflow] `limits.0.x` is not a field of `Settings` and is ignored",
            ]
        );
    }

    #[test]
    fn no_config_takes_an_empty_table() {
        let empty = JsonText::parse("{}").unwrap();
        assert!(read::<()>(&empty, "grader").unwrap().remarks.is_empty());
        let keys = JsonText::parse(r#"{"a": 1}"#).unwrap();
        assert_eq!(
            read::<()>(&keys, "grader").unwrap().remarks,
            ["[grader] `a` is ignored: the grader takes no config"]
        );
        assert_eq!(name_of::<()>(), None);
    }

    #[test]
    fn a_type_is_known_by_its_last_name() {
        assert_eq!(name_of::<Settings>().as_deref(), Some("Settings"));
        assert_eq!(short_name("a::B<c::D>"), "B<c::D>");
    }
}
