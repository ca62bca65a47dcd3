//! `osmosis doctor`: is everything here that a run needs?

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::PROVIDERS;
use osmosis_run::RunError;
use osmosis_worker::environment::{self, Clash};
use owo_colors::Style;
use serde_json::{Value, json};

use crate::error::Exit;
use crate::output::{Output, paint};
use crate::workspace::Workspace;

/// One thing that was looked at.
struct Finding {
    name: String,
    good: bool,
    text: String,
    hint: Option<String>,
}

pub(crate) async fn run(
    python: Option<&Utf8Path>,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let mut findings = vec![
        good("osmosis", format!("version {}", env!("CARGO_PKG_VERSION"))),
        sdk(),
        installer(),
    ];
    findings.extend(environments_around().iter().map(|folder| around(folder)));
    match Workspace::find(workspace, None) {
        Ok(found) => {
            findings.push(good("workspace", found.root.to_string()));
            for name in found.rollouts() {
                findings.push(rollout(&found, &name, python).await);
            }
        }
        Err(error) => findings.push(Finding {
            name: "workspace".to_owned(),
            good: false,
            text: error.message().to_owned(),
            hint: error.hint_text().map(str::to_owned),
        }),
    }
    findings.push(models());
    for finding in &findings {
        let mark = if finding.good {
            paint("ok  ", Style::new().green())
        } else {
            paint("bad ", Style::new().red().bold())
        };
        output.line(format_args!("{mark} {:<18} {}", finding.name, finding.text));
        if let Some(hint) = &finding.hint {
            output.line(format_args!("                        hint: {hint}"));
        }
    }
    let sound = findings.iter().all(|finding| finding.good);
    let items: Vec<Value> = findings
        .iter()
        .map(|f| json!({"name": f.name, "ok": f.good, "text": f.text, "hint": f.hint}))
        .collect();
    output.details(&json!({ "ok": sound, "findings": items }));
    Ok(if sound { Exit::Ok } else { Exit::Failed })
}

fn good(name: &str, text: String) -> Finding {
    Finding {
        name: name.to_owned(),
        good: true,
        text,
        hint: None,
    }
}

fn sdk() -> Finding {
    match environment::sdk_path() {
        Ok(path) => good("python sdk", format!("unpacked at {path}")),
        Err(error) => Finding {
            name: "python sdk".to_owned(),
            good: false,
            hint: error.hint(),
            text: error.to_string(),
        },
    }
}

fn installer() -> Finding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let uv = std::env::split_paths(&path).any(|folder| folder.join("uv").is_file());
    let text = if uv {
        "uv"
    } else {
        "pip (environments are made faster with `uv` on the PATH)"
    };
    good("installer", text.to_owned())
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

fn around(folder: &Utf8Path) -> Finding {
    let mut finding = good("environment", folder.to_string());
    finding.note_clash(Clash::in_environment(folder).as_ref());
    finding
}

impl Finding {
    /// Both SDKs in one place are bad; the reference's alone is only worth knowing.
    fn note_clash(&mut self, clash: Option<&Clash>) {
        let Some(clash) = clash else { return };
        self.good &= !clash.is_mixed();
        self.text = clash.message();
        self.hint = Some(clash.hint());
    }
}

/// Looks at a rollout's environment, and makes it when it is not there yet.
async fn rollout(workspace: &Workspace, name: &str, python: Option<&Utf8Path>) -> Finding {
    if workspace.rollout_dir(name).join("Cargo.toml").is_file() {
        return cargo(name);
    }
    let prepared = environment::prepare(&workspace.rollout_dir(name), python, |_| {}).await;
    match prepared {
        Ok(found) => {
            let mut finding = good(
                &format!("rollout {name}"),
                format!("python {}", found.python),
            );
            if !found.notes.is_empty() {
                finding.hint = Some(found.notes.join("; "));
            }
            finding.note_clash(found.clash.as_ref());
            finding
        }
        Err(error) => Finding {
            name: format!("rollout {name}"),
            good: false,
            hint: error.hint(),
            text: error.to_string(),
        },
    }
}

/// A rollout in Rust is built when it is run; here it is enough that cargo is there.
fn cargo(rollout: &str) -> Finding {
    let answer = std::process::Command::new("cargo")
        .arg("--version")
        .output();
    match answer {
        Ok(output) if output.status.success() => good(
            &format!("rollout {rollout}"),
            String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        ),
        _ => Finding {
            name: format!("rollout {rollout}"),
            good: false,
            text: "it is written in Rust, and there is no `cargo`".to_owned(),
            hint: Some("install a Rust toolchain".to_owned()),
        },
    }
}

fn models() -> Finding {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let mut ready: Vec<&str> = PROVIDERS
        .iter()
        .filter(|p| set(p.base_url_variable) || (p.needs_key && set(p.api_key_variable)))
        .map(|provider| provider.name)
        .collect();
    ready.push("script");
    good("models", format!("ready: {}", ready.join(", ")))
}
