//! Which Python: `--python`, the rollout's `.venv`, `VIRTUAL_ENV`, `PATH`; the first that fits.

use std::process::Stdio;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use pep440_rs::{Operator, Version, VersionSpecifier, VersionSpecifiers};
use serde::Deserialize;
use tokio::process::Command;

use super::Surroundings;
use super::error::{EnvironmentError, PassedOver};
use crate::process_group::GroupGuard;
use crate::variables;

/// How long a candidate may take to say what it is.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Names in `PATH`, the user's default first.
const NAMES: [&str; 6] = [
    "python3",
    "python",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
];

/// What a candidate prints about itself; the packages to look for are its arguments.
const QUESTION: &str = "\
import importlib.util, json, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps({
    'version': '.'.join(map(str, sys.version_info[:3])),
    'executable': getattr(sys, '_base_executable', None) or sys.executable,
    'missing': missing,
    'import_path': [folder for folder in sys.path if folder.isprintable()],
}))";

/// An interpreter that has told about itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Interpreter {
    /// How it was found: a symbolic link of an environment must be called by its own name.
    pub(super) path: Utf8PathBuf,
    /// The installation behind it: behind shims, wrappers and environments.
    pub(super) executable: Utf8PathBuf,
    pub(super) version: Version,
    pub(super) missing: Vec<String>,
    /// The folders that it imports from.
    pub(super) import_path: Vec<Utf8PathBuf>,
}

/// What an interpreter must satisfy.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub(super) ranges: Vec<VersionSpecifiers>,
    /// Modules to ask for; lacking one does not disqualify.
    pub(super) modules: Vec<&'static str>,
}

impl Wanted {
    pub(super) fn accepts(&self, version: &Version) -> bool {
        self.ranges.iter().all(|range| range.contains(version))
    }

    /// All ranges as one, each bound once: of several lower bounds the highest counts, of several upper
    /// bounds the lowest.
    fn describe(&self) -> String {
        let all: Vec<&VersionSpecifier> =
            self.ranges.iter().flat_map(|range| range.iter()).collect();
        let is_implied = |one: &VersionSpecifier, by: &VersionSpecifier| {
            one.operator() == by.operator()
                && match one.operator() {
                    Operator::GreaterThanEqual => by.version() > one.version(),
                    Operator::LessThan => by.version() < one.version(),
                    _ => false,
                }
        };
        let mut shown: Vec<String> = Vec::new();
        for one in &all {
            let text = one.to_string();
            if !shown.contains(&text) && !all.iter().any(|other| is_implied(one, other)) {
                shown.push(text);
            }
        }
        shown.join(", ")
    }
}

/// The first of the candidates that fits: the one asked for and no other, or else the preferred, the
/// active environment's, those in `PATH`.
pub(super) async fn find(
    asked_for: Option<&Utf8Path>,
    preferred: Option<Utf8PathBuf>,
    wanted: &Wanted,
    surroundings: &Surroundings,
) -> Result<Interpreter, EnvironmentError> {
    let candidates = match asked_for {
        Some(path) => vec![locate(path, surroundings)],
        None => candidates(preferred, surroundings),
    };
    let mut passed_over = Vec::new();
    for path in candidates {
        let reason = match ask(&path, wanted).await {
            Ok(interpreter) if wanted.accepts(&interpreter.version) => return Ok(interpreter),
            Ok(interpreter) => format!("is python {}", interpreter.version),
            Err(reason) => reason,
        };
        passed_over.push(PassedOver { path, reason });
    }
    Err(EnvironmentError::NoInterpreter {
        requires: wanted.describe(),
        passed_over,
    })
}

/// The interpreter that `--python` means: a path, an environment's folder, or a name in `PATH`.
pub(super) fn locate(asked_for: &Utf8Path, surroundings: &Surroundings) -> Utf8PathBuf {
    if asked_for.is_dir() {
        return asked_for.join("bin").join("python");
    }
    if asked_for.as_str().contains('/') {
        return absolute(asked_for);
    }
    surroundings
        .path
        .iter()
        .map(|folder| folder.join(asked_for))
        .find(|path| path.is_file())
        .unwrap_or_else(|| asked_for.to_owned())
}

fn candidates(preferred: Option<Utf8PathBuf>, surroundings: &Surroundings) -> Vec<Utf8PathBuf> {
    let active = surroundings
        .virtual_env
        .as_ref()
        .map(|environment| environment.join("bin").join("python"));
    let mut found: Vec<Utf8PathBuf> = preferred.into_iter().chain(active).collect();
    for name in NAMES {
        found.extend(surroundings.path.iter().map(|folder| folder.join(name)));
    }
    let mut candidates: Vec<Utf8PathBuf> = Vec::new();
    for path in found {
        if path.is_file() && !candidates.contains(&path) {
            candidates.push(path);
        }
    }
    candidates
}

/// Asks an interpreter about itself; the error says why it can't be used.
pub(super) async fn ask(path: &Utf8Path, wanted: &Wanted) -> Result<Interpreter, String> {
    #[derive(Deserialize)]
    struct Answer {
        version: String,
        executable: Utf8PathBuf,
        missing: Vec<String>,
        #[serde(default)]
        import_path: Vec<Utf8PathBuf>,
    }

    let child = Command::new(path)
        .args(["-c", QUESTION])
        .args(&wanted.modules)
        .current_dir("/")
        .env_clear()
        .envs(variables::for_workers())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "does not exist".to_owned(),
            _ => format!("can't be started: {error}"),
        })?;
    let guard = GroupGuard::of(&child);
    let output = tokio::time::timeout(ANSWER_LIMIT, child.wait_with_output())
        .await
        .map_err(|_| format!("did not answer within {} s", ANSWER_LIMIT.as_secs()))?
        .map_err(|error| format!("can't be asked: {error}"))?;
    guard.let_go();
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let complaint = complaint
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("without a word");
        return Err(format!("failed ({}): {}", output.status, complaint.trim()));
    }
    let answer: Answer = serde_json::from_slice(&output.stdout)
        .map_err(|_| "did not answer like a python interpreter".to_owned())?;
    let version = answer
        .version
        .parse()
        .map_err(|_| format!("says its version is `{}`", answer.version))?;
    Ok(Interpreter {
        path: path.to_owned(),
        executable: answer.executable,
        version,
        missing: answer.missing,
        import_path: answer.import_path,
    })
}

pub(super) fn absolute(path: &Utf8Path) -> Utf8PathBuf {
    camino::absolute_utf8(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ranges: &[&str], expected: &str) {
        let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let wanted = Wanted {
            ranges,
            modules: vec![],
        };
        assert_eq!(wanted.describe(), expected);
    }

    #[test]
    fn a_version_requirement_of_several_is_described_once() {
        check(&[">=3.10, <3.14", ">=3.10"], ">=3.10, <3.14");
        check(&[">=3.10, <3.14", ">=3.12"], "<3.14, >=3.12");
        check(&[">=3.10, <3.14", ">=3.9, <3.13"], ">=3.10, <3.13");
        check(
            &[">=3.10, <3.14", "!=3.11.1, ~=3.10"],
            ">=3.10, <3.14, ~=3.10, !=3.11.1",
        );
    }
}
