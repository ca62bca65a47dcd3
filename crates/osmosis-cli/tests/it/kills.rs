//! Killed at random points, again and again, a run ends as if nothing had happened. `KILLS` and
//! `KILL_SEED` in the environment make it longer or repeat one; `benches/README.md` says how.

use std::fs::File;
use std::process::{Child, Stdio};
use std::time::Duration;

use osmosis_testkit::python_environment;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::processes::children_below;
use crate::workspace::{PLAIN, Workspace, echo_rows};

/// Enough that kills find work to disturb.
fn rows() -> u64 {
    150.max(8 * u64::from(kills()))
}

/// Answers after a moment, so that a kill finds many rollouts under way.
const SLOW_SCRIPT: &str = r#"
[[reply]]
when.last_user = 'say (?<word>\d*[02468])$'
text = "{word}"
delay_ms = 60

[[reply]]
text = "no"
delay_ms = 60
"#;

fn workspace() -> Workspace {
    let workspace = Workspace::new(PLAIN, SLOW_SCRIPT, &echo_rows(rows()));
    workspace.config("[evaluation]\nn = 2\n");
    workspace
}

fn start(workspace: &Workspace) -> Child {
    let python = python_environment::python();
    let mut arguments = vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"];
    arguments.extend([
        "--python",
        python.as_str(),
        "--max-in-flight",
        "16",
        "--json",
    ]);
    workspace
        .command(&arguments)
        .stdout(Stdio::null())
        .stderr(File::create(workspace.root.join("stderr")).unwrap())
        .spawn()
        .unwrap()
}

/// What the run came to, without what may differ: times and attempts.
fn results(workspace: &Workspace) -> Vec<Value> {
    workspace
        .index()
        .iter()
        .map(|line| {
            json!([
                line["rollout_id"],
                line["outcome"],
                line["reward"],
                line["samples"],
                line["model_calls"],
                line["error"]
            ])
        })
        .collect()
}

/// Like `assert_eq`, but shows only what differs.
#[track_caller]
fn check_equal(found: &[Value], expected: &[Value]) {
    let differing: Vec<_> = found.iter().zip(expected).filter(|(a, b)| a != b).collect();
    assert!(differing.is_empty(), "found and expected: {differing:?}");
    assert_eq!(found.len(), expected.len());
}

fn undisturbed() -> Vec<Value> {
    let workspace = workspace();
    assert!(start(&workspace).wait().unwrap().success());
    let results = results(&workspace);
    assert_eq!(results.len() as u64, 2 * rows());
    results
}

fn kills() -> u32 {
    std::env::var("KILLS").map_or(10, |text| text.parse().unwrap())
}

#[expect(clippy::print_stderr, reason = "the seed repeats a failure")]
fn seeded() -> StdRng {
    let seed =
        std::env::var("KILL_SEED").map_or_else(|_| rand::random(), |text| text.parse().unwrap());
    eprintln!("KILL_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // It may have ended meanwhile; that is a kill at its last moment.
    let _ = kill_process(pid, Signal::KILL);
}

/// Every rollout is there once, with exactly one accepted result and the calls that belong to it.
fn check_database(workspace: &Workspace) {
    let database = rusqlite::Connection::open(workspace.run_folder("t").join("run.db")).unwrap();
    let count = |query: &str| -> i64 { database.query_row(query, [], |row| row.get(0)).unwrap() };
    let rollouts = i64::try_from(2 * rows()).unwrap();
    assert_eq!(count("SELECT COUNT(*) FROM rollouts"), rollouts);
    assert_eq!(count("SELECT COUNT(*) FROM samples"), rollouts);
    assert_eq!(
        count("SELECT COUNT(DISTINCT rollout_id) FROM samples"),
        rollouts
    );
    let missing = "SELECT COUNT(*) FROM rollouts WHERE NOT EXISTS (
        SELECT 1 FROM calls WHERE calls.rollout_id = rollouts.rollout_id
        AND calls.attempt = rollouts.attempt)";
    assert_eq!(count(missing), 0, "results without their calls");
}

#[test]
fn an_engine_killed_again_and_again_ends_as_if_nothing_had_happened() {
    let mut random = seeded();
    let expected = undisturbed();
    let workspace = workspace();
    for _ in 0..kills() {
        let mut child = start(&workspace);
        // From the first moments of a process to the middle of its work.
        std::thread::park_timeout(Duration::from_millis(random.random_range(20..1200)));
        kill(child.id());
        child.wait().unwrap();
    }
    assert!(start(&workspace).wait().unwrap().success());
    check_equal(&results(&workspace), &expected);
    check_database(&workspace);
}

#[test]
fn workers_killed_again_and_again_cost_nobody_anything() {
    let mut random = seeded();
    let expected = undisturbed();
    let workspace = workspace();
    let mut child = start(&workspace);
    let mut killed = 0;
    while killed < kills() && child.try_wait().unwrap().is_none() {
        std::thread::park_timeout(Duration::from_millis(random.random_range(20..300)));
        // The template and at least two of its workers. Processes that die at start, again and again,
        // are another thing: the pool gives up on those, and rightly so.
        let workers = children_below(child.id());
        if workers.len() >= 3 {
            kill(workers[random.random_range(0..workers.len())]);
            killed += 1;
        }
    }
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}: {}", workspace.read("stderr"));
    check_equal(&results(&workspace), &expected);
    assert!(killed > 0);
    check_database(&workspace);
}
