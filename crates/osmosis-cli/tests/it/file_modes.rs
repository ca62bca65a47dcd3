//! Whatever the umask and whatever user code does: what a run makes is its user's alone.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;
use rustix::process::{Pid, Signal, kill_process};

use crate::workspace::{CHECKSUM, ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

/// An agent that does its best to leave its artifacts open to everybody, and says what it could see of the modes
/// around it.
const OPEN_HANDED: &str = r#"
class Plain(AgentWorkflow):
    async def run(self, ctx):
        import os, pathlib
        folder = pathlib.Path(ctx.artifacts_dir)
        plain = folder / "plain.txt"
        plain.write_text("made as anybody would")
        before = os.umask(0)
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "open.txt").write_text("made with umask 0")
        os.umask(before)
        tool = folder / "tool.sh"
        tool.write_text("true")
        tool.chmod(0o777)
        pathlib.Path("../../seen").write_text(oct(plain.stat().st_mode & 0o777))
        return [*ctx.prompt, await ask(ctx.prompt)]
"#;

fn open_handed() -> String {
    let (head, rest) = PLAIN.split_once("class Plain(AgentWorkflow):").unwrap();
    let grader = &rest[rest.find("class Exact").unwrap()..];
    format!("{head}{OPEN_HANDED}\n{grader}")
}

/// The same command under another umask.
fn with_umask(umask: &str, command: &Command) -> Command {
    let mut wrapped = Command::new("sh");
    wrapped
        .args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

fn mode(path: &Utf8Path) -> u32 {
    std::fs::symlink_metadata(path)
        .unwrap()
        .permissions()
        .mode()
        & 0o777
}

/// Everything below a folder, and the folder; fails at the first thing that group or others may touch.
#[track_caller]
fn check_private(root: &Utf8Path) -> Vec<String> {
    let mut seen = vec![];
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_symlink() {
            continue;
        }
        let found = mode(&path);
        assert_eq!(found & 0o077, 0, "{path} has mode {found:o}");
        if kind.is_dir() {
            assert_eq!(found, 0o700, "{path}");
            let below = path.read_dir_utf8().unwrap();
            waiting.extend(below.map(|entry| entry.unwrap().into_path()));
        } else {
            assert!(!kind.is_socket(), "{path} was left behind");
            seen.push(path.strip_prefix(root).unwrap().to_string());
        }
    }
    seen
}

#[track_caller]
fn check_seen(seen: &[String], expected: &[&str]) {
    for name in expected {
        assert!(
            seen.iter().any(|there| there.ends_with(name)),
            "{name}: {seen:?}"
        );
    }
}

fn submit(workspace: &Workspace, umask: &str, more: &[&str]) {
    let python = python_environment::python();
    let mut arguments = vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"];
    arguments.extend(["--python", python.as_str()]);
    arguments.extend(more);
    let ran = with_umask(umask, &workspace.command(&arguments))
        .output()
        .unwrap();
    Ran::of(&ran).expect(0);
}

#[test]
fn an_evaluation_leaves_nothing_to_group_and_others() {
    let mut workspace = Workspace::new(&open_handed(), ECHO_SCRIPT, &echo_rows(3));
    let cache = workspace.root.join("cache");
    workspace.variable("OSMOSIS_CACHE_DIR", cache.as_str());
    let results = workspace.root.join("results");
    let junit = workspace.root.join("reports/junit.xml");
    let more = ["--output", results.as_str(), "--junit", junit.as_str()];
    submit(&workspace, "000", &more);
    let seen = check_private(&workspace.root.join(".osmosis"));
    let expected = [
        "run.db",
        "run.lock",
        "logs.txt",
        "index.jsonl",
        "metrics.json",
        "000001.seg",
        "plain.txt",
        "deep/er/open.txt",
        "tool.sh",
    ];
    check_seen(&seen, &expected);
    // Not only afterwards: it was made like that.
    assert_eq!(workspace.read("seen"), "0o600");
    // An executable stays one, for its owner.
    let tool = workspace.run_folder("t").join("artifacts/r0-0/tool.sh");
    assert_eq!(mode(&tool), 0o700);
    // Root's workers may be another user's, who imports the SDK.
    let private: &[&str] = if rustix::process::geteuid().is_root() {
        &["locks"]
    } else {
        &["sdk", "locks"]
    };
    for name in private {
        if cache.join(name).exists() {
            check_private(&cache.join(name));
        }
    }
    assert!(cache.join("sdk").exists());
    // What was asked for by name is as the user's umask says.
    assert_eq!(mode(&results.join("metrics.json")), 0o666);
    assert_eq!(mode(&results), 0o777);
    assert_eq!(mode(&junit), 0o666);
}

#[test]
fn folders_of_an_older_version_are_tightened() {
    let workspace = Workspace::new(&open_handed(), ECHO_SCRIPT, &echo_rows(3));
    submit(&workspace, "022", &["--limit", "1"]);
    let state = workspace.root.join(".osmosis");
    // As it used to be: the run, another one beside it, and what is in them.
    let run = workspace.run_folder("t");
    let other = workspace.run_folder("other");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("run.db"), "").unwrap();
    let opened: Vec<Utf8PathBuf> = vec![
        state.clone(),
        state.join("evals"),
        run.clone(),
        run.join("segments"),
        run.join("run.db"),
        run.join("run.lock"),
        run.join("index.jsonl"),
        other.clone(),
        other.join("run.db"),
    ];
    for path in &opened {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    submit(&workspace, "022", &["--limit", "1"]);
    check_private(&state);
}

#[test]
fn training_leaves_nothing_to_group_and_others() {
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &echo_rows(4));
    let often = "[checkpoints]\neval_interval = 1\ncheckpoint_save_freq = 1\n";
    workspace.training("builtin/tiny", "steps = 1\n", often);
    let mut command = with_umask("000", &workspace.train_command(&["--log", "tensorboard"]));
    Ran::of(&command.output().unwrap()).expect(0);
    let seen = check_private(&workspace.root.join(".osmosis"));
    check_seen(
        &seen,
        &[
            "run.db",
            "metrics.jsonl",
            "step_1/trainer/state.json",
            "reward.svg",
        ],
    );
    // The checkpoints are checked too.
    let whole = workspace
        .osmosis(&["run", "verify", "t", "--json"])
        .expect(0)
        .json();
    assert_eq!(whole["resource"]["checked"]["checkpoints"], 1, "{whole}");
    let state = workspace
        .training_folder("t")
        .join("checkpoints/step_1/model.safetensors");
    let mut bytes = std::fs::read(&state).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&state, bytes).unwrap();
    let damaged = workspace
        .osmosis(&["run", "verify", "t", "--json"])
        .expect(1)
        .json();
    assert_eq!(
        damaged["resource"]["damage"][0]["place"],
        "checkpoints/step_1"
    );
}

/// Starts a server, waits until it says that it serves, and ends it.
fn serve_and_stop(workspace: &Workspace, arguments: &[&str]) {
    let mut child = with_umask("000", &workspace.command(arguments))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    while !said.contains("serving") {
        let read = stdout.read_line(&mut said).unwrap();
        if read == 0 {
            let ran = Ran::of(&child.wait_with_output().unwrap());
            panic!("{said}{}", ran.stderr);
        }
    }
    let run = workspace.root.join(".osmosis");
    let seen = check_private(&run);
    // While it runs, the log and its index are there too.
    check_seen(&seen, &["run.db-wal", "run.db-shm"]);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    child.wait().unwrap();
    check_private(&run);
}

#[test]
fn a_gateway_and_a_rollout_server_leave_nothing_to_group_and_others() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    let model = [
        "gateway",
        "--json",
        "--model",
        "script:policies/p.toml",
        "--name",
        "g",
    ];
    serve_and_stop(&workspace, &model);
    let python = python_environment::python();
    let serve = [
        "serve",
        "r",
        "--json",
        "--name",
        "s",
        "--python",
        python.as_str(),
    ];
    serve_and_stop(&workspace, &serve);
}
