//! Values for the names in `[secrets]`: from `--secrets-file`, then the environment.

use std::collections::HashMap;

use camino::Utf8Path;
use osmosis_core::Redactor;
use osmosis_core::config::{EvalConfig, Secrets, TrainConfig};

use crate::notices::Notices;
use crate::reports::ErrorDetails;
use crate::workspace::absolute;
use crate::{RunError, RunErrorKind};

/// The values of the names that have one. They reach the worker and the redactor, nothing else. A required name
/// without a value is an error.
pub fn collect(
    names: &Secrets,
    file: Option<&Utf8Path>,
) -> Result<Vec<(String, String)>, RunError> {
    let mut from_file = match file {
        Some(path) => read(path)?,
        None => HashMap::new(),
    };
    let mut value_of = |name: &String| {
        from_file
            .remove(name)
            .or_else(|| std::env::var(name).ok())
            .filter(|value| !value.is_empty())
            .map(|value| (name.clone(), value))
    };
    let mut found = vec![];
    let mut missing = vec![];
    for name in &names.required {
        match value_of(name) {
            Some(secret) => found.push(secret),
            None => missing.push(name.clone()),
        }
    }
    found.extend(names.optional.iter().filter_map(value_of));
    if missing.is_empty() {
        return Ok(found);
    }
    let looked_at = file.map_or_else(
        || "the environment".to_owned(),
        |path| format!("`{path}` and the environment"),
    );
    let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
    Err(RunError::failed(
        RunErrorKind::SecretMissing,
        format!(
            "[secrets] asks for {}, not in {looked_at}",
            names.join(", ")
        ),
    )
    .hint("export them, or give a file of NAME=VALUE lines with `--secrets-file`")
    .details(ErrorDetails::Secrets { missing }))
}

/// Redacts the secrets of a run with this config, as far as their values are known here.
pub fn redactor_of(config: &str, file: Option<&Utf8Path>, notices: &dyn Notices) -> Redactor {
    let Secrets { required, optional } = EvalConfig::parse("run.toml".into(), config)
        .map(|config| config.secrets)
        .or_else(|_| TrainConfig::parse("run.toml".into(), config).map(|config| config.secrets))
        .unwrap_or_default();
    let mut values = vec![];
    let mut take = |names: Secrets| match collect(&names, file) {
        Ok(found) => {
            values.extend(found.into_iter().map(|(_, value)| value));
            true
        }
        Err(_) => false,
    };
    for name in required {
        let alone = Secrets {
            required: vec![name.clone()],
            ..Secrets::default()
        };
        if !take(alone) {
            notices.warn(format_args!(
                "the value of `{name}` is not known here, so it can't be redacted; \
                 give it with `--secrets-file`"
            ));
        }
    }
    take(Secrets {
        optional,
        ..Secrets::default()
    });
    Redactor::new(values)
}

fn read(path: &Utf8Path) -> Result<HashMap<String, String>, RunError> {
    let path = absolute(path)?;
    // The message must not quote the line: it may hold the secret.
    let invalid = |line: usize, error: dotenvy::Error| match error {
        dotenvy::Error::Io(error) => {
            RunError::usage(RunErrorKind::SecretsFile, format!("`{path}`: {error}"))
        }
        _ => RunError::usage(
            RunErrorKind::SecretsFile,
            format!("`{path}`: entry {line} is not of the form NAME=VALUE"),
        ),
    };
    dotenvy::from_path_iter(&path)
        .map_err(|error| invalid(0, error))?
        .enumerate()
        .map(|(index, entry)| entry.map_err(|error| invalid(index + 1, error)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, camino::Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = camino::Utf8PathBuf::from_path_buf(folder.path().join("secrets")).unwrap();
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn required(name: &str) -> Secrets {
        Secrets {
            required: vec![name.to_owned()],
            ..Secrets::default()
        }
    }

    #[test]
    fn an_optional_name_is_taken_if_it_has_a_value() {
        let (_folder, path) = file("A_KEY=1\nEMPTY=\n");
        let names = Secrets {
            optional: ["A_KEY", "EMPTY", "NO_SUCH_SECRET_HERE"]
                .map(str::to_owned)
                .into(),
            ..Secrets::default()
        };
        let found = collect(&names, Some(&path)).unwrap();
        assert_eq!(found, [("A_KEY".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn the_file_wins_and_only_required_names_are_taken() {
        let (_folder, path) = file("# mine\nexport PATH=\"from file\"\nOTHER='x'\n");
        let found = collect(&required("PATH"), Some(&path)).unwrap();
        assert_eq!(found, [("PATH".to_owned(), "from file".to_owned())]);
    }

    #[test]
    fn a_broken_line_is_told_without_its_text() {
        let (_folder, path) = file("GOOD=1\nBAD LINE hunter2\n");
        let error = collect(&required("GOOD"), Some(&path)).unwrap_err();
        assert!(error.message().contains("entry 2"), "{}", error.message());
        assert!(!error.message().contains("hunter2"), "{}", error.message());
    }

    #[test]
    fn what_is_nowhere_is_named() {
        let error = collect(&required("NO_SUCH_SECRET_HERE"), None).unwrap_err();
        assert!(error.message().contains("NO_SUCH_SECRET_HERE"));
    }
}
