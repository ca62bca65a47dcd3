//! The public reference's package installed where user code runs. It has our import name, so what
//! `import osmosis_ai` means there is not plain to see.

use camino::{Utf8Path, Utf8PathBuf};

use super::requirements::{OURS, REFERENCE};
use super::venv;

/// `osmosis-ai` is installed for an interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clash {
    python: Utf8PathBuf,
    /// The reference's version.
    reference: String,
    /// The version of ours, installed beside it.
    ours: Option<String>,
}

impl Clash {
    /// Looks into the folders that an interpreter imports packages from.
    pub(super) fn look(python: &Utf8Path, folders: &[Utf8PathBuf]) -> Option<Self> {
        let version = |name| folders.iter().find_map(|folder| installed(folder, name));
        Some(Self {
            reference: version(REFERENCE)?,
            ours: version(OURS),
            python: python.to_owned(),
        })
    }

    /// Looks into a virtual environment.
    pub fn in_environment(folder: &Utf8Path) -> Option<Self> {
        let packages: Vec<_> = venv::site_packages(folder).into_iter().collect();
        Self::look(&venv::python_in(folder), &packages)
    }

    /// Whether ours is installed as well: the files of the two have overwritten each other then.
    pub fn is_mixed(&self) -> bool {
        self.ours.is_some()
    }

    pub fn message(&self) -> String {
        let Self {
            python, reference, ..
        } = self;
        match &self.ours {
            Some(ours) => format!(
                "`{REFERENCE}` {reference} and `{OURS}` {ours} are both installed for `{python}`, and \
                 as both are `osmosis_ai` they overwrote each other's files"
            ),
            None => format!(
                "`{REFERENCE}` {reference} is installed for `{python}`; workers use the SDK of this \
                 program in its place"
            ),
        }
    }

    pub fn hint(&self) -> String {
        let Self { python, .. } = self;
        if self.is_mixed() {
            format!(
                "run `{python} -m pip uninstall {REFERENCE} {OURS}`, then install `{OURS}` again"
            )
        } else {
            format!(
                "`{python} -m pip uninstall {REFERENCE}`, so that what you start yourself uses it too"
            )
        }
    }
}

/// The version of a distribution, by the name of the folder that describes it.
fn installed(folder: &Utf8Path, name: &str) -> Option<String> {
    let prefix = format!("{}-", name.replace('-', "_"));
    folder.read_dir_utf8().ok()?.flatten().find_map(|entry| {
        let version = entry
            .file_name()
            .strip_suffix(".dist-info")?
            .strip_prefix(&prefix)?;
        Some(version.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clash(installed: &[&str]) -> Option<Clash> {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let packages = folder.join("lib/python3.12/site-packages");
        std::fs::create_dir_all(&packages).unwrap();
        for name in installed {
            std::fs::create_dir(packages.join(format!("{name}.dist-info"))).unwrap();
        }
        Clash::in_environment(folder)
    }

    #[test]
    fn only_the_reference_makes_a_clash() {
        assert_eq!(clash(&[]), None);
        assert_eq!(
            clash(&["osmosis_rs-0.1.0", "osmosis_ai_tools-2.0", "numpy-2.0"]),
            None
        );
        let alone = clash(&["osmosis_ai-0.3.8", "numpy-2.0"]).unwrap();
        assert!(!alone.is_mixed());
        assert!(
            alone.message().contains("`osmosis-ai` 0.3.8"),
            "{}",
            alone.message()
        );
    }

    #[test]
    fn both_in_one_environment_are_a_mixture_that_must_go() {
        let both = clash(&["osmosis_ai-0.3.8", "osmosis_rs-0.1.0"]).unwrap();
        assert!(both.is_mixed());
        assert!(both.message().contains("overwrote"), "{}", both.message());
        assert!(
            both.hint().contains("uninstall osmosis-ai osmosis-rs"),
            "{}",
            both.hint()
        );
    }
}
