//! A machine with interpreters that are shell scripts: they answer like Python, make environments
//! of empty folders, "install" anything but `broken`, and log every time they are started.

use std::os::unix::fs::PermissionsExt;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_worker::environment::{
    self, EnvironmentError, EnvironmentEvent, PreparedEnvironment, Surroundings,
};
use tempfile::TempDir;

pub(crate) struct FakeMachine {
    folder: Utf8PathBuf,
    _folder: TempDir,
    pub(crate) surroundings: Surroundings,
    pub(crate) rollout: Utf8PathBuf,
}

impl FakeMachine {
    pub(crate) fn new() -> Self {
        let temporary = TempDir::new().unwrap();
        let folder = Utf8PathBuf::from_path_buf(temporary.path().canonicalize().unwrap()).unwrap();
        let rollout = folder.join("rollouts/multiply");
        std::fs::create_dir_all(&rollout).unwrap();
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        Self {
            surroundings: Surroundings {
                cache: Some(folder.join("cache")),
                virtual_env: None,
                path: vec![folder.join("bin")],
            },
            folder,
            _folder: temporary,
            rollout,
        }
    }

    /// Puts an interpreter of this version there.
    pub(crate) fn python(&self, path: &str, version: &str) -> Utf8PathBuf {
        self.python_lacking(path, version, "")
    }

    pub(crate) fn python_lacking(&self, path: &str, version: &str, module: &str) -> Utf8PathBuf {
        let path = self.folder.join(path);
        let missing = if module.is_empty() {
            String::new()
        } else {
            format!(r#""{module}""#)
        };
        // The interpreter of an environment is a link to this script, like the real one.
        let script = format!(
            r#"#!/bin/sh
echo "$(basename "$0") $*" | head -n 1 >> {log}
case "$1 $2" in
"-c "*)
    echo '{{"version": "{version}", "executable": "{path}", "missing": [{missing}]}}' ;;
"-m venv")
    mkdir -p "$3/bin" "$3/lib/python3/site-packages"
    ln -s {path} "$3/bin/python" ;;
"-m pip")
    case "$*" in
    *broken*) echo "ERROR: No matching distribution found for broken" >&2; exit 1 ;;
    *hang*) echo $$ > {folder}/pid; exec sleep 1000 ;;
    esac
    echo "Installed" ;;
esac
"#,
            log = self.log_file(),
            folder = self.folder,
        );
        write_script(&path, &script);
        path
    }

    /// Puts a `uv` into `PATH`.
    pub(crate) fn uv(&self) {
        let script = format!(
            r#"#!/bin/sh
echo "uv $*" >> {log}
if [ "$1" = venv ]; then
    mkdir -p "$6/bin" "$6/lib/python3/site-packages"
    ln -s "$5" "$6/bin/python"
fi
"#,
            log = self.log_file(),
        );
        write_script(&self.folder.join("bin/uv"), &script);
    }

    /// A program that is no interpreter.
    pub(crate) fn program(&self, path: &str, script: &str) -> Utf8PathBuf {
        let path = self.folder.join(path);
        write_script(&path, script);
        path
    }

    pub(crate) fn pyproject(&self, text: &str) {
        std::fs::write(self.rollout.join("pyproject.toml"), text).unwrap();
    }

    pub(crate) fn depend_on(&self, dependencies: &str) {
        self.pyproject(&format!("[project]\ndependencies = [{dependencies}]\n"));
    }

    pub(crate) fn path(&self, path: &str) -> Utf8PathBuf {
        self.folder.join(path)
    }

    /// What was started since the last time, one line each.
    pub(crate) fn started(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.log_file()).unwrap_or_default();
        drop(std::fs::remove_file(self.log_file()));
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) async fn prepare(
        &self,
    ) -> Result<(PreparedEnvironment, Vec<EnvironmentEvent>), EnvironmentError> {
        self.prepare_with(None).await
    }

    pub(crate) async fn prepare_with(
        &self,
        python: Option<&Utf8Path>,
    ) -> Result<(PreparedEnvironment, Vec<EnvironmentEvent>), EnvironmentError> {
        let mut events = Vec::new();
        let prepared =
            environment::prepare_in(&self.surroundings, &self.rollout, python, |event| {
                events.push(event);
            })
            .await?;
        Ok((prepared, events))
    }

    fn log_file(&self) -> Utf8PathBuf {
        self.folder.join("started.log")
    }
}

fn write_script(path: &Utf8Path, script: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
