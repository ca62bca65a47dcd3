//! A machine that has the program and a Python, and nothing else: the environment of the project is made there, out of its
//! `pyproject.toml`.

use std::os::unix::fs::symlink;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};

use super::{Cluster, elsewhere, report, results};
use crate::workspace::Workspace;

/// Needs our SDK alone, and says which interpreter it runs in.
const PROJECT: &str = r#"
import asyncio, json, sys, urllib.request
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

def ask(rollout, messages):
    request = urllib.request.Request(
        f"{rollout.chat_completions_url}/chat/completions",
        json.dumps({"model": "osmosis-rollout", "messages": messages}).encode(),
        {"Authorization": f"Bearer {rollout.api_key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]

class Plain(AgentWorkflow):
    async def run(self, ctx):
        print("prefix", sys.prefix)
        answer = await asyncio.to_thread(ask, get_rollout_context(), ctx.prompt)
        return [*ctx.prompt, answer]

class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.label in ctx.sample.messages[-1]["content"].split() else 0.0)
"#;

fn workspace() -> Workspace {
    let workspace = Workspace::new(PROJECT, super::SCRIPT, &crate::workspace::echo_rows(6));
    workspace.write(
        "rollouts/r/pyproject.toml",
        "[project]\ndependencies = [\"osmosis-rs\"]\n",
    );
    workspace
}

/// What the SDK needs, as files.
fn wheels(folder: &Utf8Path) {
    let packages = ["pydantic>=2", "msgpack>=1", "typing-extensions>=4.6"];
    let downloaded = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", "--only-binary=:all:", "-d"])
        .arg(folder)
        .args(packages)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&downloaded.stderr);
    assert!(downloaded.status.success(), "{told}");
}

/// A folder with one program: what `python3` is here.
fn only_python(folder: &Utf8Path) {
    let asked = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .unwrap();
    let python = String::from_utf8(asked.stdout).unwrap();
    std::fs::create_dir_all(folder).unwrap();
    symlink(python.trim(), folder.join("python3")).unwrap();
}

#[test]
fn a_node_makes_the_environment_of_the_project_with_python_and_wheels_alone() {
    let plain = workspace();
    plain.submit(&[]).expect(0);

    let cluster = Cluster::of(workspace(), Utf8PathBuf::new());
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let machine = cluster.workspace.root.join("machine");
    wheels(&machine.join("wheels"));
    only_python(&machine.join("bin"));
    let named = ["node", "--store", &invitation.store, "--run", "t", "--join"];
    let arguments = [&named[..], &[&invitation.join, "--json"]].concat();
    let mut command = cluster.workspace.command(&arguments);
    command
        .current_dir(elsewhere())
        .env_clear()
        .env("PATH", machine.join("bin"))
        .env("HOME", machine.join("home"))
        .env("OSMOSIS_LEASE_SECONDS", "3")
        // No index: what is not in the folder can't be had.
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", machine.join("wheels"));
    let node = cluster.begin("node", &mut command);
    controller.ends().expect(0);
    assert_eq!(report(node.ends()).1, 6);
    assert_eq!(cluster.results(), results(&plain));

    // It is in the cache of that machine's user, and neither the controller's nor the system's.
    let nodes = machine.join("home/.cache/osmosis/nodes");
    let made = nodes.join("workspaces");
    let logs = prefixes(&nodes);
    assert_eq!(logs.len(), 6, "{logs:?}");
    for prefix in logs {
        assert!(prefix.starts_with(made.as_str()), "{prefix}");
        assert!(prefix.ends_with("rollouts/r/.venv"), "{prefix}");
    }
}

/// The interpreters that agents told of in the log of the node.
fn prefixes(nodes: &Utf8Path) -> Vec<String> {
    let runs = nodes.join("runs").read_dir_utf8().unwrap();
    let logs = runs.map(|run| run.unwrap().path().join("logs.txt"));
    let text: String = logs
        .map(|log| std::fs::read_to_string(log).unwrap())
        .collect();
    let lines = text.lines().filter_map(|line| line.split_once("prefix "));
    lines.map(|(_, prefix)| prefix.trim().to_owned()).collect()
}
