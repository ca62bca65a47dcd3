//! A section of a config file, and the values in it with their places.

use toml_edit::{Item, TableLike};

use super::{ConfigProblem, schema};

/// A section of the file; one that is absent, or no table, has no table.
#[derive(Clone, Copy)]
pub(super) struct Section<'d> {
    pub(super) name: &'static str,
    pub(super) present: bool,
    pub(super) table: Option<&'d dyn TableLike>,
    /// Where its header is, or the file's start.
    pub(super) offset: usize,
    pub(super) text: &'d str,
}

/// A value and its place.
#[derive(Clone, Copy)]
pub(super) struct Entry<'d> {
    pub(super) item: &'d Item,
    pub(super) key_offset: usize,
    pub(super) offset: usize,
}

impl<'d> Section<'d> {
    pub(super) fn entry(&self, key: &'static str) -> Option<Entry<'d>> {
        debug_assert!(
            schema::section(self.name).is_some_and(|section| section.keys().contains(&key)),
            "`{key}` is not in the schema of `[{}]`",
            self.name
        );
        entry(self.table?, key)
    }

    /// Every key of a section that holds the user's own.
    pub(super) fn entries(&self) -> Vec<(&'d str, Entry<'d>)> {
        let Some(table) = self.table else {
            return Vec::new();
        };
        table
            .iter()
            .filter_map(|(key, _)| Some((key, entry(table, key)?)))
            .collect()
    }

    /// A value as it stands in the file.
    pub(super) fn source(&self, item: &Item) -> &'d str {
        item.span()
            .and_then(|span| self.text.get(span))
            .unwrap_or("")
    }

    pub(super) fn wrong_type(
        &self,
        key: &str,
        expected: &'static str,
        found: &Item,
    ) -> ConfigProblem {
        ConfigProblem::WrongType {
            subject: format!("`{key}` in `[{}]`", self.name),
            expected,
            found: type_of(found),
            suggestion: None,
        }
    }

    pub(super) fn string(&self, key: &str, entry: &Entry<'d>) -> Result<&'d str, ConfigProblem> {
        let Some(text) = entry.item.as_str() else {
            return Err(self.wrong_type(key, "a string", entry.item));
        };
        if text.trim().is_empty() {
            return Err(ConfigProblem::Unusable {
                section: self.name,
                key: key.to_owned(),
                message: "must not be empty".to_owned(),
                suggestion: None,
            });
        }
        Ok(text)
    }
}

pub(super) fn type_of(item: &Item) -> &'static str {
    match item.type_name() {
        "string" => "a string",
        "integer" => "an integer",
        "float" => "a float",
        "boolean" => "a boolean",
        "datetime" => "a datetime",
        "array" => "an array",
        "array of tables" => "an array of tables",
        // Inline tables too.
        _ => "a table",
    }
}

pub(super) fn entry<'d>(table: &'d dyn TableLike, key: &str) -> Option<Entry<'d>> {
    let (name, item) = table.get_key_value(key)?;
    let header = match item {
        Item::Table(table) if !table.is_dotted() && !table.is_implicit() => table.span(),
        Item::None | Item::Value(_) | Item::Table(_) | Item::ArrayOfTables(_) => None,
    };
    let key_offset = header.or(name.span()).map_or(0, |span| span.start);
    Some(Entry {
        item,
        key_offset,
        offset: match item {
            Item::Value(value) => value.span().map_or(key_offset, |span| span.start),
            Item::None | Item::Table(_) | Item::ArrayOfTables(_) => key_offset,
        },
    })
}
