//! Which crates a change touches, by git and `cargo metadata`.

use std::collections::BTreeSet;
use std::fmt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use camino::Utf8Path;
use cargo_metadata::{Metadata, MetadataCommand, Package};

use super::site::root;

/// Files that concern every crate.
const FOR_ALL: [&str; 4] = [
    "Cargo.toml",
    "Cargo.lock",
    "clippy.toml",
    ".cargo/config.toml",
];

/// What a change touches.
#[derive(Debug, Clone)]
pub(super) struct Changed {
    /// Crates with a changed file.
    pub(super) crates: Vec<String>,
    /// Whether one of these has a library.
    pub(super) has_library: bool,
    /// These, and all that build on them.
    pub(super) with_dependents: Vec<String>,
    pub(super) python: bool,
}

impl Changed {
    pub(super) fn everything() -> Result<Self> {
        let metadata = MetadataCommand::new().no_deps().exec()?;
        let all: Vec<_> = metadata
            .packages
            .iter()
            .map(|p| p.name.to_string())
            .collect();
        Ok(Self {
            crates: all.clone(),
            has_library: true,
            with_dependents: all,
            python: true,
        })
    }

    /// What differs between the working tree and the point where it left `base`; new files too.
    pub(super) fn since(base: &str) -> Result<Self> {
        let root = root()?;
        let mut files = git(&root, &["diff", "--name-only", "--merge-base", base])?;
        files.extend(git(&root, &["ls-files", "--others", "--exclude-standard"])?);
        let metadata = MetadataCommand::new().no_deps().exec()?;
        Ok(Self::of(&metadata, &files))
    }

    fn of(metadata: &Metadata, files: &[String]) -> Self {
        let for_all = files.iter().any(|file| FOR_ALL.contains(&file.as_str()));
        let crates: Vec<_> = metadata
            .packages
            .iter()
            .filter(|package| {
                let folder = package
                    .manifest_path
                    .parent()
                    .and_then(|folder| folder.strip_prefix(&metadata.workspace_root).ok());
                folder.is_some_and(|folder| {
                    let inside = |file: &String| Utf8Path::new(file).starts_with(folder);
                    files.iter().any(inside)
                })
            })
            .map(|package| package.name.to_string())
            .collect();
        let with_dependents = if for_all {
            metadata
                .packages
                .iter()
                .map(|p| p.name.to_string())
                .collect()
        } else {
            dependents(metadata, &crates)
        };
        let is_library = |package: &&Package| {
            crates.contains(&package.name.to_string())
                && package.targets.iter().any(cargo_metadata::Target::is_lib)
        };
        Self {
            has_library: metadata.packages.iter().any(|package| is_library(&package)),
            crates,
            with_dependents,
            python: files.iter().any(|file| file.starts_with("python/")),
        }
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let crates = if self.crates.is_empty() {
            "no crate".to_owned()
        } else {
            self.crates.join(", ")
        };
        write!(
            f,
            "changed: {crates}{}; checked with what builds on them: {} crates",
            if self.python { ", python" } else { "" },
            self.with_dependents.len()
        )
    }
}

/// The crates, and all that build on one of them, in tests too.
fn dependents(metadata: &Metadata, crates: &[String]) -> Vec<String> {
    let mut found: BTreeSet<String> = crates.iter().cloned().collect();
    loop {
        let before = found.len();
        for package in &metadata.packages {
            if package.dependencies.iter().any(|d| found.contains(&d.name)) {
                found.insert(package.name.to_string());
            }
        }
        if found.len() == before {
            return found.into_iter().collect();
        }
    }
}

fn git(root: &Utf8Path, arguments: &[&str]) -> Result<Vec<String>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(arguments)
        .output()
        .context("git could not be started")?;
    if !output.status.success() {
        bail!(
            "git {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(files: &[&str]) -> Changed {
        let metadata = MetadataCommand::new().no_deps().exec().unwrap();
        let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
        Changed::of(&metadata, &files)
    }

    #[test]
    fn a_changed_file_concerns_its_crate_and_what_builds_on_it() {
        let none = changed(&["docs/runs.md"]);
        assert!(none.crates.is_empty() && none.with_dependents.is_empty() && !none.python);
        let core = changed(&["crates/osmosis-core/src/lib.rs", "python/pyproject.toml"]);
        assert_eq!(core.crates, ["osmosis-core"]);
        assert!(core.with_dependents.contains(&"osmosis-cli".to_owned()));
        assert!(core.python);
        let cli = changed(&["crates/osmosis-cli/src/main.rs"]);
        assert_eq!(cli.with_dependents, ["osmosis-cli"]);
        let program = changed(&["xtask/src/main.rs"]);
        assert!(core.has_library && cli.has_library && !program.has_library);
    }

    #[test]
    fn the_lock_file_concerns_all() {
        let all = changed(&["Cargo.lock"]);
        assert!(all.crates.is_empty());
        assert!(all.with_dependents.contains(&"osmosis-core".to_owned()));
    }
}
