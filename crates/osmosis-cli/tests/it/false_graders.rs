//! Agents that try to answer as a worker that they are not.

use serde_json::Value;

use crate::workspace::{ECHO_SCRIPT, Workspace, echo_rows};

/// The agent of one row finds the token that its worker dialled in with, and dials in with it itself. Then it goes on
/// as if nothing had happened.
const DIALS_AGAIN: &str = r#"
import contextlib, os, pathlib, sys
from osmosis_ai.rollout import AgentWorkflow, Grader
from osmosis_ai.worker.connection import RefusedError, dial_control

class Dials(AgentWorkflow):
    async def run(self, ctx):
        if ctx.prompt[-1]["content"].endswith("1"):
            frame = sys._getframe()
            while "start" not in frame.f_locals or "address" not in frame.f_locals:
                frame = frame.f_back
            pathlib.Path("../../dialler").write_text(str(os.getpid()))
            with contextlib.suppress(RefusedError):
                dial_control(frame.f_locals["address"], frame.f_locals["start"].token, [])
        return [*ctx.prompt, {"role": "assistant", "content": "1"}]

class Any(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"#;

#[test]
fn a_second_dial_with_a_token_ends_the_run_and_names_the_process() {
    let workspace = Workspace::new(DIALS_AGAIN, ECHO_SCRIPT, &echo_rows(2));
    let ran = workspace.submit(&["--json"]).expect(1);
    let pid = workspace.read("dialler");
    let error = ran.error();
    assert_eq!(error["code"], "worker_intrusion");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with(&format!("process {pid} (`")),
        "{message}"
    );
    assert!(
        message.contains("osmosis_ai/worker/__main__.py"),
        "{message}"
    );
    assert!(message.contains("which had used it already"), "{message}");
    let scored = |row: &Value| row["row_index"] == 1 && row["outcome"] == "scored";
    assert!(!workspace.index().iter().any(scored));
}
