//! Typed access to the tables of a script; what does not fit is noted, with its place.

use std::ops::Range;
use std::time::Duration;

use regex::Regex;
use toml_edit::{Item, TableLike};

use super::problem::{Problems, nearest};
use super::template::Template;

pub(super) struct Reader<'a> {
    pub(super) problems: Problems<'a>,
}

/// A table of the file, and what to call it.
#[derive(Clone, Copy)]
pub(super) struct Place<'t> {
    pub(super) table: &'t dyn TableLike,
    pub(super) name: &'static str,
}

impl<'t> Place<'t> {
    pub(super) fn item(self, key: &str) -> Option<&'t Item> {
        self.table.get(key).filter(|item| !item.is_none())
    }

    pub(super) fn key_span(self, key: &str) -> Option<Range<usize>> {
        self.table.key(key).and_then(toml_edit::Key::span)
    }

    /// The value's place, or else its key's.
    pub(super) fn span(self, key: &str) -> Option<Range<usize>> {
        self.item(key)
            .and_then(Item::span)
            .or_else(|| self.key_span(key))
    }
}

impl Reader<'_> {
    pub(super) fn check_keys(&mut self, place: Place<'_>, known: &[&str]) {
        for (key, _) in place.table.iter() {
            if !known.contains(&key) {
                self.problems.add_with_nearest(
                    place.key_span(key),
                    format!("unknown key `{key}` in {}", place.name),
                    nearest(key, known),
                );
            }
        }
    }

    pub(super) fn wrong(&mut self, place: Place<'_>, key: &str, expected: &str) {
        let found = place.item(key).map_or("nothing", Item::type_name);
        let message = format!("`{key}` must be {expected}, not {found}");
        self.problems.add(place.span(key), message);
    }

    pub(super) fn table<'t>(&mut self, place: Place<'t>, key: &str) -> Option<&'t dyn TableLike> {
        let table = place.item(key)?.as_table_like();
        if table.is_none() {
            self.wrong(place, key, "a table");
        }
        table
    }

    /// A list of tables, written either way.
    pub(super) fn tables<'t>(
        &mut self,
        place: Place<'t>,
        key: &str,
    ) -> Vec<(&'t dyn TableLike, Option<Range<usize>>)> {
        let Some(item) = place.item(key) else {
            return Vec::new();
        };
        if let Some(tables) = item.as_array_of_tables() {
            return tables
                .iter()
                .map(|table| (table as &dyn TableLike, table.span()))
                .collect();
        }
        let inline: Option<Vec<_>> = item.as_array().and_then(|array| {
            array
                .iter()
                .map(|value| {
                    let table = value.as_inline_table()?;
                    Some((table as &dyn TableLike, value.span()))
                })
                .collect()
        });
        inline.unwrap_or_else(|| {
            self.wrong(place, key, "a list of tables");
            Vec::new()
        })
    }

    pub(super) fn text<'t>(&mut self, place: Place<'t>, key: &str) -> Option<&'t str> {
        let text = place.item(key)?.as_str();
        if text.is_none() {
            self.wrong(place, key, "a text");
        }
        text
    }

    pub(super) fn integer(&mut self, place: Place<'_>, key: &str) -> Option<i64> {
        let number = place.item(key)?.as_integer();
        if number.is_none() {
            self.wrong(place, key, "a whole number");
        }
        number
    }

    pub(super) fn whole_number(&mut self, place: Place<'_>, key: &str, least: u64) -> Option<u64> {
        let number = self.integer(place, key)?;
        // Large enough for every use, small enough to add and multiply.
        let fits = u64::try_from(number)
            .ok()
            .filter(|number| (least..=1_000_000_000).contains(number));
        if fits.is_none() {
            let message = format!("`{key}` must be from {least} to 1000000000, not {number}");
            self.problems.add(place.span(key), message);
        }
        fits
    }

    pub(super) fn milliseconds(&mut self, place: Place<'_>, key: &str) -> Duration {
        Duration::from_millis(self.whole_number(place, key, 0).unwrap_or(0))
    }

    pub(super) fn one_of(&mut self, place: Place<'_>, key: &str, known: &[&str]) -> Option<String> {
        let text = self.text(place, key)?;
        if !known.contains(&text) {
            let message = format!("`{key}` must be one of {}, not `{text}`", known.join(", "));
            self.problems
                .add_with_nearest(place.span(key), message, nearest(text, known));
        }
        Some(text.to_owned())
    }

    pub(super) fn expression(&mut self, place: Place<'_>, key: &str) -> Option<Regex> {
        let text = self.text(place, key)?;
        match Regex::new(text) {
            Ok(expression) => Some(expression),
            Err(error) => {
                // Its last line says what is wrong; the others draw a picture of where.
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default();
                let reason = reason.trim().trim_start_matches("error: ");
                self.problems.add(
                    place.span(key),
                    format!("`{key}` is not a regular expression: {reason}"),
                );
                None
            }
        }
    }

    pub(super) fn template(
        &mut self,
        place: Place<'_>,
        key: &str,
        known: &[&str],
    ) -> Option<Template> {
        let text = self.text(place, key)?;
        self.parsed_template(text, place.span(key).as_ref(), known)
    }

    pub(super) fn parsed_template(
        &mut self,
        text: &str,
        span: Option<&Range<usize>>,
        known: &[&str],
    ) -> Option<Template> {
        match Template::parse(text, known) {
            Ok(template) => Some(template),
            Err(errors) => {
                for error in errors {
                    self.problems
                        .add_with_nearest(span.cloned(), error.message, error.nearest);
                }
                None
            }
        }
    }
}
