use crate::processes::is_alive;
use crate::workspace::{
    AGENT, ECHO_SCRIPT, PLAIN, TOOL_SCRIPT, Workspace, echo_rows, product_rows,
};

/// A workspace whose `run` does something to row 1 and nothing to the others.
fn row_one_does(what: &str) -> Workspace {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        &format!("        if ctx.prompt[-1]['content'] == 'say 1':\n            {what}\n        return [*ctx.prompt"),
    );
    Workspace::new(&main, ECHO_SCRIPT, &echo_rows(4))
}

fn grader_of_row_one_does(what: &str) -> Workspace {
    let main = PLAIN.replace(
        "        ctx.set_reward(",
        &format!("        if ctx.label == '1':\n            {what}\n            return\n        ctx.set_reward("),
    );
    Workspace::new(&main, ECHO_SCRIPT, &echo_rows(4))
}

/// Row 1 has this outcome, all others are scored.
#[track_caller]
fn check(workspace: &Workspace, outcome: &str, error: &str) {
    workspace.submit(&[]).expect(0);
    assert_eq!(
        workspace.outcomes(),
        ["scored", outcome, "scored", "scored"]
    );
    let line = &workspace.index()[1];
    assert_eq!(line["reward"], serde_json::Value::Null);
    let text = line["error"].as_str().unwrap();
    assert!(text.contains(error), "no `{error}` in `{text}`");
}

/// The entrypoint is refused before anything runs.
#[track_caller]
fn refused(main: &str, parts: &[&str]) {
    let workspace = Workspace::new(main, ECHO_SCRIPT, &echo_rows(1));
    let ran = workspace.submit(&[]).expect(1);
    for part in parts {
        assert!(ran.stderr.contains(part), "no `{part}` in\n{}", ran.stderr);
    }
    assert!(!ran.stderr.contains("resume"), "{}", ran.stderr);
    assert!(!workspace.root.join(".osmosis/evals").exists());
}

#[test]
fn a_run_that_raises_fails_alone_and_shows_where() {
    let workspace = row_one_does("raise RuntimeError('on purpose')");
    check(&workspace, "agent_failed", "RuntimeError: on purpose");
    let shown = workspace.osmosis(&["eval", "show", "t", "1"]).expect(0);
    assert!(shown.stdout.contains("main.py"), "{}", shown.stdout);
    assert!(shown.stdout.contains("on purpose"), "{}", shown.stdout);
}

#[test]
fn a_run_that_hangs_past_its_deadline_times_out_alone() {
    let workspace = row_one_does("import asyncio; await asyncio.Event().wait()");
    workspace.config("[evaluation]\nagent_workflow_timeout_s = 2\n");
    check(
        &workspace,
        "timed_out",
        "agent phase passed its deadline of 2 s",
    );
}

#[test]
fn a_run_that_blocks_the_event_loop_past_its_deadline_is_killed_and_the_others_finish() {
    let workspace = row_one_does("import time; time.sleep(3600)");
    workspace.config("[evaluation]\nagent_workflow_timeout_s = 2\n");
    check(&workspace, "timed_out", "agent phase");
}

#[test]
fn a_run_that_returns_nothing_has_no_sample() {
    check(&row_one_does("return None"), "agent_failed", "sample");
}

#[test]
fn a_run_that_returns_something_else_is_told_so() {
    check(&row_one_does("return 42"), "agent_failed", "int");
}

#[test]
fn a_run_that_exits_the_interpreter_fails_alone() {
    check(
        &row_one_does("raise SystemExit(3)"),
        "agent_failed",
        "SystemExit",
    );
}

#[test]
fn a_run_that_kills_its_process_is_found_and_the_others_finish() {
    let workspace = row_one_does("import os; os._exit(7)");
    check(&workspace, "agent_failed", "exited with code 7");
}

#[test]
fn a_segfault_is_found_and_the_others_finish() {
    let workspace = row_one_does("import ctypes; ctypes.string_at(0)");
    check(&workspace, "agent_failed", "SIGSEGV");
}

#[test]
fn a_grader_that_raises_leaves_the_rollout_ungraded() {
    check(
        &grader_of_row_one_does("raise ValueError('no idea')"),
        "ungraded",
        "ValueError: no idea",
    );
}

#[test]
fn a_grader_that_hangs_times_out_in_its_own_phase() {
    let workspace = grader_of_row_one_does("import asyncio; await asyncio.Event().wait()");
    workspace.config("[evaluation]\ngrader_timeout_s = 2\n");
    check(&workspace, "timed_out", "grade phase");
}

#[test]
fn nan_is_no_reward() {
    check(
        &grader_of_row_one_does("ctx.set_reward(float('nan'))"),
        "ungraded",
        "nan",
    );
}

#[test]
fn a_sample_without_a_reward_is_ungraded() {
    check(&grader_of_row_one_does("pass"), "ungraded", "main");
}

#[test]
fn an_import_that_raises_shows_the_traceback() {
    refused(
        "import json\nraise RuntimeError('at import')\n",
        &["RuntimeError: at import", "main.py", "line 2"],
    );
}

#[test]
fn no_workflow_and_no_grader_are_told_together() {
    refused("x = 1\n", &["AgentWorkflow", "Grader"]);
}

#[test]
fn two_workflows_are_named() {
    let second = format!(
        "{PLAIN}\nclass Second(AgentWorkflow):\n    async def run(self, ctx):\n        pass\n"
    );
    refused(&second, &["Plain", "Second", "main.py"]);
}

#[test]
fn a_sync_run_is_refused() {
    refused(
        &PLAIN
            .replace("async def run", "def run")
            .replace("await ask", "ask"),
        &["run", "async"],
    );
}

#[test]
fn a_tool_that_raises_is_the_agents_to_handle() {
    let main = AGENT.replace("return a * b", "raise RuntimeError('the tool broke')");
    let workspace = Workspace::new(&main, TOOL_SCRIPT, &product_rows(2));
    let resource = workspace.submit_json(&[]);
    // The OpenAI Agents SDK tells the model about it, and goes on.
    assert_eq!(resource["outcomes"]["scored"], 2);
    assert_eq!(resource["pass_rate"], 0.0);
    let shown = workspace.osmosis(&["eval", "show", "t", "0"]).expect(0);
    assert!(
        shown
            .stdout
            .contains("An error occurred while running the tool"),
        "{}",
        shown.stdout
    );
}

#[test]
fn malformed_tool_arguments_from_the_model_hurt_one_rollout_at_most() {
    let script = format!(
        "[[reply]]\nwhen.turn = 1\nwhen.last_user = 'What is 3 times'\n\
         tool_calls = [{{ name = \"multiply\", arguments_text = '{{{{\"a\": 3, \"b\": ' }}]\n{TOOL_SCRIPT}"
    );
    let workspace = Workspace::new(AGENT, &script, &product_rows(3));
    workspace.submit(&[]).expect(0);
    let index = workspace.index();
    assert_eq!(index[0]["passed"], false, "{}", index[0]);
    assert_eq!(index[1]["reward"], 1.0);
    assert_eq!(index[2]["reward"], 1.0);
}

#[test]
fn a_rollout_that_eats_all_memory_fails_alone() {
    let workspace = row_one_does("x = bytearray(8 << 30)");
    workspace.submit(&["--worker-memory", "3G"]).expect(0);
    assert_eq!(
        workspace.outcomes(),
        ["scored", "agent_failed", "scored", "scored"]
    );
    let error = workspace.index()[1]["error"].clone();
    assert!(error.as_str().unwrap().contains("MemoryError"), "{error}");
}

#[test]
fn processes_that_a_rollout_leaves_behind_end_with_its_worker() {
    // Each writes its number; the last act of the rollout is to kill its own worker.
    let workspace = row_one_does(
        "import os, subprocess, sys; [print(subprocess.Popen([sys.executable, '-c', \
         'import time; time.sleep(1000)']).pid, file=open('../../pids', 'a')) for _ in range(20)]; \
         os._exit(9)",
    );
    check(&workspace, "agent_failed", "exited with code 9");
    let pids = workspace.read("pids");
    assert!(pids.lines().count() >= 20, "{pids}");
    for pid in pids.lines() {
        assert!(!is_alive(pid.parse().unwrap()), "{pid} is still there");
    }
}

#[test]
fn the_process_limit_reaches_user_code() {
    let workspace = row_one_does(
        "import resource; raise RuntimeError(f'limit {resource.getrlimit(resource.RLIMIT_NPROC)[0]}')",
    );
    workspace.submit(&["--worker-processes", "4321"]).expect(0);
    assert_eq!(workspace.index()[1]["error"], "RuntimeError: limit 4321");
}
