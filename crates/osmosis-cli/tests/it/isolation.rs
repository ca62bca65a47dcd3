//! `[workers] isolation = "process"`.

use std::collections::BTreeSet;

use crate::workspace::{CHECKSUM, ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

const PROCESS: &str = "[workers]\nisolation = \"process\"\n";

/// Agents and graders each write down where they run, and agents what they find of others: all keys in
/// reach of this process, which is what `gc` finds.
fn curious() -> String {
    let main = PLAIN
        .replace(
            "        return [*ctx.prompt",
            "        note('agent')\n        answer = await ask(ctx.prompt)\n        note(f'{len(keys())} keys')\n        return [*ctx.prompt",
        )
        .replace("        ctx.set_reward(", "        note('grader')\n        ctx.set_reward(");
    format!(
        r"
import gc, os

def note(what):
    with open('../../notes.txt', 'a') as notes:
        notes.write(f'{{what}} {{os.getpid()}}\n')

def keys():
    from osmosis_ai.rollout import RolloutContext
    return {{o.api_key for o in gc.get_objects() if isinstance(o, RolloutContext)}}
{main}"
    )
}

fn notes(workspace: &Workspace, what: &str) -> Vec<String> {
    workspace
        .read("notes.txt")
        .lines()
        .filter_map(|line| line.strip_prefix(what))
        .map(|pid| pid.trim().to_owned())
        .collect()
}

#[test]
fn every_rollout_and_every_grading_has_a_process_of_its_own() {
    let workspace = Workspace::new(&curious(), ECHO_SCRIPT, &echo_rows(12));
    workspace.config(PROCESS);
    workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 12]);
    let (agents, graders) = (notes(&workspace, "agent"), notes(&workspace, "grader"));
    assert_eq!((agents.len(), graders.len()), (12, 12));
    let processes: BTreeSet<&String> = agents.iter().chain(&graders).collect();
    assert_eq!(processes.len(), 24, "{processes:?}");
    assert_eq!(notes(&workspace, "1 keys").len(), 12, "no key but its own");
}

#[test]
fn a_crash_costs_nobody_else_anything_and_is_known_at_once() {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        "        if ctx.prompt[-1]['content'] == 'say 1':\n            import os; os._exit(7)\n        return [*ctx.prompt",
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(4));
    workspace.config(PROCESS);
    workspace.submit(&[]).expect(0);
    assert_eq!(
        workspace.outcomes(),
        ["scored", "agent_failed", "scored", "scored"]
    );
    let database = rusqlite::Connection::open(workspace.run_folder("t").join("run.db")).unwrap();
    let most: u32 = database
        .query_row("SELECT max(attempt) FROM rollouts", [], |row| row.get(0))
        .unwrap();
    assert_eq!(most, 1);
}

#[test]
fn an_unknown_isolation_is_refused_with_what_there_is() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    workspace.config("[workers]\nisolation = \"container\"\n");
    let ran = workspace.submit(&[]).expect(1);
    assert!(
        ran.stderr.contains("write `shared` or `process`"),
        "{}",
        ran.stderr
    );
}

#[test]
fn training_has_processes_of_its_own_too() {
    let workspace = Workspace::new(CHECKSUM, "", &echo_rows(4));
    workspace.training("builtin/tiny", "steps = 1", PROCESS);
    workspace.train(&[]).expect(0);
    let log = workspace.training_folder("t").join("logs.txt");
    let started = std::fs::read_to_string(log).unwrap();
    // Eight rollouts, and as many gradings.
    assert!(started.matches("| started as").count() >= 16, "{started}");
}
