//! Which variables user code sees: an allow list, and what the config passes.

use std::process::Command;
use std::time::Duration;

use osmosis_testkit::waiting;
use serde_json::Value;

use crate::gateway_command::Serving;
use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, cache_dir, echo_rows};

/// Writes down the environment at import, in a rollout and in its grader.
const SEES: &str = r#"
import json, os, pathlib
from osmosis_ai.rollout import AgentWorkflow, Grader

def note(where):
    pathlib.Path(f"../../seen-{where}").write_text(json.dumps(dict(os.environ)))

note("import")

class Sees(AgentWorkflow):
    async def run(self, ctx):
        note("agent")
        return ctx.prompt

class Too(Grader):
    async def grade(self, ctx):
        note("grader")
        ctx.set_reward(1.0)
"#;

const SECRETS: [(&str, &str); 6] = [
    ("OPENAI_API_KEY", "sk-openai-not-for-agents"),
    ("OPENAI_BASE_URL", "http://openai.invalid/v1"),
    ("ANTHROPIC_API_KEY", "sk-anthropic-not-for-agents"),
    ("SEARCH_API_KEY", "search-key-of-the-agent"),
    ("OSMOSIS_CONTROL_KEY", "control-key-not-for-agents"),
    ("DATABASE_PASSWORD", "hunter2-hunter2"),
];

fn workspace(main: &str, config: &str) -> Workspace {
    let mut workspace = Workspace::new(main, ECHO_SCRIPT, &echo_rows(1));
    for (name, value) in SECRETS {
        workspace.variable(name, value);
    }
    workspace.config(config);
    workspace
}

fn seen(workspace: &Workspace, place: &str) -> Value {
    serde_json::from_str(&workspace.read(&format!("seen-{place}"))).unwrap()
}

#[test]
fn workers_see_none_of_our_keys_and_the_report_names_what_was_withheld() {
    let workspace = workspace(SEES, "");
    let resource = workspace.submit_json(&[]);
    for place in ["import", "agent", "grader"] {
        let seen = seen(&workspace, place);
        for (name, _) in SECRETS {
            assert_eq!(seen[name], Value::Null, "{place}");
        }
        assert!(
            seen["PATH"].is_string() && seen["HOME"].is_string(),
            "{seen}"
        );
        assert_eq!(seen["TMPDIR"], workspace.root.as_str());
        assert_eq!(seen["OSMOSIS_WORKER_TOKEN"], Value::Null);
    }
    let withheld = [
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "SEARCH_API_KEY",
    ];
    assert_eq!(resource["withheld_variables"], serde_json::json!(withheld));
    let metrics: Value =
        serde_json::from_str(&workspace.read(".osmosis/evals/t/metrics.json")).unwrap();
    assert_eq!(metrics["withheld_variables"], serde_json::json!(withheld));
    let text = workspace.submit(&["--fresh"]).expect(0).stdout;
    assert!(
        text.contains("withheld    ANTHROPIC_API_KEY, OPENAI_API_KEY, OPENAI_BASE_URL, SEARCH_API_KEY: set here"),
        "{text}"
    );
    assert!(!text.contains("not-for-agents"), "{text}");
}

/// Writes down what the processes above an agent were started with.
const LOOKS_UP: &str = r#"
import json, os, pathlib
from osmosis_ai.rollout import AgentWorkflow, Grader

class Looks(AgentWorkflow):
    async def run(self, ctx):
        found, pid = [], os.getpid()
        while pid > 1:
            found.append(pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace"))
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        pathlib.Path("../../above").write_text(json.dumps(found))
        return ctx.prompt

class Any(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"#;

#[cfg(target_os = "linux")]
#[test]
fn no_process_above_a_worker_shows_our_keys_even_to_root() {
    let workspace = workspace(LOOKS_UP, "");
    // The run has them all the same.
    assert_eq!(
        workspace.submit_json(&[])["withheld_variables"][1],
        "OPENAI_API_KEY"
    );
    let above: Vec<String> = serde_json::from_str(&workspace.read("above")).unwrap();
    // Worker, its own guard, the template, the guard of all of them, the engine, this process.
    assert!(above.len() >= 6, "{}", above.len());
    for (name, value) in SECRETS {
        assert!(!above.iter().any(|it| it.contains(value)), "{name}");
    }
    assert!(above[4].contains("_OSMOSIS_HANDED_ON="), "{}", above[4]);
}

/// Root may read everything: the engine and the attacker are another user then.
#[cfg(target_os = "linux")]
#[test]
fn a_process_of_the_same_user_can_read_nothing_of_the_engine() {
    use std::os::unix::process::CommandExt as _;

    let workspace = workspace(SEES, "");
    let user = match rustix::process::getuid() {
        root if root.is_root() => 65534,
        user => user.as_raw(),
    };
    chown(workspace.root.as_std_path(), user);
    let mut command = workspace.command(&["gateway", "--json", "--model", "builtin/tiny"]);
    command.uid(user).env("HOME", &workspace.root);
    command.env("OSMOSIS_CACHE_DIR", workspace.root.join("cache"));
    command.env("XDG_STATE_HOME", workspace.root.join("state"));
    let tried = Command::new(env!("CARGO_BIN_EXE_osmosis"))
        .arg("--version")
        .uid(user)
        .output();
    if tried.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
        // The build is where that user can't go.
        return;
    }
    let serving = Serving::serve(&mut command);
    let read = |file: &str| {
        let mut cat = Command::new("cat");
        cat.arg(format!("/proc/{}/{file}", serving.child.id()));
        cat.uid(user).output().unwrap()
    };
    let (environment, line) = (read("environ"), read("cmdline"));
    serving.stop().expect(0);
    assert!(!environment.status.success(), "{environment:?}");
    assert!(line.status.success(), "{line:?}");
}

#[cfg(target_os = "linux")]
fn chown(path: &std::path::Path, user: u32) {
    std::os::unix::fs::chown(path, Some(user), None).unwrap();
    if path.is_dir() {
        for entry in path.read_dir().unwrap() {
            chown(&entry.unwrap().path(), user);
        }
    }
}

#[test]
fn what_the_config_names_is_passed() {
    let workspace = workspace(
        SEES,
        "[env]\nOPENAI_BASE_URL = \"http://mine.invalid\"\n\
         [secrets]\nrequired = [\"SEARCH_API_KEY\"]\noptional = [\"OPENAI_API_KEY\", \"NOT_SET_API_KEY\", \"FROM_FILE\"]\n",
    );
    workspace.write(
        "secrets",
        "FROM_FILE=of-the-file\nSEARCH_API_KEY=the-file-wins\n",
    );
    let resource = workspace.submit_json(&["--secrets-file", "secrets"]);
    let seen = seen(&workspace, "grader");
    assert_eq!(seen["OPENAI_API_KEY"], "sk-openai-not-for-agents");
    assert_eq!(seen["OPENAI_BASE_URL"], "http://mine.invalid");
    assert_eq!(seen["SEARCH_API_KEY"], "the-file-wins");
    assert_eq!(seen["FROM_FILE"], "of-the-file");
    assert_eq!(seen["NOT_SET_API_KEY"], Value::Null);
    assert_eq!(
        resource["withheld_variables"],
        serde_json::json!(["ANTHROPIC_API_KEY"])
    );
}

#[test]
fn an_import_that_misses_a_withheld_key_is_explained() {
    let main = format!("import os\nKEY = os.environ['OPENAI_API_KEY']\n{SEES}");
    let workspace = workspace(&main, "");
    let ran = workspace.submit(&[]).expect(1);
    assert!(
        ran.stderr
            .contains("OPENAI_API_KEY: set here and not passed to your code"),
        "{}",
        ran.stderr
    );
    assert!(!ran.stderr.contains("ANTHROPIC"), "{}", ran.stderr);
}

#[test]
fn training_withholds_the_same() {
    let workspace = workspace(SEES, "");
    workspace.training("builtin/tiny", "steps = 1\n", "");
    let ran = workspace.train(&["--dry-run", "--json"]).expect(0);
    let withheld = &ran.json()["resource"]["withheld_variables"];
    assert_eq!(withheld[0], "ANTHROPIC_API_KEY");
    assert_eq!(
        seen(&workspace, "import")["OSMOSIS_CONTROL_KEY"],
        Value::Null
    );
}

#[test]
fn a_served_rollout_sees_what_is_passed_by_name() {
    let workspace = workspace(SEES, "");
    let python = osmosis_testkit::python_environment::python();
    let serve = ["serve", "r", "--python", python.as_str(), "--pass-env"];
    let mut serving = workspace
        .command(&[&serve[..], &["SEARCH_API_KEY"]].concat())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let written = workspace.root.join("seen-import");
    let mut seen = Value::Null;
    waiting::wait_until("the project is imported", Duration::from_mins(2), || {
        let text = std::fs::read_to_string(&written).unwrap_or_default();
        serde_json::from_str(&text).is_ok_and(|found| {
            seen = found;
            true
        })
    });
    serving.kill().unwrap();
    serving.wait().unwrap();
    assert_eq!(seen["SEARCH_API_KEY"], "search-key-of-the-agent");
    assert_eq!(seen["OPENAI_API_KEY"], Value::Null);
    assert_eq!(seen["OSMOSIS_CONTROL_KEY"], Value::Null);
    let ran = workspace.osmosis(&[&serve[..], &["OSMOSIS_CONTROL_KEY"]].concat());
    assert!(ran.expect(2).stderr.contains("is never passed"));
}

#[test]
fn modules_of_the_worker_shadow_nothing_when_the_cache_is_reached_by_a_link() {
    let check = "import os, sys\n\
                 assert not [p for p in sys.path if os.path.exists(os.path.join(p, 'watchdog.py'))], sys.path\n";
    let mut workspace = Workspace::new(&format!("{check}{PLAIN}"), ECHO_SCRIPT, &echo_rows(1));
    let cache = workspace.root.join("cache");
    std::os::unix::fs::symlink(cache_dir(), &cache).unwrap();
    workspace.variable("OSMOSIS_CACHE_DIR", cache.as_str());
    workspace.submit(&[]).expect(0);
}
