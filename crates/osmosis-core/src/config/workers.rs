use serde::Serialize;

use super::ConfigProblem;
use super::reader::Reader;

/// `[workers]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Workers {
    pub isolation: WorkerIsolation,
    /// Not pinned: a resume may run on a machine with other users.
    #[serde(skip)]
    pub user: WorkerUser,
}

/// `user`: the user of the operating system that workers run as.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WorkerUser {
    /// An unprivileged user where the engine is root and that user can reach what workers need; else the engine's user.
    #[default]
    Auto,
    /// The engine's user.
    Same,
    /// The user of this name, or an error before the run.
    Named(String),
    /// The user of this number, or an error before the run.
    Uid(u32),
}

impl std::str::FromStr for WorkerUser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let may_begin = |c: char| c.is_ascii_alphabetic() || c == '_';
        match text {
            "auto" => Ok(Self::Auto),
            "same" => Ok(Self::Same),
            number if number.starts_with(|c: char| c.is_ascii_digit()) => match number.parse() {
                Ok(uid) if uid != u32::MAX => Ok(Self::Uid(uid)),
                Ok(_) | Err(_) => Err(format!("`{}` is no user id", number.escape_debug())),
            },
            name if name.starts_with(may_begin)
                && !name.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control()) =>
            {
                Ok(Self::Named(name.to_owned()))
            }
            other => Err(format!("`{}` is no user name", other.escape_debug())),
        }
    }
}

/// `isolation`: what rollouts share with each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerIsolation {
    /// A worker process and its event loop.
    #[default]
    Shared,
    /// No process: each rollout, and each grading, has a fresh one.
    Process,
}

impl std::str::FromStr for WorkerIsolation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shared" => Ok(Self::Shared),
            "process" => Ok(Self::Process),
            other => Err(format!("unknown value `{}`", other.escape_debug())),
        }
    }
}

impl Workers {
    /// Whether nothing of it is pinned.
    pub(super) fn has_default_isolation(&self) -> bool {
        self.isolation == WorkerIsolation::default()
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Workers {
    let section = reader.section("workers");
    Workers {
        isolation: reader
            .parsed(section, "isolation", str::parse, |_: &String| {
                Some("write `shared` or `process`".to_owned())
            })
            .unwrap_or_default(),
        user: reader
            .optional(section, "user", |entry| {
                let text = match entry.item.as_integer() {
                    Some(number) => number.to_string(),
                    None => section.string("user", entry)?.to_owned(),
                };
                text.parse().map_err(|message| ConfigProblem::Unusable {
                    section: section.name,
                    key: "user".to_owned(),
                    message,
                    suggestion: Some(
                        "write `auto`, `same`, the name of a user, or its number".to_owned(),
                    ),
                })
            })
            .unwrap_or_default(),
    }
}
