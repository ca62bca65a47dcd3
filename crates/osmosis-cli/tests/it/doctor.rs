//! `osmosis doctor`, and what it is there to find.

use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;
use serde_json::Value;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

fn workspace() -> Workspace {
    Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2))
}

/// The environment of the rollout, made by a user who borrows the packages of the test environment.
fn own_environment(workspace: &Workspace) -> Utf8PathBuf {
    let folder = workspace.root.join("rollouts/r/.venv");
    let python = python_environment::python();
    let made = Command::new(&python)
        .args(["-m", "venv", "--without-pip", folder.as_str()])
        .status()
        .unwrap();
    assert!(made.success());
    let borrowed = site_packages(python.parent().unwrap().parent().unwrap());
    std::fs::write(
        site_packages(&folder).join("borrowed.pth"),
        format!("{borrowed}\n"),
    )
    .unwrap();
    folder
}

fn site_packages(environment: &Utf8Path) -> Utf8PathBuf {
    let mut versions = environment.join("lib").read_dir_utf8().unwrap();
    let version = versions.next().unwrap().unwrap();
    version.path().join("site-packages")
}

/// Leaves the traces of an installation.
fn install(environment: &Utf8Path, distribution: &str) {
    let folder = site_packages(environment).join(format!("{distribution}.dist-info"));
    std::fs::create_dir_all(folder).unwrap();
}

fn finding(told: &Value, name: &str) -> Value {
    let findings = told["data"]["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["name"] == name);
    found
        .cloned()
        .unwrap_or_else(|| panic!("no `{name}` in {told:#}"))
}

#[test]
fn doctor_says_what_it_found() {
    let workspace = workspace();
    let ran = workspace.osmosis(&["doctor"]);
    for part in ["osmosis", "python", "workspace"] {
        assert!(ran.stdout.contains(part), "no `{part}` in\n{}", ran.stdout);
    }
}

#[test]
fn doctor_says_as_whom_workers_run_and_what_they_reach() {
    let workspace = workspace();
    let told = workspace.osmosis(&["doctor", "--json"]).json();
    let workers = finding(&told, "workers");
    let (text, hint) = (workers["text"].to_string(), workers["hint"].to_string());
    assert_eq!(workers["ok"], true, "{text}");
    let uid = rustix::process::geteuid().as_raw();
    if uid != 0 {
        assert!(text.contains(&format!("run as you (user {uid})")), "{text}");
        assert!(text.contains("`.osmosis` and `data` included"), "{text}");
    } else if text.contains("run as root") {
        assert!(text.contains("read and write everything"), "{text}");
        assert!(hint.contains("user 60900 can't use"), "{hint}");
    } else {
        assert!(text.contains("run as user 60900"), "{text}");
        assert!(!text.contains(".osmosis"), "{text}");
    }
}

#[test]
fn both_sdks_in_a_rollouts_environment_are_told_by_doctor_and_by_a_run() {
    let workspace = workspace();
    let folder = own_environment(&workspace);
    install(&folder, "osmosis_rs-0.1.0");
    let told = workspace.osmosis(&["doctor", "--json"]).expect(0).json();
    assert_eq!(finding(&told, "rollout r")["ok"], true, "{told:#}");

    install(&folder, "osmosis_ai-0.3.8");
    let told = workspace.osmosis(&["doctor", "--json"]).expect(1).json();
    let rollout = finding(&told, "rollout r");
    assert_eq!(rollout["ok"], false, "{told:#}");
    let text = rollout["text"].as_str().unwrap();
    assert!(
        text.contains("`osmosis-ai` 0.3.8 and `osmosis-rs` 0.1.0"),
        "{text}"
    );
    let hint = rollout["hint"].as_str().unwrap();
    assert!(
        hint.contains("pip uninstall osmosis-ai osmosis-rs"),
        "{hint}"
    );

    let ran = workspace
        .osmosis(&["eval", "submit", "configs/eval/c.toml", "--name", "t"])
        .expect(0);
    assert!(
        ran.stderr.contains("warning: `osmosis-ai` 0.3.8"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("pip uninstall"), "{}", ran.stderr);
    assert_eq!(workspace.outcomes(), ["scored"; 2]);
}

#[test]
fn a_run_uses_our_sdk_even_where_only_the_references_is_installed() {
    let workspace = workspace();
    let folder = own_environment(&workspace);
    install(&folder, "osmosis_ai-0.3.8");
    let package = site_packages(&folder).join("osmosis_ai");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(
        package.join("__init__.py"),
        "raise ImportError('the reference')\n",
    )
    .unwrap();
    let told = workspace.osmosis(&["doctor", "--json"]).expect(0).json();
    let text = finding(&told, "rollout r")["text"].to_string();
    assert!(
        text.contains("workers use the SDK of this program"),
        "{text}"
    );
    workspace
        .osmosis(&["eval", "submit", "configs/eval/c.toml", "--name", "t"])
        .expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 2]);
}

#[test]
fn doctor_looks_at_the_active_environment_too() {
    let mut workspace = workspace();
    let folder = workspace.root.join("active");
    workspace.write("active/pyvenv.cfg", "");
    workspace.write("active/lib/python3.12/site-packages/README.txt", "");
    install(&folder, "osmosis_rs-0.1.0");
    install(&folder, "osmosis_ai-0.3.8");
    workspace.variable("VIRTUAL_ENV", folder.as_str());
    let told = workspace.osmosis(&["doctor", "--json"]).expect(1).json();
    let environment = finding(&told, "environment");
    assert_eq!(environment["ok"], false, "{told:#}");
    assert!(
        environment["text"]
            .as_str()
            .unwrap()
            .contains("both installed"),
        "{told:#}"
    );
}

/// Every file below the workspace, with its size.
fn files(root: &Utf8Path) -> Vec<(Utf8PathBuf, u64)> {
    let mut found = vec![];
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                folders.push(entry.path().to_owned());
            }
            found.push((entry.path().to_owned(), metadata.len()));
        }
    }
    found.sort();
    found
}

/// A workspace whose rollout has dependencies, on a machine of its own: no packages, a cache that is empty.
fn fresh_machine() -> Workspace {
    let mut workspace = workspace();
    workspace.write(
        "rollouts/r/pyproject.toml",
        "[project]\ndependencies = [\"osmosis-rs\"]\n",
    );
    workspace.variable("OSMOSIS_CACHE_DIR", "cache");
    workspace
}

#[test]
fn doctor_changes_nothing_and_says_what_fix_would_do() {
    let workspace = fresh_machine();
    let before = files(&workspace.root);
    let ran = workspace.osmosis(&["doctor", "--plain"]).expect(0);
    assert_eq!(files(&workspace.root), before);
    let folder = workspace.root.join("rollouts/r/.venv");
    for part in [
        format!("todo rollout r          {folder} is not there yet; the first run makes it")
            .as_str(),
        format!("--fix would make {folder} with python ").as_str(),
        "--fix would unpack it",
        "`osmosis doctor --fix` does what is to do",
    ] {
        assert!(ran.stdout.contains(part), "no `{part}` in\n{}", ran.stdout);
    }
    let told = workspace.osmosis(&["doctor", "--json"]).expect(0).json();
    let rollout = finding(&told, "rollout r");
    assert_eq!(rollout["ok"], true, "{told:#}");
    let fix = rollout["fix"].as_str().unwrap();
    assert!(fix.contains("pydantic") && fix.contains("msgpack"), "{fix}");
    assert_eq!(files(&workspace.root), before);
}

#[test]
fn fix_makes_the_environment_and_nothing_is_left_to_do() {
    let workspace = workspace();
    // Without packages, so that no index is needed: a tool that makes folders, and installs nothing.
    workspace.write(
        "rollouts/r/pyproject.toml",
        "[project]\ndependencies = []\n",
    );
    workspace.write(
        "bin/uv",
        "#!/bin/sh\nif [ $1 = venv ]; then \"$5\" -m venv --without-pip \"$6\"; fi\n",
    );
    let uv = workspace.root.join("bin/uv");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&uv, mode).unwrap();
    let path = format!(
        "{}:{}",
        workspace.root.join("bin"),
        std::env::var("PATH").unwrap()
    );
    let doctor = |arguments: &[&str]| {
        let mut command = workspace.command(arguments);
        let output = command.env("PATH", &path).output().unwrap();
        crate::workspace::Ran::of(&output)
    };
    let ran = doctor(&["doctor", "--fix", "--plain"]).expect(0);
    let python = workspace.root.join("rollouts/r/.venv/bin/python");
    assert!(
        ran.stdout
            .contains(&format!("ok   rollout r          python {python}")),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("with uv"), "{}", ran.stderr);
    assert!(python.exists());
    let told = doctor(&["doctor", "--json"]).expect(0).json();
    assert_eq!(finding(&told, "rollout r")["fix"], Value::Null, "{told:#}");
}

#[test]
fn doctor_lists_the_models_that_are_ready_and_no_keys() {
    let mut workspace = workspace();
    workspace.write("models/small/config.json", "{}");
    workspace.write("models/small/model.safetensors", "");
    workspace.write("models/smol.gguf", "GGUF");
    workspace.write(".osmosis/training/t/run.db", "");
    workspace.write(".osmosis/training/t/checkpoints/step_4/config.json", "{}");
    workspace.variable("GROQ_API_KEY", "sk-very-secret");
    workspace.variable("HOSTED_VLLM_BASE_URL", "http://user:hidden@localhost:1/v1");
    let ran = workspace.osmosis(&["doctor", "--json"]);
    for hidden in ["sk-very-secret", "hidden"] {
        assert!(!ran.stdout.contains(hidden), "{}", ran.stdout);
    }
    let told = ran.json();
    let models = told["data"]["models"].as_array().unwrap();
    let named: Vec<(&str, &str)> = models
        .iter()
        .map(|model| {
            (
                model["model"].as_str().unwrap(),
                model["kind"].as_str().unwrap(),
            )
        })
        .collect();
    let here = named.into_iter().filter(|(model, kind)| {
        // Whoever runs the tests may have servers of their own.
        *kind != "server" || model.starts_with("groq") || model.starts_with("hosted_vllm")
    });
    assert_eq!(
        here.collect::<Vec<_>>(),
        [
            ("builtin/tiny", "builtin"),
            ("script:policies/p.toml", "script"),
            ("./models/small", "folder"),
            ("./models/smol.gguf", "gguf"),
            ("run:t", "run"),
            ("hosted_vllm/MODEL", "server"),
            ("groq/MODEL", "server"),
        ]
    );
    let shown = workspace.osmosis(&["doctor", "--plain"]).stdout;
    assert!(shown.contains("GROQ_API_KEY is set"), "{shown}");
    assert!(!shown.contains("sk-very-secret"), "{shown}");
}
