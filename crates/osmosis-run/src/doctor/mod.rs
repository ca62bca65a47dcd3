//! `osmosis doctor`: is everything here that a run needs? Checking writes nothing and installs nothing;
//! only [`Doctor::fix`] does.

mod models;
mod workers;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_worker::environment::{self, Clash, EnvironmentError, EnvironmentState};
use osmosis_worker::user::{Needed, NeededPath};

use crate::notices::{Notice, Notices};
use crate::reports::{DoctorFinding, DoctorReport};
use crate::workspace::{Workspace, WorkspaceChoice};

/// What is told while things are checked.
#[derive(Debug, Clone)]
pub enum DoctorEvent {
    /// This may take a moment.
    Checking(String),
    Found(DoctorFinding),
}

/// Checks this machine and a workspace.
#[derive(Debug)]
pub struct Doctor<'a> {
    /// Of the program.
    pub version: &'a str,
    /// Interpreter to check in place of those of the projects.
    pub python: Option<&'a Utf8Path>,
    pub workspace: &'a WorkspaceChoice,
    /// Make what can be made: environments of projects, the unpacked SDK.
    pub fix: bool,
    pub notices: &'a dyn Notices,
}

impl Doctor<'_> {
    pub async fn check(&self, mut tell: impl FnMut(DoctorEvent) + Send) -> DoctorReport {
        let mut findings = vec![];
        let mut found = |finding: DoctorFinding, tell: &mut dyn FnMut(DoctorEvent)| {
            tell(DoctorEvent::Found(finding.clone()));
            findings.push(finding);
        };
        let version = format!("version {}", self.version);
        found(DoctorFinding::good("osmosis", version), &mut tell);
        found(self.sdk(), &mut tell);
        found(installer(), &mut tell);
        for folder in environments_around() {
            found(around(&folder), &mut tell);
        }
        let workspace = match self.workspace.find(None) {
            Ok(workspace) => workspace,
            Err(error) => {
                let hint = error.hint_text().map(str::to_owned);
                let finding = DoctorFinding::bad("workspace", error.message(), hint);
                found(finding, &mut tell);
                return report(findings, models::ready(None).await);
            }
        };
        let root = workspace.root.as_str();
        found(DoctorFinding::good("workspace", root), &mut tell);
        let mut needed = vec![];
        for name in workspace.rollouts() {
            tell(DoctorEvent::Checking(format!("rollout {name}")));
            let finding = self.rollout(&workspace, &name, &mut needed).await;
            found(finding, &mut tell);
        }
        found(workers::finding(&workspace, needed), &mut tell);
        tell(DoctorEvent::Checking("models".to_owned()));
        report(findings, models::ready(Some(&workspace)).await)
    }

    fn sdk(&self) -> DoctorFinding {
        const NAME: &str = "python sdk";
        let state = if self.fix {
            environment::sdk_path().map(|path| (path, true))
        } else {
            environment::sdk_state().map(|state| (state.path, state.unpacked))
        };
        match state {
            Ok((path, true)) => DoctorFinding::good(NAME, format!("unpacked at {path}")),
            Ok((path, false)) => DoctorFinding {
                fix: Some("unpack it".to_owned()),
                ..DoctorFinding::good(NAME, format!("the first run unpacks it to {path}"))
            },
            Err(error) => unusable(NAME, &error),
        }
    }

    /// The environment of a project, or the tool that it is built with.
    async fn rollout(
        &self,
        workspace: &Workspace,
        name: &str,
        needed: &mut Vec<NeededPath>,
    ) -> DoctorFinding {
        let folder = workspace.rollout_dir(name);
        needed.push(NeededPath {
            needed: Needed::Project,
            path: folder.clone(),
        });
        let title = format!("rollout {name}");
        if folder.join("Cargo.toml").is_file() {
            return cargo(&title);
        }
        match environment::inspect(&folder, self.python).await {
            Ok(EnvironmentState::Ready {
                python,
                notes,
                clash,
            }) => {
                needed.push(NeededPath {
                    needed: Needed::Interpreter,
                    path: python.clone(),
                });
                ready(&title, &python, &notes, clash.as_ref())
            }
            Ok(EnvironmentState::ToMake { .. }) if self.fix => self.make(&title, &folder).await,
            Ok(EnvironmentState::ToMake {
                folder,
                reason,
                python,
                version,
                tool,
                packages,
                notes,
            }) => {
                needed.push(NeededPath {
                    needed: Needed::Interpreter,
                    path: python.clone(),
                });
                DoctorFinding {
                    hint: (!notes.is_empty()).then(|| notes.join("; ")),
                    fix: Some(format!(
                        "make {folder} with python {version} ({python}) and install {} with {tool}",
                        packages.join(", ")
                    )),
                    ..DoctorFinding::good(
                        &title,
                        format!("{folder} {reason}; the first run makes it"),
                    )
                }
            }
            Err(error) => unusable(&title, &error),
        }
    }

    async fn make(&self, title: &str, folder: &Utf8Path) -> DoctorFinding {
        let progress = |event| self.notices.notice(Notice::Environment(event));
        let made = environment::prepare(folder, self.python, progress).await;
        self.notices.notice(Notice::EnvironmentDone);
        match made {
            Ok(made) => ready(title, &made.python, &made.notes, made.clash.as_ref()),
            Err(error) => unusable(title, &error),
        }
    }
}

fn report(findings: Vec<DoctorFinding>, models: Vec<crate::reports::ReadyModel>) -> DoctorReport {
    DoctorReport {
        ok: findings.iter().all(|finding| finding.ok),
        findings,
        models,
    }
}

fn unusable(name: &str, error: &EnvironmentError) -> DoctorFinding {
    DoctorFinding::bad(name, error.to_string(), error.hint())
}

fn ready(name: &str, python: &Utf8Path, notes: &[String], clash: Option<&Clash>) -> DoctorFinding {
    let mut finding = DoctorFinding::good(name, format!("python {python}"));
    if !notes.is_empty() {
        finding.hint = Some(notes.join("; "));
    }
    note_clash(&mut finding, clash);
    finding
}

/// Both SDKs in one place are bad; the reference's alone is only worth knowing.
fn note_clash(finding: &mut DoctorFinding, clash: Option<&Clash>) {
    let Some(clash) = clash else { return };
    finding.ok &= !clash.is_mixed();
    finding.text = clash.message();
    finding.hint = Some(clash.hint());
}

fn installer() -> DoctorFinding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let uv = std::env::split_paths(&path).any(|folder| folder.join("uv").is_file());
    let text = if uv {
        "uv"
    } else {
        "pip (environments are made faster with `uv` on the PATH)"
    };
    DoctorFinding::good("installer", text)
}

/// The virtual environments that a person at this terminal works in: the active one, and the one
/// that this program is installed in.
fn environments_around() -> Vec<Utf8PathBuf> {
    let folder = |path: std::path::PathBuf| Utf8PathBuf::from_path_buf(path).ok();
    let active = std::env::var_os("VIRTUAL_ENV").and_then(|path| folder(path.into()));
    let own = std::env::current_exe()
        .ok()
        .and_then(|program| folder(program.parent()?.parent()?.to_owned()));
    let mut found: Vec<Utf8PathBuf> = vec![];
    for folder in active.into_iter().chain(own) {
        if folder.join("pyvenv.cfg").is_file() && !found.contains(&folder) {
            found.push(folder);
        }
    }
    found
}

fn around(folder: &Utf8Path) -> DoctorFinding {
    let mut finding = DoctorFinding::good("environment", folder.as_str());
    note_clash(&mut finding, Clash::in_environment(folder).as_ref());
    finding
}

/// A rollout in Rust is built when it is run; here it is enough that cargo is there.
fn cargo(title: &str) -> DoctorFinding {
    let answer = std::process::Command::new("cargo")
        .arg("--version")
        .output();
    match answer {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout);
            DoctorFinding::good(
                title,
                format!("{}; the first run builds it", version.trim()),
            )
        }
        _ => DoctorFinding::bad(
            title,
            "it is written in Rust, and there is no `cargo`",
            Some("install a Rust toolchain".to_owned()),
        ),
    }
}
