//! Killed at random points, again and again, a run ends as if nothing had happened. `KILLS` and
//! `KILL_SEED` in the environment make it longer or repeat one; `benches/README.md` says how.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use osmosis_store::KeyFolder;
use osmosis_store_sqlite::SqliteStore;
use osmosis_testkit::{python_environment, waiting};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::gateway_command::Serving;
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
pub(crate) fn seeded() -> StdRng {
    let seed =
        std::env::var("KILL_SEED").map_or_else(|_| rand::random(), |text| text.parse().unwrap());
    eprintln!("KILL_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

pub(crate) fn kill(pid: u32) {
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
        waiting::pass(Duration::from_millis(random.random_range(20..1200)));
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
        waiting::pass(Duration::from_millis(random.random_range(20..300)));
        // The guard of all, the template, and at least two of its workers, each below a guard of its own.
        // Processes that die at start, again and again, are another thing: the pool gives up on those, and
        // rightly so.
        let workers = children_below(child.id());
        if workers.len() >= 6 {
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

/// Asks on a connection of its own; `true` when the whole answer came.
fn ask(address: &str, key: &str, number: u64) -> bool {
    let streamed = number.is_multiple_of(2);
    let body = json!({
        "model": "m", "stream": streamed, "messages": [{"role": "user", "content": format!("call {number}")}],
    })
    .to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = Vec::new();
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(request.as_bytes())?;
        stream.read_to_end(&mut answer)
    });
    let end: &[u8] = if streamed {
        b"[DONE]\n\n\r\n0\r\n\r\n"
    } else {
        b"}"
    };
    asked.is_ok() && answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(end)
}

#[test]
fn a_killed_gateway_with_durable_answers_has_every_call_that_it_answered() {
    const ANSWERED: usize = 60;
    let mut random = seeded();
    let workspace = Workspace::new(PLAIN, "[[reply]]\ntext = \"all right\"\n", &echo_rows(1));
    let mut answered = BTreeSet::new();
    let next = AtomicU64::new(0);
    for _ in 0..kills().div_ceil(4) {
        let model = ["--model", "script:policies/p.toml", "--name", "g"];
        let mut serving =
            Serving::start(&workspace, &[&model[..], &["--durable", "answer"]].concat());
        let url = serving.resource["url"].as_str().unwrap().to_owned();
        let address = url
            .strip_prefix("http://")
            .unwrap()
            .strip_suffix("/v1")
            .unwrap();
        let key = serving.resource["api_key"].as_str().unwrap().to_owned();
        let here = Mutex::new(BTreeSet::new());
        let enough = ANSWERED + random.random_range(0..ANSWERED);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if !ask(address, &key, number) {
                            return;
                        }
                        let mut here = here.lock().unwrap();
                        here.insert(number);
                        // Whoever got the last of them kills it, while the others ask on.
                        if here.len() == enough {
                            kill(serving.child.id());
                        }
                    }
                });
            }
        });
        serving.child.wait().unwrap();
        let here = here.into_inner().unwrap();
        assert!(here.len() >= enough, "{} of {enough}", here.len());
        answered.extend(here);
    }
    let store =
        SqliteStore::open_read_only(&workspace.root.join(".osmosis/serve/g"), &KeyFolder::none())
            .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut recorded = BTreeSet::new();
    for call in 1.. {
        let Some(body) = runtime.block_on(store.call_body(call)).unwrap() else {
            break;
        };
        let request: Value = serde_json::from_slice(&body.request).unwrap();
        let text = request["messages"][0]["content"].as_str().unwrap();
        recorded.insert(text.strip_prefix("call ").unwrap().parse().unwrap());
    }
    let missing: Vec<u64> = answered.difference(&recorded).copied().collect();
    assert!(
        missing.is_empty(),
        "{} of {}: {missing:?}",
        missing.len(),
        answered.len()
    );
}
