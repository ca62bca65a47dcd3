use std::fmt;

use camino::Utf8PathBuf;

/// Every problem of a config file, in the order of the file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// One line per problem, its hint below it.
    pub fn render(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
            if let Some(hint) = error.hint() {
                write!(f, "\n  hint: {hint}")?;
            }
        }
        Ok(())
    }
}

/// One problem and its place. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}: {problem}", Place(self))]
pub struct ConfigError {
    pub file: Utf8PathBuf,
    pub line: usize,
    pub column: usize,
    /// The flag that it is in, like `--set evaluation.n=0`, when it is not in the file.
    pub origin: Option<String>,
    pub problem: ConfigProblem,
}

impl ConfigError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        self.problem.code()
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        self.problem.hint()
    }
}

struct Place<'a>(&'a ConfigError);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigError {
            file, line, column, ..
        } = self.0;
        match &self.0.origin {
            Some(flag) if flag.starts_with('-') => write!(f, "`{flag}`"),
            Some(origin) => f.write_str(origin),
            None => write!(f, "{file}:{line}:{column}"),
        }
    }
}

/// Which kind of config a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigKind {
    Evaluation,
    Training,
    /// Training on conversations that are written down.
    Supervised,
}

impl ConfigKind {
    /// The section that no other kind has.
    pub fn section(self) -> &'static str {
        match self {
            Self::Evaluation => "evaluation",
            Self::Training => "training",
            Self::Supervised => "sft",
        }
    }

    /// The command that takes such a config.
    pub fn command(self) -> &'static str {
        match self {
            Self::Evaluation => "eval submit",
            Self::Training => "train submit",
            Self::Supervised => "train sft",
        }
    }

    /// The kinds that a file may be of by mistake, the likeliest first.
    pub(super) fn others(self) -> [Self; 2] {
        match self {
            Self::Evaluation => [Self::Training, Self::Supervised],
            Self::Training => [Self::Evaluation, Self::Supervised],
            Self::Supervised => [Self::Training, Self::Evaluation],
        }
    }
}

impl fmt::Display for ConfigKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evaluation => "an evaluation config",
            Self::Training => "a training config",
            Self::Supervised => "a config of supervised training",
        })
    }
}

/// What can be wrong with a config.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigProblem {
    #[error("{message}")]
    Syntax { message: String },
    #[error(
        "this is {found}: it has `[{}]` and no `[{}]`",
        found.section(),
        wanted.section()
    )]
    OtherKind {
        found: ConfigKind,
        wanted: ConfigKind,
    },
    #[error("unknown section `[{section}]`")]
    UnknownSection {
        section: String,
        suggestion: Option<String>,
    },
    #[error("unknown key `{key}` {}", Within(section.as_deref()))]
    UnknownKey {
        /// `None` at the top of the file.
        section: Option<String>,
        key: String,
        suggestion: Option<String>,
    },
    #[error("missing section `[{section}]`")]
    MissingSection {
        section: &'static str,
        required: &'static [&'static str],
    },
    #[error("missing key `{key}` in `[{section}]`")]
    MissingKey {
        section: &'static str,
        key: &'static str,
        example: &'static str,
    },
    /// Of a config without a file.
    #[error("`{flag}` is missing, and there is no config file that has `{key}`")]
    MissingFlag {
        key: &'static str,
        flag: &'static str,
        example: &'static str,
    },
    #[error("`{key}` is set by `{first}`, too")]
    SetTwice { key: String, first: String },
    #[error("`{path}` is a value, and holds no keys")]
    NoTable { path: String },
    #[error("{subject} must be {expected}, found {found}")]
    WrongType {
        /// The key and its section, or the section.
        subject: String,
        expected: &'static str,
        found: &'static str,
        suggestion: Option<String>,
    },
    #[error("`{key}` in `[{section}]` must be {range}, not `{value}`")]
    OutOfRange {
        section: &'static str,
        key: &'static str,
        range: String,
        value: String,
    },
    #[error("`{key}` in `[{section}]`: {message}")]
    Unusable {
        section: &'static str,
        key: String,
        message: String,
        suggestion: Option<String>,
    },
    #[error("`{first}` and `{second}` in `[{section}]` exclude each other")]
    Exclusive {
        section: &'static str,
        first: &'static str,
        second: &'static str,
    },
}

impl ConfigProblem {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Syntax { .. } => "syntax",
            Self::OtherKind { .. } => "other_kind",
            Self::UnknownSection { .. } => "unknown_section",
            Self::UnknownKey { .. } => "unknown_key",
            Self::MissingSection { .. } => "missing_section",
            Self::MissingKey { .. } => "missing_key",
            Self::MissingFlag { .. } => "missing_flag",
            Self::SetTwice { .. } => "set_twice",
            Self::NoTable { .. } => "no_table",
            Self::WrongType { .. } => "wrong_type",
            Self::OutOfRange { .. } => "out_of_range",
            Self::Unusable { .. } => "unusable",
            Self::Exclusive { .. } => "exclusive",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Syntax { .. } | Self::OutOfRange { .. } | Self::NoTable { .. } => None,
            Self::MissingFlag { flag, example, .. } => Some(format!("give `{flag} {example}`")),
            Self::OtherKind { found, .. } => Some(format!("use `osmosis {}`", found.command())),
            Self::UnknownSection { suggestion, .. }
            | Self::UnknownKey { suggestion, .. }
            | Self::WrongType { suggestion, .. }
            | Self::Unusable { suggestion, .. } => suggestion.clone(),
            Self::MissingSection { section, required } => Some(format!(
                "add `[{section}]` with {}",
                listed(required.iter().copied(), "and")
            )),
            Self::MissingKey {
                section,
                key,
                example,
            } => Some(format!("add `{key} = {example}` to `[{section}]`")),
            Self::Exclusive { .. } | Self::SetTwice { .. } => {
                Some("keep one of the two".to_owned())
            }
        }
    }
}

/// `` `a`, `b` and `c` ``
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>, last: &str) -> String {
    let mut names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.pop() {
        None => String::new(),
        Some(only) if names.is_empty() => only,
        Some(end) => format!("{} {last} {end}", names.join(", ")),
    }
}

struct Within<'a>(Option<&'a str>);

impl fmt::Display for Within<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(section) => write!(f, "in `[{section}]`"),
            None => f.write_str("outside of any section"),
        }
    }
}
