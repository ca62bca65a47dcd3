//! The wheel, as a user meets it: built, installed into an empty environment, and used.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;

/// What a project written for the reference has at the end of its entrypoint.
const SERVED: &str = r#"

import uvicorn
from osmosis_ai.rollout import LocalBackend
from osmosis_ai.rollout.server import create_rollout_server

app = create_rollout_server(backend=LocalBackend(workflow=Workflow, grader=AnswerGrader))

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=9000)
"#;

/// Starts the façade and asks it how it is, as an ASGI server would.
const FACADE: &str = r#"
import asyncio, json, sys
from pathlib import Path
import uvicorn, osmosis_ai
from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.server.binary import find_binary

assert Path(osmosis_ai.__file__).is_relative_to(sys.prefix), osmosis_ai.__file__
assert Path(osmosis_ai.__file__).with_name("py.typed").is_file()
assert find_binary() == str(Path(sys.executable).with_name("osmosis")), find_binary()

class Say(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {"role": "assistant", "content": "hi"}]

class Fine(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)

async def main():
    app = create_rollout_server(backend=LocalBackend(workflow=Say, grader=Fine))
    await app.start()
    here = ("127.0.0.1", 80)
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
             "method": "GET", "path": "/health", "raw_path": b"/health", "query_string": b"", "root_path": "",
             "headers": [(b"host", b"127.0.0.1")], "client": here, "server": here}
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    health = json.loads(b"".join(message.get("body", b"") for message in sent))
    await app.stop()
    print(json.dumps(health))

asyncio.run(main())
"#;

/// What tests of the whole workspace switch on in dependencies. With it the wheel's program is the one
/// that is built already; without it everything would be compiled again, which takes minutes.
const AS_TESTED: &str = "tokio/test-util,serde_json/unbounded_depth,rustix/event,\
rustix/stdio,osmosis-engine/conformance,osmosis-store/conformance";

/// Runs a command to its end, away from the checkout and from what the tests are run with.
#[track_caller]
fn run(command: &mut Command, folder: &Utf8Path) -> String {
    for (name, _) in std::env::vars() {
        // What cargo tells the programs it starts would make another build of a cargo below us.
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    let output = command
        .current_dir(folder)
        .env_remove("VIRTUAL_ENV")
        .env_remove("OSMOSIS_BIN")
        .env_remove("PYTHONPATH")
        .env("OSMOSIS_CACHE_DIR", folder.join("cache"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}\n{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

/// Builds the wheel from what cargo has built for the tests already.
fn build_wheel(folder: &Utf8Path) -> Utf8PathBuf {
    let manifest = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let compiled = Utf8Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let wheels = folder.join("wheels");
    run(
        Command::new(python_environment::maturin())
            .args(["build", "--profile", "dev", "--offline"])
            .args(["--features", AS_TESTED])
            .args(["--compatibility", "linux", "--compression-method", "stored"])
            .args(["--manifest-path", manifest.as_str()])
            .args(["--target-dir", folder.join("target").as_str()])
            .args(["--out", wheels.as_str()])
            // What is compiled is shared; the program that other tests run right now is not replaced.
            .env("CARGO_BUILD_BUILD_DIR", compiled),
        folder,
    );
    let mut made = wheels.read_dir_utf8().unwrap();
    let wheel = made.next().unwrap().unwrap().into_path();
    assert!(made.next().is_none(), "more than one wheel in {wheels}");
    wheel
}

/// An interpreter of each version that the wheel is for, where this machine has one.
fn interpreters() -> Vec<(&'static str, Option<Utf8PathBuf>)> {
    let home = std::env::var("HOME").unwrap_or_default();
    let versions = Utf8PathBuf::from(home).join(".pyenv/versions");
    ["3.10", "3.11", "3.12", "3.13"]
        .map(|version| {
            let installed = versions.read_dir_utf8().into_iter().flatten().flatten();
            let installed = installed
                .filter(|folder| folder.file_name().starts_with(&format!("{version}.")))
                .map(|folder| folder.path().join("bin/python"));
            let mut candidates = installed.chain([format!("python{version}").into()]);
            let found = candidates.find(|python| {
                let asked = Command::new(python)
                    .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
                    .output();
                asked.is_ok_and(|answer| answer.stdout.trim_ascii() == version.as_bytes())
            });
            (version, found)
        })
        .to_vec()
}

/// Puts the wheel into a fresh environment.
fn install(python: &Utf8Path, wheel: &str, environment: &Utf8Path, folder: &Utf8Path) {
    run(
        Command::new(python).args(["-m", "venv", environment.as_str()]),
        folder,
    );
    let pip = ["-m", "pip", "install", "--quiet", "--no-input"];
    run(
        Command::new(environment.join("bin/python"))
            .args(pip)
            .args(["--disable-pip-version-check", wheel]),
        folder,
    );
}

/// Installed into every version of Python, the command runs an agent and its grader with that interpreter.
#[expect(clippy::print_stderr, reason = "a version that was not tried is named")]
fn works_on_every_python(wheel: &Utf8Path, folder: &Utf8Path) {
    let project = folder.join("every");
    // A workspace of its own: the folder above is one, too.
    std::fs::create_dir_all(project.join("rollouts")).unwrap();
    let wheel = format!("osmosis-rs @ file://{wheel}");
    for (version, python) in interpreters() {
        let Some(python) = python else {
            eprintln!("Python {version} is not installed here: skipped");
            continue;
        };
        let environment = folder.join(format!("venv-{version}"));
        install(&python, &wheel, &environment, &project);
        // What the template's agent imports; with `--python` the environment is used as it is.
        let pip = ["-m", "pip", "install", "--quiet", "--no-input", "httpx"];
        run(
            Command::new(environment.join("bin/python"))
                .args(pip)
                .arg("--disable-pip-version-check"),
            &project,
        );
        let osmosis = environment.join("bin/osmosis");
        if !project.join("configs").exists() {
            run(
                Command::new(&osmosis).args(["rollout", "init", "hello", "--framework", "plain"]),
                &project,
            );
        }
        let interpreter = environment.join("bin/python");
        let told = run(
            Command::new(&osmosis)
                .args(["eval", "submit", "configs/eval/hello.toml", "--json"])
                .args(["--limit", "1", "--python", interpreter.as_str()]),
            &project,
        );
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(
            told["resource"]["pass_rate"], 1.0,
            "Python {version}: {told:#}"
        );
        std::fs::remove_dir_all(&environment).unwrap();
    }
}

#[test]
fn the_wheel_brings_command_and_package_into_an_empty_environment() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = Utf8PathBuf::from_path_buf(temporary.path().canonicalize().unwrap()).unwrap();
    let wheel = build_wheel(&folder);
    let environment = folder.join("venv");
    let served = format!("osmosis-rs[server] @ file://{wheel}");
    install(
        &python_environment::python(),
        &served,
        &environment,
        &folder,
    );
    let python = environment.join("bin/python");

    let osmosis = environment.join("bin/osmosis");
    let version = run(Command::new(&osmosis).arg("--version"), &folder);
    assert_eq!(
        version.trim(),
        concat!("osmosis ", env!("CARGO_PKG_VERSION"))
    );
    let described = run(
        Command::new(&python).args(["-m", "pip", "show", "--files", "osmosis-rs"]),
        &folder,
    );
    for part in [
        concat!("Version: ", env!("CARGO_PKG_VERSION")),
        "osmosis_ai/py.typed",
        "licenses/LICENSE-MIT",
        "licenses/LICENSE-APACHE",
        "bin/osmosis",
    ] {
        assert!(described.contains(part), "no `{part}` in\n{described}");
    }
    assert!(!described.contains("tests/"), "{described}");

    // The façade finds the program beside its interpreter, and nowhere else.
    let health = run(
        Command::new(&python)
            .args(["-c", FACADE])
            .env("PATH", "/nowhere"),
        &folder,
    );
    assert!(health.contains("capacity"), "{health}");

    // A project written for the reference, run by the installed command.
    run(
        Command::new(&osmosis).args(["rollout", "init", "hello", "--framework", "plain"]),
        &folder,
    );
    let rollout = folder.join("rollouts/hello");
    let edit = |file: &str, change: &dyn Fn(String) -> String| {
        let file = rollout.join(file);
        std::fs::write(&file, change(std::fs::read_to_string(&file).unwrap())).unwrap();
    };
    edit("main.py", &|text| text + SERVED);
    edit("pyproject.toml", &|text| {
        text.replace("\"osmosis-rs\"", "\"osmosis-ai[server]>=0.3\"")
    });
    let told = run(
        Command::new(&osmosis).args(["eval", "submit", "configs/eval/hello.toml", "--json"]),
        &folder,
    );
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["resource"]["outcomes"]["scored"], 6, "{told:#}");
    assert_eq!(told["resource"]["pass_rate"], 1.0, "{told:#}");

    works_on_every_python(&wheel, &folder);
}

/// The crates of a build with the features that each has, as `cargo tree` lists them.
fn features(selection: &[&str]) -> BTreeSet<String> {
    let manifest = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let listed = run(
        Command::new("cargo")
            .args(["tree", "--locked", "--offline", "--prefix", "none"])
            .args(["--format", "{p} with [{f}]"])
            .args(["--manifest-path", manifest.as_str()])
            .args(selection),
        &Utf8PathBuf::from("/"),
    );
    // The mark of a crate whose own dependencies are listed elsewhere.
    let crates = listed.lines().map(|line| line.trim_end_matches(" (*)"));
    crates.map(str::to_owned).collect()
}

#[test]
fn the_wheel_of_the_tests_shares_all_crates_with_them() {
    let wheel = ["--package=osmosis-cli", "--edges=normal,build"];
    let wheel = features(&[&wheel[..], &["--features", AS_TESTED]].concat());
    let tests = features(&["--workspace", "--edges=normal,build,dev"]);
    let own: Vec<&String> = wheel.difference(&tests).collect();
    assert!(
        own.is_empty(),
        "these are compiled twice, and what depends on them too; \
         add to AS_TESTED what the tests switch on in them, or take it from the tests: {own:#?}"
    );
}
