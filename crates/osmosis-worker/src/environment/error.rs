use std::fmt::Write as _;

use camino::Utf8PathBuf;

/// Why there is no environment to run user code in.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error("there is no folder for the cache")]
    NoCache,
    #[error("{action} `{path}`: {source}")]
    Io {
        action: &'static str,
        path: Utf8PathBuf,
        source: std::io::Error,
    },
    #[error("`{file}` can't be used:{}", listed(problems))]
    Project {
        file: Utf8PathBuf,
        problems: Vec<String>,
    },
    #[error("no python interpreter that satisfies `{requires}`:{}", listed(&reasons(passed_over)))]
    NoInterpreter {
        requires: String,
        passed_over: Vec<PassedOver>,
    },
    #[error("`{python}` lacks {}", packages.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))]
    MissingPackages {
        python: Utf8PathBuf,
        packages: Vec<String>,
        remedy: PackageRemedy,
    },
    #[error("`{path}` was not made by osmosis and does not fit: {reason}")]
    ForeignEnvironment { path: Utf8PathBuf, reason: String },
    #[error("`{command}` {detail}:{}", listed(output))]
    Tool {
        command: String,
        detail: String,
        /// Its last lines.
        output: Vec<String>,
    },
    #[error("`{command}` {detail}:{}", listed(output))]
    Build {
        command: String,
        detail: String,
        /// Its last lines.
        output: Vec<String>,
    },
}

/// What to do about an interpreter that lacks packages, besides installing them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackageRemedy {
    /// The interpreter was named, and the project names no packages: nothing else can be done.
    Install,
    /// The interpreter was named; without it an environment is made from `pyproject.toml`.
    LeaveOutPython,
    /// This environment belongs to the user; without it one is made.
    RemoveEnvironment(Utf8PathBuf),
    /// A file that is not there: with this dependency in it an environment is made.
    AddProject {
        file: Utf8PathBuf,
        dependency: String,
    },
}

/// An interpreter that was looked at and not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    pub path: Utf8PathBuf,
    pub reason: String,
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvironmentErrorKind {
    /// The rollout's `pyproject.toml` is at fault.
    Project,
    /// No interpreter, or none that fits.
    Interpreter,
    /// Something could not be installed.
    Install,
    /// The machine: disks, permissions.
    Machine,
}

impl EnvironmentError {
    pub fn kind(&self) -> EnvironmentErrorKind {
        match self {
            Self::Project { .. } | Self::Build { .. } => EnvironmentErrorKind::Project,
            Self::NoInterpreter { .. }
            | Self::MissingPackages { .. }
            | Self::ForeignEnvironment { .. } => EnvironmentErrorKind::Interpreter,
            Self::Tool { .. } => EnvironmentErrorKind::Install,
            Self::NoCache | Self::Io { .. } => EnvironmentErrorKind::Machine,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoCache => Some(format!(
                "set `{}` to a folder that can be written to",
                super::CACHE_VARIABLE
            )),
            Self::Io { .. } => None,
            Self::Project { .. } => {
                Some("`[project]` follows the standard for `pyproject.toml` (PEP 621)".to_owned())
            }
            Self::NoInterpreter { .. } => {
                Some("install a python that fits, or name one with `--python`".to_owned())
            }
            Self::MissingPackages {
                python,
                packages,
                remedy,
            } => {
                let install = format!("run `{python} -m pip install {}`", packages.join(" "));
                Some(match remedy {
                    PackageRemedy::Install => install,
                    PackageRemedy::LeaveOutPython => format!(
                        "{install}, or leave out `--python` so that osmosis makes `.venv` from `pyproject.toml`"
                    ),
                    PackageRemedy::RemoveEnvironment(path) => {
                        format!("{install}, or remove `{path}` so that osmosis makes its own")
                    }
                    PackageRemedy::AddProject { file, dependency } => format!(
                        "create `{file}` with these two lines, and osmosis makes the project's environment:\n  \
                         [project]\n  dependencies = [\"{dependency}\"]\nor {install}"
                    ),
                })
            }
            Self::ForeignEnvironment { path, .. } => Some(format!(
                "remove `{path}` so that osmosis makes its own, or change it by hand"
            )),
            Self::Tool { output, .. } => Some(install_hint(output)),
            Self::Build { .. } => {
                Some("run the command in the rollout's folder to see all of it".to_owned())
            }
        }
    }

    /// The same failure, of a build rather than of an installation.
    pub(super) fn into_build(self) -> Self {
        match self {
            Self::Tool {
                command,
                detail,
                output,
            } => Self::Build {
                command,
                detail,
                output,
            },
            other => other,
        }
    }

    pub(super) fn io(
        action: &'static str,
        path: impl Into<Utf8PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

fn install_hint(output: &[String]) -> String {
    let says = |words: &[&str]| {
        output
            .iter()
            .any(|line| words.iter().any(|word| line.contains(word)))
    };
    let hint = if says(&["ensurepip"]) {
        "this python can't make environments: install its `venv` package (`python3-venv` on Debian and Ubuntu), or `uv`"
    } else if says(&[
        "No matching distribution",
        "no version of",
        "not found in the package registry",
    ]) {
        "check the name and version of the package in `pyproject.toml`, and that it exists for this python"
    } else if says(&[
        "ResolutionImpossible",
        "conflict",
        "unsatisfiable",
        "No solution found",
    ]) {
        "the dependencies exclude each other: loosen a version in `pyproject.toml`"
    } else if says(&[
        "Temporary failure",
        "Connection",
        "timed out",
        "Name or service",
        "dns error",
    ]) {
        "the package index can't be reached: check the network, or the index that pip or uv is told to use"
    } else {
        "its last lines of output say why; run the command by hand to see all of it"
    };
    hint.to_owned()
}

fn reasons(passed_over: &[PassedOver]) -> Vec<String> {
    if passed_over.is_empty() {
        return vec!["nothing was found in `PATH`".to_owned()];
    }
    passed_over
        .iter()
        .map(|candidate| format!("`{}` {}", candidate.path, candidate.reason))
        .collect()
}

fn listed(lines: &[String]) -> String {
    lines.iter().fold(String::new(), |mut text, line| {
        // Writing to a string can't fail.
        let _ = write!(text, "\n  {line}");
        text
    })
}
