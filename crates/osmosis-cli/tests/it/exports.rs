//! Conversations of a real run, in the shapes that other programs read.

use osmosis_testkit::python_environment;
use serde_json::Value;

use crate::workspace::{AGENT, TOOL_SCRIPT, Workspace, product_rows};

/// Without messages of its own: what it said is in its calls alone.
const AREAL: &str = r#"
from openai import AsyncOpenAI

class Two:
    async def run(self, data, **extra):
        client = AsyncOpenAI(base_url=extra["base_url"], api_key=extra["api_key"])
        messages = [{"role": "user", "content": data["ask"]}]
        for _ in range(2):
            said = await client.chat.completions.create(model="default", messages=messages)
            messages += [said.choices[0].message.model_dump(), {"role": "user", "content": "sure?"}]
        if data["ask"] == "fail":
            raise ValueError("the key is hunter2-hunter2")
        return 0.5

workflow = Two()
"#;

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_run_is_exported_in_the_shapes_of_conversations() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(2));
    workspace.submit(&[]).expect(0);
    workspace
        .osmosis(&["export", "t", "--format", "messages"])
        .expect(0);
    let messages = lines(&workspace.read("t.messages.jsonl"));
    assert_eq!(messages.len(), 2);
    // The session of the SDK has no tools and no usage; the calls have.
    let roles: Vec<&Value> = messages[0]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["role"])
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(messages[0]["tools"][0]["function"]["name"], "multiply");
    assert_eq!(messages[0]["model_calls"], 2);
    assert_eq!(messages[0]["reward"], 1.0);

    let sft = workspace
        .osmosis(&["export", "t", "--format", "sft", "--passed", "-o", "-"])
        .expect(0);
    let sft = lines(&sft.stdout);
    assert_eq!(sft.len(), 2);
    assert_eq!(sft[0]["messages"], messages[0]["messages"]);
    let none = workspace
        .osmosis(&[
            "export",
            "t",
            "--format",
            "sft",
            "--min-reward",
            "1.5",
            "-o",
            "none.jsonl",
            "--json",
        ])
        .expect(0);
    assert_eq!(none.json()["resource"]["records"], 0);
    assert_eq!(none.json()["resource"]["rollouts"], 2);

    workspace
        .osmosis(&["export", "t", "--format", "atif", "-o", "trajectories/"])
        .expect(0);
    let trajectory = workspace.read("trajectories/r0-0.calc.0.json");
    let trajectory: Value = serde_json::from_str(&trajectory).unwrap();
    assert_eq!(
        trajectory["steps"][1]["observation"]["results"][0]["content"],
        "15"
    );
    assert_eq!(trajectory["agent"]["model_name"], "script:policies/p.toml");

    workspace
        .osmosis(&["export", "t", "--format", "inspect"])
        .expect(0);
    let log = std::fs::read(workspace.root.join("t.eval")).unwrap();
    assert!(log.starts_with(b"PK\x03\x04"));
}

#[test]
fn what_has_no_messages_is_told_from_its_calls() {
    let rows = "{\"ask\": \"one\"}\n{\"ask\": \"fail\"}\n";
    let mut workspace = Workspace::new(AREAL, "[[reply]]\ntext = \"yes\"\n", rows);
    workspace.config("[secrets]\nrequired = [\"KEY\"]\n");
    workspace.variable("KEY", "hunter2-hunter2");
    workspace.submit(&[]).expect(0);
    let found = workspace
        .osmosis(&["export", "t", "--format", "messages", "-o", "-"])
        .expect(0);
    assert!(!found.stdout.contains("hunter2"), "{}", found.stdout);
    let found = lines(&found.stdout);
    assert_eq!(found.len(), 2);
    let texts: Vec<&Value> = found[0]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["content"])
        .collect();
    assert_eq!(texts, ["one", "yes", "sure?", "yes"]);
    assert_eq!(found[0]["reward"], 0.5);
    // A rollout that failed still shows how far it came.
    assert_eq!(found[1]["outcome"], "agent_failed");
    assert_eq!(found[1]["messages"].as_array().unwrap().len(), 4);
    assert_eq!(found[1]["error"]["message"], "the key is [redacted]");
}

#[test]
fn what_cannot_be_exported_is_said() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(1));
    workspace.submit(&[]).expect(0);
    let log = workspace
        .osmosis(&["export", "t", "--format", "inspect", "-o", "-"])
        .expect(2);
    assert!(log.stderr.contains("--output FILE"), "{}", log.stderr);
    let filter = workspace.osmosis(&["export", "t", "--passed"]).expect(2);
    assert!(filter.stderr.contains("--format sft"), "{}", filter.stderr);
}

/// Reads the exports with the packages they are for. By hand, with a Python that has `inspect-ai`,
/// `datasets` and `pydantic`, and the folder of an unpacked `harbor` wheel:
/// `OSMOSIS_CHECK_PYTHON=… HARBOR=… cargo nextest run -p osmosis-cli real_packages --run-ignored all`
#[test]
#[ignore = "needs packages that are not part of the test environment"]
fn the_real_packages_read_what_is_exported() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(3));
    workspace.submit(&[]).expect(0);
    for format in ["sft", "atif", "inspect"] {
        workspace
            .osmosis(&["export", "t", "--format", format])
            .expect(0);
    }
    let python = std::env::var("OSMOSIS_CHECK_PYTHON").unwrap();
    let checked = std::process::Command::new(python)
        .current_dir(&workspace.root)
        .args(["-c", include_str!("read_exports.py")])
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}

/// The same for trackers: a Python with `tensorboard`, `mlflow` and `wandb`.
#[test]
#[ignore = "needs packages that are not part of the test environment"]
fn the_real_packages_read_what_is_tracked() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(3));
    let python = std::env::var("OSMOSIS_CHECK_PYTHON").unwrap();
    workspace
        .submit(&["--log", "tensorboard,mlflow,wandb", "--log-python", &python])
        .expect(0);
    let checked = std::process::Command::new(python)
        .current_dir(&workspace.root)
        .args(["-c", include_str!("read_tracking.py")])
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}

/// Stands for a tracker's package: begins well, then breaks.
const BREAKS: &str = r#"
class Settings:
    def __init__(self, **kw): pass

class Run:
    dir = "/somewhere/files"
    def log(self, numbers, step): raise RuntimeError("disk full")
    def finish(self, exit_code): pass

def init(**kw):
    print("noise on standard output")
    return Run()
"#;

#[test]
fn a_tracker_that_breaks_does_not_break_the_run() {
    let mut workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(2));
    workspace.write("packages/wandb/__init__.py", BREAKS);
    let packages = workspace.root.join("packages");
    workspace.variable("PYTHONPATH", packages.as_str());
    let ran = workspace.submit(&["--log", "tensorboard,wandb"]).expect(0);
    assert!(
        ran.stderr.contains("RuntimeError: disk full"),
        "{}",
        ran.stderr
    );
    assert_eq!(workspace.outcomes(), ["scored", "scored"]);
    // What works goes on.
    let files = workspace
        .run_folder("t")
        .join("tensorboard")
        .read_dir_utf8()
        .unwrap();
    let file = files.map(|file| file.unwrap().into_path()).next().unwrap();
    let events = std::fs::read(file).unwrap();
    let has = |tag: &[u8]| events.windows(tag.len()).any(|bytes| bytes == tag);
    assert!(has(b"pass_rate") && has(b"reward/mean") && has(b"pass_at_k/1"));
}

#[test]
fn a_tracker_that_is_not_there_is_told_before_the_run() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(1));
    let python = python_environment::python();
    let ran = workspace.submit(&["--log", "mlflow", "--log-python", python.as_str(), "--json"]);
    let ran = ran.expect(1);
    assert_eq!(ran.error()["code"], "tracker_unavailable");
    assert!(!workspace.run_folder("t").exists());
    let ran = workspace
        .submit(&["--log", "wandb", "--log-python", "/no/such/python"])
        .expect(1);
    assert!(ran.stderr.contains("/no/such/python"), "{}", ran.stderr);
}
