use std::fmt;
use std::str::FromStr;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use serde::{Serialize, Serializer};

use crate::id::is_path_segment;

/// The file that holds the user's workflow, inside the rollout's folder, and which one is meant.
///
/// `main.py`, `main.py:Name`, `Cargo.toml` or `Cargo.toml#bin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrypoint {
    pub file: Utf8PathBuf,
    /// A Python class, or a cargo binary.
    pub name: Option<String>,
    pub language: Language,
}

/// What the user's code is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    Python,
    Rust,
}

/// Why a text is no entrypoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntrypointError {
    #[error("`{0}` is neither a `.py` file nor a `Cargo.toml`")]
    UnknownLanguage(String),
    #[error("`{0}` leaves the rollout's folder")]
    Outside(String),
    #[error("`{0}` is no Python name")]
    NotAnIdentifier(String),
    #[error("`{0}` is no name of a cargo binary")]
    NotABinary(String),
}

impl EntrypointError {
    pub fn hint(&self) -> String {
        match self {
            Self::UnknownLanguage(_) => {
                "write `main.py`, `main.py:Name`, `Cargo.toml` or `Cargo.toml#bin`".to_owned()
            }
            Self::Outside(_) => {
                "write a path relative to `rollouts/NAME/`, without `..`".to_owned()
            }
            Self::NotAnIdentifier(_) => {
                "after the `:`, name a class or object of the file".to_owned()
            }
            Self::NotABinary(_) => "after the `#`, name a `[[bin]]` of the package".to_owned(),
        }
    }
}

impl FromStr for Entrypoint {
    type Err = EntrypointError;

    fn from_str(text: &str) -> Result<Self, EntrypointError> {
        let shown = || text.escape_debug().to_string();
        let (file, name, language) = if let Some((file, class)) = split_after(text, ".py", ':') {
            (file, class, Language::Python)
        } else if let Some((file, binary)) = split_after(text, "Cargo.toml", '#') {
            (file, binary, Language::Rust)
        } else {
            return Err(EntrypointError::UnknownLanguage(shown()));
        };
        let path = Utf8Path::new(file);
        let inside = path
            .components()
            .all(|part| matches!(part, Utf8Component::Normal(_) | Utf8Component::CurDir));
        if !inside || file.contains('\\') || file.chars().any(char::is_control) {
            return Err(EntrypointError::Outside(shown()));
        }
        let fits = match language {
            Language::Python => path.file_stem().is_some_and(|stem| stem != ".py"),
            Language::Rust => path.file_name() == Some("Cargo.toml"),
        };
        if !fits {
            return Err(EntrypointError::UnknownLanguage(shown()));
        }
        if let Some(name) = name {
            match language {
                Language::Python if !is_identifier(name) => {
                    return Err(EntrypointError::NotAnIdentifier(
                        name.escape_debug().to_string(),
                    ));
                }
                Language::Rust if !is_path_segment(name) => {
                    return Err(EntrypointError::NotABinary(name.escape_debug().to_string()));
                }
                Language::Python | Language::Rust => {}
            }
        }
        Ok(Self {
            // `./main.py` and `main.py` are the same file, and a resume compares texts.
            file: path
                .components()
                .filter(|part| *part != Utf8Component::CurDir)
                .collect(),
            name: name.map(str::to_owned),
            language,
        })
    }
}

/// `main.py:Name` → `main.py` and `Name`, when the file ends in `suffix`.
fn split_after<'t>(
    text: &'t str,
    suffix: &str,
    separator: char,
) -> Option<(&'t str, Option<&'t str>)> {
    if text.ends_with(suffix) {
        return Some((text, None));
    }
    let (file, name) = text.split_once(separator)?;
    file.ends_with(suffix).then_some((file, Some(name)))
}

fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c == '_' || c.is_alphabetic())
        && chars.all(|c| c == '_' || c.is_alphanumeric())
}

impl fmt::Display for Entrypoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = match self.language {
            Language::Python => ':',
            Language::Rust => '#',
        };
        match &self.name {
            Some(name) => write!(f, "{}{separator}{name}", self.file),
            None => write!(f, "{}", self.file),
        }
    }
}

impl Serialize for Entrypoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_forms_are_understood_and_shown_as_they_were() {
        for (text, file, name, language) in [
            ("main.py", "main.py", None, Language::Python),
            (
                "src/app/main.py:MyWorkflow",
                "src/app/main.py",
                Some("MyWorkflow"),
                Language::Python,
            ),
            ("Cargo.toml", "Cargo.toml", None, Language::Rust),
            (
                "Cargo.toml#multiply-bin",
                "Cargo.toml",
                Some("multiply-bin"),
                Language::Rust,
            ),
        ] {
            let entrypoint: Entrypoint = text.parse().unwrap();
            assert_eq!(entrypoint.file, file);
            assert_eq!(entrypoint.name.as_deref(), name);
            assert_eq!(entrypoint.language, language);
            assert_eq!(entrypoint.to_string(), text);
        }
        assert_eq!(
            "./main.py".parse::<Entrypoint>().unwrap().to_string(),
            "main.py"
        );
    }

    #[test]
    fn an_entrypoint_stays_inside_the_rollout() {
        for text in [
            "../main.py",
            "/main.py",
            "a/../../main.py",
            "a\\main.py",
            "../Cargo.toml#x",
            "/a/main.py:W",
        ] {
            assert!(
                matches!(text.parse::<Entrypoint>(), Err(EntrypointError::Outside(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_neither_python_nor_cargo_is_refused() {
        for text in [
            "main",
            "main.rs",
            "main:Name",
            ".py",
            "src/.py",
            "MyCargo.toml",
            "main.py#x",
        ] {
            assert!(
                matches!(
                    text.parse::<Entrypoint>(),
                    Err(EntrypointError::UnknownLanguage(_))
                ),
                "{text}"
            );
        }
        for text in ["main.py:", "main.py:a b", "main.py:1a", "main.py:a.b"] {
            assert!(
                matches!(
                    text.parse::<Entrypoint>(),
                    Err(EntrypointError::NotAnIdentifier(_))
                ),
                "{text}"
            );
        }
        assert!("Cargo.toml#a/b".parse::<Entrypoint>().is_err());
    }
}
