//! A config as a command gets it: its file, when there is one, and the keys that are set beside it.

use camino::{Utf8Path, Utf8PathBuf};
use toml_edit::{Document, DocumentMut, Item, TableLike};

use super::{ConfigError, ConfigErrors, ConfigKind, ConfigProblem, Override, reader, section};

/// What errors call a config that has no file.
const NO_FILE: &str = "command line";

/// The keys of `[experiment]` that must be somewhere, and the flags that set them.
const FLAGS: &[(&str, &str, &str)] = &[
    ("rollout", "--rollout", "NAME"),
    ("entrypoint", "--entrypoint", "main.py"),
    ("model_path", "--model", "openai/MODEL"),
    ("dataset", "--dataset", "data/FILE.jsonl"),
];

/// Where the keys of a config come from.
#[derive(Debug, Clone, Default)]
pub struct ConfigSource {
    /// `None` when everything is given by flags.
    pub file: Option<Utf8PathBuf>,
    /// What is in the file.
    pub text: String,
    pub overrides: Vec<Override>,
}

impl ConfigSource {
    /// A file, with everything as it says.
    pub fn of_file(file: Utf8PathBuf, text: String) -> Self {
        Self {
            file: Some(file),
            text,
            overrides: vec![],
        }
    }

    /// What messages call it.
    pub fn place(&self) -> &Utf8Path {
        self.file.as_deref().unwrap_or(Utf8Path::new(NO_FILE))
    }

    /// The overrides as `--set` takes them.
    pub fn settings(&self) -> Vec<String> {
        self.overrides.iter().map(Override::setting).collect()
    }

    /// The config that is in effect: the file with the overrides written into it.
    pub fn effective_text(&self) -> Result<String, ConfigErrors> {
        if self.overrides.is_empty() {
            return Ok(self.text.clone());
        }
        reader::parse(self.place(), &self.text)?;
        let mut document: DocumentMut =
            self.text.parse().map_err(|error: toml_edit::TomlError| {
                let problem = ConfigProblem::Syntax {
                    message: error.message().trim().replace('\n', ", "),
                };
                ConfigErrors(vec![self.at(0, problem)])
            })?;
        let mut errors = vec![];
        for (place, one) in self.overrides.iter().enumerate() {
            let before = &self.overrides[..place];
            if let Some(first) = before.iter().find(|other| other.path() == one.path()) {
                let problem = ConfigProblem::SetTwice {
                    key: one.path().join("."),
                    first: first.origin().to_owned(),
                };
                errors.push(by_override(one, problem));
                continue;
            }
            if let Err(path) = one.apply(&mut document) {
                errors.push(by_override(one, ConfigProblem::NoTable { path }));
            }
        }
        if errors.is_empty() {
            Ok(document.to_string())
        } else {
            Err(ConfigErrors(errors))
        }
    }

    /// Has the effective text checked, and says where in the file, or in which flag, each problem is.
    pub(super) fn check<T>(
        &self,
        kind: ConfigKind,
        parse: impl FnOnce(&Utf8Path, &str) -> Result<T, ConfigErrors>,
    ) -> Result<T, ConfigErrors> {
        if self.overrides.is_empty() && self.file.is_some() {
            return parse(self.place(), &self.text);
        }
        // An override of the wanted kind must not hide that the file is of the other one.
        let document = reader::parse(self.place(), &self.text)?;
        reader::Reader::new(self.place(), &self.text, &document, kind)?;
        let text = self.effective_text()?;
        parse(self.place(), &text).map_err(|errors| self.relocated(&text, errors))
    }

    fn relocated(&self, effective: &str, errors: ConfigErrors) -> ConfigErrors {
        let Ok(document) = Document::parse(effective) else {
            return errors;
        };
        let entries = entries(&document);
        let relocated = errors.0.into_iter().flat_map(|error| {
            let offset = offset_of(effective, error.line, error.column);
            self.relocate(&entries, offset, error.problem)
        });
        ConfigErrors(relocated.collect())
    }

    fn relocate(
        &self,
        entries: &[Entry],
        offset: usize,
        problem: ConfigProblem,
    ) -> Vec<ConfigError> {
        if self.file.is_none()
            && let Some(problems) = missing_flags(&problem)
        {
            return problems
                .into_iter()
                .map(|problem| self.at(0, problem))
                .collect();
        }
        let found = entries
            .iter()
            .filter(|entry| entry.contains(offset))
            .max_by_key(|entry| entry.path.len());
        let Some(found) = found else {
            return vec![self.at(0, problem)];
        };
        let by = self
            .overrides
            .iter()
            .find(|one| found.path.starts_with(one.path()));
        if let Some(one) = by {
            return vec![by_override(one, problem)];
        }
        let original = Document::parse(self.text.as_str()).ok();
        let originals = original.as_ref().map(self::entries).unwrap_or_default();
        let there = originals.iter().find(|entry| entry.path == found.path);
        // A section that only overrides have.
        let below = |one: &&Override| one.path().starts_with(&found.path);
        if let (None, Some(one), false) = (
            there,
            self.overrides.iter().find(below),
            matches!(problem, ConfigProblem::MissingKey { .. }),
        ) {
            return vec![by_override(one, problem)];
        }
        let offset = there.map_or(0, |there| there.offset_like(found, offset));
        vec![self.at(offset, problem)]
    }

    fn at(&self, offset: usize, problem: ConfigProblem) -> ConfigError {
        let mut error = reader::error_at(self.place(), &self.text, offset, problem);
        if self.file.is_none() {
            error.origin = Some(NO_FILE.to_owned());
        }
        error
    }
}

fn by_override(one: &Override, problem: ConfigProblem) -> ConfigError {
    ConfigError {
        file: Utf8PathBuf::from(NO_FILE),
        line: 1,
        column: 1,
        origin: Some(one.origin().to_owned()),
        problem,
    }
}

/// What is missing, by the flags that would give it.
fn missing_flags(problem: &ConfigProblem) -> Option<Vec<ConfigProblem>> {
    let of_key = |wanted: &str| {
        let found = FLAGS.iter().find(|(key, ..)| *key == wanted);
        found.map(|(key, flag, example)| ConfigProblem::MissingFlag { key, flag, example })
    };
    match problem {
        ConfigProblem::MissingSection { required, .. } => {
            Some(required.iter().filter_map(|key| of_key(key)).collect())
        }
        ConfigProblem::MissingKey { key, .. } => of_key(key).map(|problem| vec![problem]),
        _ => None,
    }
}

/// A key and where it is.
struct Entry {
    path: Vec<String>,
    /// Where the key, or the header of a table, begins.
    key: usize,
    /// Of a value; of nothing for a table with a header.
    value: std::ops::Range<usize>,
}

impl Entry {
    fn contains(&self, offset: usize) -> bool {
        self.key == offset || self.value.contains(&offset)
    }

    /// Where `offset`, a place in `other`, is in this one, which has the same value.
    fn offset_like(&self, other: &Self, offset: usize) -> usize {
        if offset == other.key {
            self.key
        } else {
            self.value.start + (offset - other.value.start)
        }
    }
}

/// Every key of the document.
fn entries<S: AsRef<str>>(document: &Document<S>) -> Vec<Entry> {
    let mut found = vec![];
    collect(document.as_table(), &mut vec![], &mut found);
    found
}

fn collect(table: &dyn TableLike, path: &mut Vec<String>, found: &mut Vec<Entry>) {
    for (name, item) in table.iter() {
        path.push(name.to_owned());
        if let Some(entry) = section::entry(table, name) {
            let value = match item {
                Item::Value(value) => value.span(),
                Item::None | Item::Table(_) | Item::ArrayOfTables(_) => None,
            };
            found.push(Entry {
                path: path.clone(),
                key: entry.key_offset,
                value: value.unwrap_or(0..0),
            });
        }
        if let Some(inner) = item.as_table_like() {
            collect(inner, path, found);
        }
        path.pop();
    }
}

/// Lines and columns count from 1, columns in characters.
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    let rest = text.get(start..).unwrap_or_default();
    let within = rest.char_indices().nth(column.saturating_sub(1));
    start + within.map_or(rest.len(), |(offset, _)| offset)
}
