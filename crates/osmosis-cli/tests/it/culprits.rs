//! User code that kills processes or holds an event loop: who did it is found in at most ten attempts, and
//! everybody else is scored.

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

const KILL_PARENT: &str = "os.kill(os.getppid(), signal.SIGKILL); await asyncio.sleep(3600)";
/// The process that all workers were forked from.
const KILL_TEMPLATE: &str =
    "os.kill(parent_of(os.getppid()), signal.SIGKILL); await asyncio.sleep(3600)";
const KILL_ITSELF: &str = "os.kill(os.getpid(), signal.SIGKILL)";
const KILL_ITS_GROUP: &str = "os.killpg(0, signal.SIGKILL)";
const KILL_PARENTS_GROUP: &str =
    "os.killpg(os.getpgid(os.getppid()), signal.SIGKILL); await asyncio.sleep(3600)";
const TERMINATE_ITSELF: &str = "os.kill(os.getpid(), signal.SIGTERM); await asyncio.sleep(3600)";
const KILL_SIBLINGS: &str = "kill_siblings(); os.kill(os.getpid(), signal.SIGKILL)";
const EXIT: &str = "os._exit(7)";
const FAULT: &str = "ctypes.string_at(0)";

const TOOLS: &str = r"
import asyncio, ctypes, os, re, signal, time

def parent_of(pid):
    return int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])

def kill_siblings():
    template = parent_of(os.getppid())
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
        try:
            if parent_of(parent_of(pid)) == template and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
";

/// A workspace whose agents, or graders, do something in some rows.
fn workspace(rows: u64, agents: &[(u64, &str)], graders: &[(u64, &str)]) -> Workspace {
    let branches = |what: &[(u64, &str)], subject: &str, word: &str| -> String {
        let branch = |(row, what): &(u64, &str)| {
            format!("        if {subject} == '{word}{row}':\n            {what}\n")
        };
        what.iter().map(branch).collect::<Vec<_>>().concat()
    };
    let agents = branches(agents, "ctx.prompt[-1]['content']", "say ");
    let graders = branches(graders, "ctx.label", "");
    let main = PLAIN
        .replace(
            "        return [*ctx",
            &format!("{agents}        return [*ctx"),
        )
        .replace(
            "        ctx.set_reward(",
            &format!("{graders}        ctx.set_reward("),
        );
    Workspace::new(&format!("{TOOLS}{main}"), ECHO_SCRIPT, &echo_rows(rows))
}

/// How many attempts each rollout took.
fn attempts(workspace: &Workspace) -> Vec<u32> {
    let database = rusqlite::Connection::open(workspace.run_folder("t").join("run.db")).unwrap();
    let mut query = database
        .prepare("SELECT attempt FROM rollouts ORDER BY row_index")
        .unwrap();
    let attempts = query.query_map([], |row| row.get(0)).unwrap();
    attempts.map(Result::unwrap).collect()
}

/// Submits; these rows have that outcome and an error with that text, all others are scored, soon enough.
#[track_caller]
fn check(workspace: &Workspace, outcome: &str, culprits: &[(u64, &str)]) {
    let ran = workspace.submit(&[]).expect(0);
    let index = workspace.index();
    let attempts = attempts(workspace);
    for (row, line) in (0..).zip(&index) {
        let error = line["error"].as_str().unwrap_or_default();
        let culprit = culprits.iter().find(|(culprit, _)| *culprit == row);
        let expected = culprit.map_or("scored", |_| outcome);
        assert_eq!(
            line["outcome"], expected,
            "row {row}: {error}\n{}",
            ran.stderr
        );
        let most = match culprit {
            Some((_, text)) => {
                assert!(error.contains(text), "row {row}: no `{text}` in `{error}`");
                10
            }
            None => 3,
        };
        let found = attempts[usize::try_from(row).unwrap()];
        assert!(found <= most, "row {row}: {found} attempts");
    }
}

#[test]
fn an_agent_that_kills_its_parent_is_found_and_the_others_are_scored() {
    let workspace = workspace(6, &[(1, KILL_PARENT)], &[]);
    check(
        &workspace,
        "agent_failed",
        &[(1, "was killed by signal 9 (SIGKILL)")],
    );
}

#[test]
fn an_agent_that_kills_what_all_workers_were_forked_from_is_found() {
    let workspace = workspace(6, &[(1, KILL_TEMPLATE)], &[]);
    let found =
        "went with the process that it was forked from, which was killed by signal 9 (SIGKILL)";
    check(&workspace, "agent_failed", &[(1, found)]);
}

#[test]
fn several_killers_in_one_batch_are_all_found() {
    let killers = [
        (1, KILL_PARENT),
        (3, KILL_ITSELF),
        (4, KILL_ITS_GROUP),
        (6, KILL_PARENTS_GROUP),
        (7, TERMINATE_ITSELF),
        (9, KILL_SIBLINGS),
        (10, EXIT),
        (12, FAULT),
        (14, KILL_TEMPLATE),
    ];
    let workspace = workspace(16, &killers, &[]);
    check(
        &workspace,
        "agent_failed",
        &[
            (1, "was killed by signal 9 (SIGKILL)"),
            (3, "was killed by signal 9 (SIGKILL)"),
            (4, "was killed by signal 9 (SIGKILL)"),
            (6, "was killed by signal 9 (SIGKILL)"),
            (7, "was killed by signal 15 (SIGTERM)"),
            (9, "was killed by signal 9 (SIGKILL)"),
            (10, "exited with code 7, and nothing else ran in it"),
            (
                12,
                "was killed by signal 11 (SIGSEGV), and nothing else ran in it",
            ),
            (14, "which was killed by signal 9 (SIGKILL)"),
        ],
    );
}

#[test]
fn graders_that_kill_are_found_and_the_others_are_scored() {
    let killers = [
        (1, KILL_TEMPLATE),
        (2, KILL_ITSELF),
        (4, KILL_SIBLINGS),
        (5, EXIT),
        (6, FAULT),
    ];
    let workspace = workspace(8, &[], &killers);
    check(
        &workspace,
        "ungraded",
        &[
            (1, "which was killed by signal 9 (SIGKILL)"),
            (2, "was killed by signal 9 (SIGKILL)"),
            (4, "was killed by signal 9 (SIGKILL)"),
            (5, "exited with code 7, and nothing else ran in it"),
            (
                6,
                "was killed by signal 11 (SIGSEGV), and nothing else ran in it",
            ),
        ],
    );
}

#[test]
fn an_agent_that_kills_only_its_siblings_costs_them_nothing() {
    let workspace = workspace(8, &[(1, "kill_siblings()")], &[]);
    check(&workspace, "agent_failed", &[]);
}

/// Eight rows work for 0.3 s each without letting go of the event loop, and the last one never lets go, all in
/// one turn of it. When they run again, each does so by itself.
const TOGETHER: &str = r"
gate, waiting = asyncio.Event(), 0

def first_time(row):
    seen = os.path.exists(f'seen-{row}')
    open(f'seen-{row}', 'w').close()
    return not seen

async def work(row):
    global waiting
    if first_time(row):
        waiting += 1
        await gate.wait()
    time.sleep(0.3)

async def hold(row, block):
    if first_time(row):
        while waiting < 8:
            await asyncio.sleep(0.01)
        gate.set()
        await asyncio.sleep(0)
    block()
";

/// Everybody but the last is scored.
#[track_caller]
fn only_the_last_is_late(block: &str) {
    let works: Vec<String> = (0..8).map(|row| format!("await work({row})")).collect();
    let hold = format!("await hold(8, lambda: {block})");
    let mut rows: Vec<(u64, &str)> = (0..8).zip(works.iter().map(String::as_str)).collect();
    rows.push((8, &hold));
    let workspace = workspace(9, &rows, &[]);
    let main = workspace.read("rollouts/r/main.py");
    workspace.write("rollouts/r/main.py", &format!("{TOOLS}{TOGETHER}{main}"));
    workspace.config("[evaluation]\nagent_workflow_timeout_s = 8\n");
    workspace.submit(&["--workers", "1"]).expect(0);
    let mut expected = vec!["scored"; 8];
    expected.push("timed_out");
    assert_eq!(workspace.outcomes(), expected);
    let attempts = attempts(&workspace);
    assert!(
        attempts.iter().all(|attempts| *attempts <= 2),
        "{attempts:?}"
    );
}

#[test]
fn only_whoever_holds_the_loop_when_the_deadline_passes_is_blamed() {
    only_the_last_is_late("time.sleep(3600)");
}

#[test]
fn whoever_holds_the_interpreter_itself_is_found_by_running_alone() {
    // Matching holds Python's lock for longer than anybody lives, so that not even the watchdog runs: its
    // last word is about one of the others.
    only_the_last_is_late("re.match('(a+)+$', 'a' * 64 + 'b')");
}
