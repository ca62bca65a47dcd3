//! Reads sections and keys out of parsed TOML and collects what is wrong with them.

use std::ops::RangeInclusive;

use camino::Utf8Path;
use toml_edit::{Document, Item, TableLike, Value};

use super::range::NumberRange;
use super::schema::{self, Keys};
use super::section::{Entry, Section, entry, type_of};
use super::{ConfigError, ConfigErrors, ConfigKind, ConfigProblem, suggestion};
use crate::RewardRange;

pub(super) fn parse<'t>(file: &Utf8Path, text: &'t str) -> Result<Document<&'t str>, ConfigErrors> {
    Document::parse(text).map_err(|error| {
        let offset = error.span().map_or(text.len(), |span| span.start);
        ConfigErrors(vec![error_at(
            file,
            text,
            offset,
            ConfigProblem::Syntax {
                message: error.message().trim().replace('\n', ", "),
            },
        )])
    })
}

/// Gives out values and remembers every problem on the way.
pub(super) struct Reader<'d> {
    file: &'d Utf8Path,
    text: &'d str,
    root: &'d dyn TableLike,
    kind: ConfigKind,
    errors: Vec<(usize, ConfigProblem)>,
}

impl<'d> Reader<'d> {
    /// Fails at once for the other kind of config: its problems would be noise.
    pub(super) fn new(
        file: &'d Utf8Path,
        text: &'d str,
        document: &'d Document<&'d str>,
        kind: ConfigKind,
    ) -> Result<Self, ConfigErrors> {
        let mut reader = Self {
            file,
            text,
            root: document.as_table(),
            kind,
            errors: Vec::new(),
        };
        for other in kind.others() {
            if !reader.root.contains_key(kind.section())
                && let Some(entry) = entry(reader.root, other.section())
            {
                let problem = ConfigProblem::OtherKind {
                    found: other,
                    wanted: kind,
                };
                reader.report(entry.key_offset, problem);
                return Err(reader.into_errors());
            }
        }
        reader.check_names();
        Ok(reader)
    }

    pub(super) fn kind(&self) -> ConfigKind {
        self.kind
    }

    pub(super) fn report(&mut self, offset: usize, problem: ConfigProblem) {
        self.errors.push((offset, problem));
    }

    /// The config, when nothing was reported.
    pub(super) fn finish<E, T>(
        self,
        experiment: Option<E>,
        build: impl FnOnce(E) -> T,
    ) -> Result<T, ConfigErrors> {
        match experiment {
            Some(experiment) if self.errors.is_empty() => Ok(build(experiment)),
            Some(_) | None => Err(self.into_errors()),
        }
    }

    fn into_errors(mut self) -> ConfigErrors {
        self.errors.sort_by_key(|(offset, _)| *offset);
        ConfigErrors(
            self.errors
                .into_iter()
                .map(|(offset, problem)| error_at(self.file, self.text, offset, problem))
                .collect(),
        )
    }

    /// Reports every section and key that nobody will read.
    fn check_names(&mut self) {
        let root = self.root;
        for (name, item) in root.iter() {
            let at = key_offset(root, name);
            if let Some(table) = item.as_table_like()
                && schema::holds_sections(name)
                && schema::section(name).is_none()
            {
                self.check_inner_names(name, table);
                continue;
            }
            // A quoted name with a dot in it is no section within another.
            let known = schema::section(name)
                .filter(|section| section.is_of(self.kind) && !name.contains('.'));
            match (known, item.as_table_like()) {
                (Some(section), Some(table)) => self.check_keys(section, table),
                (Some(_), None) => {
                    let problem = ConfigProblem::WrongType {
                        subject: format!("section `[{name}]`"),
                        expected: "a table",
                        found: type_of(item),
                        suggestion: None,
                    };
                    self.report(at, problem);
                }
                (None, None) if !item.is_array_of_tables() => {
                    let problem = ConfigProblem::UnknownKey {
                        section: None,
                        key: name.to_owned(),
                        suggestion: suggestion::for_key(self.kind, None, name),
                    };
                    self.report(at, problem);
                }
                (None, _) => {
                    let inner = only_inner_section(name, item);
                    let name = inner.map_or(name, |inner| inner.name);
                    let problem = ConfigProblem::UnknownSection {
                        section: if inner.is_none() && name.contains('.') {
                            format!("\"{name}\"")
                        } else {
                            name.to_owned()
                        },
                        suggestion: Some(suggestion::for_section(self.kind, name)),
                    };
                    self.report(at, problem);
                }
            }
        }
    }

    /// Reports every key of a section that nobody will read.
    fn check_keys(&mut self, section: &'static schema::Section, table: &dyn TableLike) {
        if matches!(section.keys, Keys::Any | Keys::AnyBeside(_)) {
            return;
        }
        for (key, item) in table.iter() {
            let inner = schema::section(&format!("{}.{key}", section.name));
            if let Some(inner) = inner.filter(|inner| inner.is_of(self.kind)) {
                self.check_inner(inner, key_offset(table, key), item);
            } else if !section.keys().contains(&key) {
                let problem = ConfigProblem::UnknownKey {
                    section: Some(section.name.to_owned()),
                    key: key.to_owned(),
                    suggestion: suggestion::for_key(self.kind, Some(section), key),
                };
                self.report(key_offset(table, key), problem);
            }
        }
    }

    /// The same for a section within another.
    fn check_inner(&mut self, section: &'static schema::Section, at: usize, item: &Item) {
        if let Some(table) = item.as_table_like() {
            return self.check_keys(section, table);
        }
        let problem = ConfigProblem::WrongType {
            subject: format!("section `[{}]`", section.name),
            expected: "a table",
            found: type_of(item),
            suggestion: None,
        };
        self.report(at, problem);
    }

    /// The same for a table that holds sections alone.
    fn check_inner_names(&mut self, outer: &str, table: &dyn TableLike) {
        for (key, item) in table.iter() {
            let at = key_offset(table, key);
            let known = schema::section(&format!("{outer}.{key}"));
            match (known, item.as_table_like()) {
                (Some(section), _) => self.check_inner(section, at, item),
                (None, Some(_)) => {
                    let name = format!("{outer}.{key}");
                    let problem = ConfigProblem::UnknownSection {
                        suggestion: Some(suggestion::for_section(self.kind, &name)),
                        section: name,
                    };
                    self.report(at, problem);
                }
                (None, None) => {
                    let problem = ConfigProblem::UnknownKey {
                        section: Some(outer.to_owned()),
                        key: key.to_owned(),
                        suggestion: suggestion::for_key(self.kind, None, key),
                    };
                    self.report(at, problem);
                }
            }
        }
    }

    pub(super) fn section(&self, name: &'static str) -> Section<'d> {
        debug_assert!(
            schema::section(name).is_some_and(|section| section.is_of(self.kind)),
            "`[{name}]` is not in the schema"
        );
        let found = match name.split_once('.') {
            None => entry(self.root, name),
            Some((outer, inner)) => {
                entry(self.root, outer).and_then(|outer| entry(outer.item.as_table_like()?, inner))
            }
        };
        Section {
            name,
            present: found.is_some(),
            table: found.and_then(|entry| entry.item.as_table_like()),
            offset: found.map_or(0, |entry| entry.key_offset),
            text: self.text,
        }
    }

    /// A value that `read` understands; `None` when it is absent or was reported.
    pub(super) fn optional<T>(
        &mut self,
        section: Section<'d>,
        key: &'static str,
        read: impl FnOnce(&Entry<'d>) -> Result<T, ConfigProblem>,
    ) -> Option<T> {
        let entry = section.entry(key)?;
        match read(&entry) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.report(entry.offset, problem);
                None
            }
        }
    }

    pub(super) fn integer(
        &mut self,
        section: Section<'d>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        self.optional(section, key, |entry| {
            let Some(value) = entry.item.as_integer() else {
                return Err(section.wrong_type(key, "an integer", entry.item));
            };
            let range_text = match u64::try_from(value) {
                Ok(value) if range.contains(&value) => return Ok(value),
                Ok(value) if value > *range.end() => format!("at most {}", range.end()),
                Ok(_) | Err(_) => format!("at least {}", range.start()),
            };
            Err(ConfigProblem::OutOfRange {
                section: section.name,
                key,
                range: range_text,
                value: section.source(entry.item).to_owned(),
            })
        })
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, section: Section<'d>, key: &'static str) -> Option<bool> {
        self.optional(section, key, |entry| {
            let value = entry.item.as_bool();
            value.ok_or_else(|| section.wrong_type(key, "`true` or `false`", entry.item))
        })
    }

    /// An integer that fits 32 bits.
    pub(super) fn small_integer(
        &mut self,
        section: Section<'d>,
        key: &'static str,
        least: u32,
    ) -> Option<u32> {
        let range = u64::from(least)..=u64::from(u32::MAX);
        self.integer(section, key, range)
            .and_then(|value| u32::try_from(value).ok())
    }

    pub(super) fn number(
        &mut self,
        section: Section<'d>,
        key: &'static str,
        range: NumberRange,
    ) -> Option<f64> {
        self.optional(section, key, |entry| {
            // Whole numbers in a config are far below 2^53.
            let value = match (entry.item.as_float(), entry.item.as_integer()) {
                (Some(float), _) => float,
                (None, Some(integer)) => integer as f64,
                (None, None) => return Err(section.wrong_type(key, "a number", entry.item)),
            };
            if range.contains(value) {
                return Ok(value);
            }
            Err(ConfigProblem::OutOfRange {
                section: section.name,
                key,
                range: range.to_string(),
                value: section.source(entry.item).to_owned(),
            })
        })
    }

    /// `[low, high]`
    pub(super) fn reward_range(&mut self, section: Section<'d>) -> Option<RewardRange> {
        const KEY: &str = "reward_range";
        self.optional(section, KEY, |entry| {
            let expected = "an array of two numbers";
            let wrong_type = || section.wrong_type(KEY, expected, entry.item);
            let array = entry.item.as_array().ok_or_else(wrong_type)?;
            let number = |value: &Value| {
                let integer = value.as_integer().map(|integer| integer as f64);
                value.as_float().or(integer)
            };
            let numbers: Vec<Option<f64>> = array.iter().map(number).collect();
            let unusable = |message: String| ConfigProblem::Unusable {
                section: section.name,
                key: KEY.to_owned(),
                message,
                suggestion: Some(
                    "write the lowest and the highest reward that the grader gives, like `[0, 1]`"
                        .to_owned(),
                ),
            };
            match numbers[..] {
                [Some(low), Some(high)] => {
                    RewardRange::new(low, high).map_err(|error| unusable(error.to_string()))
                }
                _ => Err(unusable(format!(
                    "must be {expected}, not `{}`",
                    section.source(entry.item)
                ))),
            }
        })
    }

    /// A string that `parse` makes sense of.
    pub(super) fn parsed<T, E: std::fmt::Display>(
        &mut self,
        section: Section<'d>,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
        hint: impl FnOnce(&E) -> Option<String>,
    ) -> Option<T> {
        self.optional(section, key, |entry| {
            let text = section.string(key, entry)?;
            parse(text).map_err(|error| ConfigProblem::Unusable {
                section: section.name,
                key: key.to_owned(),
                suggestion: hint(&error),
                message: error.to_string(),
            })
        })
    }

    /// Reports `key` as missing unless it is there.
    pub(super) fn require(
        &mut self,
        section: Section<'d>,
        key: &'static str,
        example: &'static str,
    ) {
        if section.table.is_some() && section.entry(key).is_none() {
            let problem = ConfigProblem::MissingKey {
                section: section.name,
                key,
                example,
            };
            self.report(section.offset, problem);
        }
    }

    /// Reports two keys that can't both be set.
    pub(super) fn exclude(
        &mut self,
        section: Section<'d>,
        first: &'static str,
        second: &'static str,
    ) {
        if let (Some(one), Some(other)) = (section.entry(first), section.entry(second)) {
            let problem = ConfigProblem::Exclusive {
                section: section.name,
                first,
                second,
            };
            self.report(one.key_offset.max(other.key_offset), problem);
        }
    }
}

/// The section within a table that has nothing else: `[a.b]` without an `[a]`.
fn only_inner_section(outer: &str, item: &Item) -> Option<&'static schema::Section> {
    let table = item.as_table().filter(|table| table.is_implicit())?;
    let mut names = table.iter().map(|(name, _)| name);
    let (Some(inner), None) = (names.next(), names.next()) else {
        return None;
    };
    schema::section(&format!("{outer}.{inner}"))
}

fn key_offset(table: &dyn TableLike, key: &str) -> usize {
    entry(table, key).map_or(0, |entry| entry.key_offset)
}

pub(super) fn error_at(
    file: &Utf8Path,
    text: &str,
    offset: usize,
    problem: ConfigProblem,
) -> ConfigError {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    ConfigError {
        file: file.to_owned(),
        line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        origin: None,
        problem,
    }
}
