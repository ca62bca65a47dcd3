//! Keys of a config that are set beside its file: `--set SECTION.KEY=VALUE`, and flags that stand for a key.

use std::fmt;

use toml_edit::{DocumentMut, InlineTable, Item, Key, Table, TableLike, Value};

use super::schema::SECTIONS;

/// One key of a config and the value that it gets, whatever the file says.
#[derive(Debug, Clone)]
pub struct Override {
    path: Vec<String>,
    value: Value,
    /// As it was typed: `--set evaluation.n=4`.
    origin: String,
}

/// Why a `--set` can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverrideError {
    #[error("there is no `=` in `{text}`")]
    NoValue { text: String },
    #[error("`{key}` is in no section")]
    NoSection { key: String },
    #[error("`{text}` is no key: {message}")]
    BadKey { text: String, message: String },
    #[error("`{text}` is no TOML value: {message}")]
    BadValue { text: String, message: String },
}

impl OverrideError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::NoSection { key } => {
                let home = SECTIONS
                    .iter()
                    .find(|section| section.keys().contains(&key.as_str()));
                match home {
                    Some(home) => format!("write `--set {}.{key}=VALUE`", home.name),
                    None => "write `--set SECTION.KEY=VALUE`, like `--set workflow.style=short`"
                        .to_owned(),
                }
            }
            Self::NoValue { .. } | Self::BadKey { .. } => {
                "write `--set SECTION.KEY=VALUE`, like `--set evaluation.n=4`".to_owned()
            }
            Self::BadValue { .. } => {
                "VALUE is written as in a TOML file; a bare word is a string".to_owned()
            }
        }
    }
}

impl Override {
    /// `SECTION.KEY=VALUE`. VALUE is a TOML value, and a bare word is a string.
    pub fn parse(text: &str) -> Result<Self, OverrideError> {
        let Some((key, value)) = text.split_once('=') else {
            return Err(OverrideError::NoValue {
                text: text.to_owned(),
            });
        };
        let keys = Key::parse(key.trim()).map_err(|error| OverrideError::BadKey {
            text: key.trim().to_owned(),
            message: one_line(&error),
        })?;
        let path: Vec<String> = keys.iter().map(|key| key.get().to_owned()).collect();
        if path.len() < 2 {
            return Err(OverrideError::NoSection { key: path.concat() });
        }
        Ok(Self {
            path,
            value: read_value(value.trim())?,
            origin: format!("--set {text}"),
        })
    }

    /// A key that has a flag of its own; `typed` is what the user gave for it.
    pub fn by_flag(
        flag: &str,
        typed: impl fmt::Display,
        (section, key): (&str, &str),
        value: impl Into<Value>,
    ) -> Self {
        Self {
            path: vec![section.to_owned(), key.to_owned()],
            value: value.into(),
            origin: format!("{flag} {typed}"),
        }
    }

    /// The same as `--set` takes it: `evaluation.n=4`.
    pub fn setting(&self) -> String {
        let keys: Vec<String> = self
            .path
            .iter()
            .map(|name| Key::new(name).to_string())
            .collect();
        format!("{}={}", keys.join("."), self.value.to_string().trim())
    }

    /// Whether this is the key that it sets.
    pub fn sets(&self, section: &str, key: &str) -> bool {
        self.path == [section, key]
    }

    pub(super) fn path(&self) -> &[String] {
        &self.path
    }

    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// Sets the key. Fails with the part of the path that is there and no table.
    pub(super) fn apply(&self, document: &mut DocumentMut) -> Result<(), String> {
        let is_empty = document.is_empty();
        let mut table: &mut dyn TableLike = document.as_table_mut();
        let mut within_value = false;
        let Some((last, parents)) = self.path.split_last() else {
            return Ok(());
        };
        for (depth, name) in parents.iter().enumerate() {
            let item = table.entry(name).or_insert_with(|| {
                if within_value {
                    return Item::Value(Value::InlineTable(InlineTable::new()));
                }
                let mut made = Table::new();
                if !is_empty {
                    made.decor_mut().set_prefix("\n");
                }
                Item::Table(made)
            });
            within_value = item.is_inline_table();
            let so_far = || self.path[..=depth].join(".");
            table = item.as_table_like_mut().ok_or_else(so_far)?;
        }
        let mut value = self.value.clone();
        match table.get_mut(last) {
            Some(Item::Value(before)) => {
                // A comment behind the value stays where it is.
                *value.decor_mut() = before.decor().clone();
                *before = value;
            }
            Some(other) => *other = Item::Value(value),
            None => {
                table.insert(last, Item::Value(value));
            }
        }
        Ok(())
    }
}

fn read_value(text: &str) -> Result<Value, OverrideError> {
    let bad = |message: String| OverrideError::BadValue {
        text: text.to_owned(),
        message,
    };
    if text.is_empty() {
        return Err(bad("it is empty; an empty string is `\"\"`".to_owned()));
    }
    match text.parse::<Value>() {
        Ok(mut value) => {
            value.decor_mut().clear();
            Ok(value)
        }
        Err(error) if text.starts_with(['"', '\'', '[', '{']) => Err(bad(one_line(&error))),
        Err(_) => Ok(Value::from(text)),
    }
}

fn one_line(error: &toml_edit::TomlError) -> String {
    error.message().trim().replace('\n', ", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn applied(text: &str, settings: &[&str]) -> String {
        let mut document: DocumentMut = text.parse().unwrap();
        for setting in settings {
            Override::parse(setting)
                .unwrap()
                .apply(&mut document)
                .unwrap();
        }
        document.to_string()
    }

    #[test]
    fn a_value_is_toml_and_a_bare_word_is_a_string() {
        for (typed, setting) in [
            ("evaluation.n=4", "evaluation.n=4"),
            (
                "evaluation.pass_threshold=0.5",
                "evaluation.pass_threshold=0.5",
            ),
            ("workflow.on = true", "workflow.on=true"),
            ("workflow.style=short", "workflow.style=\"short\""),
            ("workflow.text=two words", "workflow.text=\"two words\""),
            ("workflow.quoted=\"4\"", "workflow.quoted=\"4\""),
            (
                "workflow.names=[\"a\", \"b\"]",
                "workflow.names=[\"a\", \"b\"]",
            ),
            ("workflow.\"a b\".c={x = 1}", "workflow.\"a b\".c={x = 1}"),
            (
                "experiment.model_path=openai/gpt-5",
                "experiment.model_path=\"openai/gpt-5\"",
            ),
        ] {
            let read = Override::parse(typed).unwrap();
            assert_eq!(read.setting(), setting);
            assert_eq!(Override::parse(setting).unwrap().setting(), setting);
        }
    }

    #[test]
    fn what_is_no_setting_says_how_to_write_one() {
        let told = |text: &str| {
            let error = Override::parse(text).unwrap_err();
            format!("{error} ({})", error.hint())
        };
        insta::assert_snapshot!(
            [
                "n=4",
                "k=4",
                "evaluation.n",
                "evaluation..n=1",
                "workflow.x=",
                "workflow.x=[1",
                "=1"
            ]
            .map(told)
            .join("\n")
        );
    }

    #[test]
    fn the_rest_of_the_file_stays_as_it_is() {
        let text = "# mine\n[evaluation]\nn = 1 # few\n\n[workflow]\na = { b = 1 }\n";
        assert_eq!(
            applied(
                text,
                &["evaluation.n=4", "evaluation.limit=2", "workflow.a.c=x"]
            ),
            "# mine\n[evaluation]\nn = 4 # few\nlimit = 2\n\n[workflow]\na = { b = 1 , c = \"x\" }\n"
        );
        assert_eq!(
            applied(text, &["grader.strict=true", "grader.deep.er=1"]),
            format!("{text}\n[grader]\nstrict = true\n\n[grader.deep]\ner = 1\n")
        );
        assert_eq!(applied("", &["evaluation.n=4"]), "[evaluation]\nn = 4\n");
    }

    #[test]
    fn a_value_is_no_table() {
        let mut document: DocumentMut = "[workflow]\na = 1\n".parse().unwrap();
        let setting = Override::parse("workflow.a.b=1").unwrap();
        assert_eq!(setting.apply(&mut document), Err("workflow.a".to_owned()));
    }
}
