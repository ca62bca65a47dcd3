//! What workers leave behind: processes that left their group, their parent, or both.

use std::io::BufRead as _;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use osmosis_core::JsonText;
use osmosis_core::execution::{Isolation, TaskReport, TaskResult};
use osmosis_core::frame::Load;
use osmosis_testkit::left_processes::{LEAVE, LEAVE_BARE, is_alive};
use osmosis_testkit::python_environment;
use osmosis_worker::environment::{self, Surroundings};
use osmosis_worker::{PoolOptions, WorkerEvent, WorkerPool};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::harness::{self, LONG, gone, job, loss, messages};

/// Leaves processes behind ([`LEAVE`]) when it is told to.
const LEAVES_PROCESSES: &str = r#"
import ctypes, json, os, signal, time
from osmosis_ai.rollout import AgentWorkflow, Grader

def tokens():
    """What this process and those above it were started with as a token, up to the engine."""
    found, pid = [], os.getpid()
    while pid > 1:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = dict(v.split(b"=", 1) for v in file.read().split(b"\0") if b"=" in v)
        if b"_OSMOSIS_GUARD" not in variables:
            break
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        found += [variables[b"OSMOSIS_WORKER_TOKEN"].decode()]
        found += [word.decode() for word in words if len(word) == 64]
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    return found

AT_IMPORT = leave()[1:] if os.path.exists("leave_at_import") else []

class Leaves(AgentWorkflow):
    async def run(self, ctx):
        word = ctx.prompt[0]["content"]
        if word == "at import":
            return [{"role": "assistant", "content": str(AT_IMPORT)}]
        if word == "environment":
            return [{"role": "assistant", "content": " ".join(sorted(os.environ))}]
        if word == "who":
            return [{"role": "assistant", "content": str([os.getpid(), os.getppid()])}]
        if word == "leave bare":
            return [{"role": "assistant", "content": str(leave_bare())}]
        if word == "dumpable":
            return [{"role": "assistant", "content": str(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))}]
        if word == "tokens":
            return [{"role": "assistant", "content": json.dumps(tokens())}]
        if word == "kill parent":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        left = leave()
        if word == "print, exit":
            print("left", left, flush=True)
            os._exit(3)
        return [{"role": "assistant", "content": str(left)}]

class G(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"#;

struct Rollout {
    pool: WorkerPool,
    log: mpsc::Receiver<WorkerEvent>,
    _folder: TempDir,
}

async fn start(files: &[&str]) -> Rollout {
    let temporary = TempDir::new().unwrap();
    let folder = temporary.path().canonicalize().unwrap();
    let folder = camino::Utf8PathBuf::from_path_buf(folder).unwrap();
    let agent = format!("{LEAVE}{LEAVE_BARE}{LEAVES_PROCESSES}");
    std::fs::write(folder.join("main.py"), agent).unwrap();
    for file in files {
        std::fs::write(folder.join(file), "").unwrap();
    }
    let surroundings = Surroundings {
        cache: Some(folder.join("cache")),
        ..Surroundings::from_environment()
    };
    let python = python_environment::python();
    let prepared = environment::prepare_in(&surroundings, &folder, Some(&python), |_| {})
        .await
        .unwrap();
    let load = Load {
        project_path: folder.to_string(),
        entrypoint: "main.py".to_owned(),
        workflow: JsonText::parse("{}").unwrap(),
        grader: JsonText::parse("{}").unwrap(),
    };
    let options = PoolOptions {
        agent_workers: 1,
        grader_workers: 1,
        in_flight_per_worker: 8,
        isolation: osmosis_core::config::WorkerIsolation::Shared,
        start_limit: LONG,
        cancel_grace: Duration::from_secs(2),
        limits: osmosis_worker::Limits::default(),
    };
    let (events, log) = mpsc::channel(1024);
    let mut launch = prepared.launch(&folder, Vec::new());
    launch.guard = harness::guard();
    Rollout {
        pool: WorkerPool::start(launch, load, options, events)
            .await
            .unwrap(),
        log,
        _folder: temporary,
    }
}

impl Rollout {
    async fn run(&self, row: u64, word: &str, isolation: Isolation) -> TaskReport {
        let prompt = format!(r#"[{{"role": "user", "content": "{word}"}}]"#);
        let cancel = CancellationToken::new();
        self.pool
            .run(job(row, &prompt), isolation, LONG, &cancel)
            .await
    }

    /// The numbers that a rollout answers with.
    async fn numbers(&self, row: u64, word: &str, isolation: Isolation) -> Vec<u32> {
        let report = self.run(row, word, isolation).await;
        let messages: serde_json::Value = serde_json::from_str(&messages(&report)).unwrap();
        serde_json::from_str(messages[0]["content"].as_str().unwrap()).unwrap()
    }

    async fn line(&mut self, start: &str) -> String {
        let waiting = async {
            loop {
                if let WorkerEvent::Output { line, .. } = self.log.recv().await.unwrap()
                    && let Some(rest) = line.strip_prefix(start)
                {
                    return rest.to_owned();
                }
            }
        };
        tokio::time::timeout(LONG, waiting).await.unwrap()
    }
}

async fn all_gone(pids: &[u32]) {
    assert!(!pids.is_empty());
    for pid in pids {
        gone(*pid).await;
    }
}

fn parent_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("PPid:"));
    line.unwrap()["PPid:".len()..].trim().parse().unwrap()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn processes_of_a_worker_that_ended_go_and_those_of_its_sibling_stay() {
    let rollout = start(&[]).await;
    let sibling = rollout.numbers(0, "leave", Isolation::Shared).await;
    assert_eq!(sibling.len(), 3);
    let alone = rollout.numbers(1, "leave", Isolation::Alone).await;
    all_gone(&alone).await;
    assert!(sibling.iter().all(|pid| is_alive(*pid)), "{sibling:?}");
    rollout.pool.shut_down(Duration::from_secs(5)).await;
    assert!(!sibling.iter().any(|pid| is_alive(*pid)), "{sibling:?}");
}

#[tokio::test]
async fn processes_of_a_worker_that_crashed_go() {
    let mut rollout = start(&[]).await;
    let report = rollout.run(0, "print, exit", Isolation::Shared).await;
    assert_eq!(loss(&report), ("exited with code 3", false));
    let left: Vec<u32> = serde_json::from_str(&rollout.line("left ").await).unwrap();
    all_gone(&left).await;
    rollout.numbers(1, "who", Isolation::Shared).await;
}

#[tokio::test]
async fn daemons_of_the_import_live_as_long_as_the_pool() {
    let rollout = start(&["leave_at_import"]).await;
    let daemons = rollout.numbers(0, "at import", Isolation::Alone).await;
    assert_eq!(daemons.len(), 2);
    // The worker that ran it has ended, and its orphans with it; these are not its own.
    let alone = rollout.numbers(1, "leave", Isolation::Alone).await;
    all_gone(&alone).await;
    assert!(daemons.iter().all(|pid| is_alive(*pid)), "{daemons:?}");
    drop(rollout);
    all_gone(&daemons).await;
}

#[tokio::test]
async fn an_agent_that_kills_its_parent_kills_its_own_worker_and_no_other() {
    let rollout = start(&[]).await;
    let before = rollout.numbers(0, "who", Isolation::Shared).await;
    let report = rollout.run(1, "kill parent", Isolation::Alone).await;
    // Anybody may have sent that signal, so it proves nothing by itself.
    assert_eq!(loss(&report), ("was killed by signal 9 (SIGKILL)", false));
    let after = rollout.numbers(2, "who", Isolation::Shared).await;
    assert_eq!(before, after, "the sibling lives on");
}

#[tokio::test]
async fn when_its_guard_is_killed_the_engine_ends_what_is_left() {
    let rollout = start(&[]).await;
    let who = rollout.numbers(0, "who", Isolation::Shared).await;
    let left = rollout.numbers(1, "leave", Isolation::Shared).await;
    // Worker, its own guard, the template, the guard of all of them.
    let guard = parent_of(parent_of(who[1]));
    assert_eq!(parent_of(guard), std::process::id());
    kill(guard);
    all_gone(&left).await;
    all_gone(&who).await;
    let again = loop {
        let report = rollout.run(2, "leave", Isolation::Shared).await;
        if let TaskResult::Done { .. } = report.result {
            break report;
        }
    };
    assert!(messages(&again).contains("assistant"));
}

#[tokio::test]
async fn processes_that_nothing_leads_back_to_end_with_their_worker() {
    let rollout = start(&[]).await;
    let left = rollout.numbers(0, "leave bare", Isolation::Alone).await;
    assert_eq!(left.len(), 2);
    all_gone(&left).await;
}

/// What the attack of issue 34 did before it waited for the next worker.
#[tokio::test]
async fn processes_that_nothing_leads_back_to_end_when_their_guard_is_killed_and_the_log_says_so() {
    let mut rollout = start(&[]).await;
    let who = rollout.numbers(0, "who", Isolation::Shared).await;
    let left = rollout.numbers(1, "leave bare", Isolation::Shared).await;
    // Children of ours, in a session of ours: they are no guard's.
    let mut bystander = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let guard = parent_of(parent_of(who[1]));
    kill(guard);
    all_gone(&left).await;
    all_gone(&who).await;
    assert!(is_alive(bystander.id()));
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    let died = async {
        loop {
            if let WorkerEvent::Died { detail, .. } = rollout.log.recv().await.unwrap() {
                return detail;
            }
        }
    };
    let detail = tokio::time::timeout(LONG, died).await.unwrap();
    assert!(
        detail.ends_with("was ended because its guard process was killed by signal 9 (SIGKILL)"),
        "{detail}"
    );
    rollout.numbers(2, "who", Isolation::Alone).await;
}

#[tokio::test]
async fn no_token_stands_in_an_environment_or_on_a_command_line() {
    let rollout = start(&[]).await;
    let report = rollout.run(0, "tokens", Isolation::Shared).await;
    let messages: serde_json::Value = serde_json::from_str(&messages(&report)).unwrap();
    let found: Vec<String> =
        serde_json::from_str(messages[0]["content"].as_str().unwrap()).unwrap();
    // Worker, its own guard, the template, the guard of all of them.
    assert_eq!(found, ["stdin"; 4]);
}

#[tokio::test]
async fn workers_can_not_be_traced_by_others_of_their_user() {
    let rollout = start(&[]).await;
    let report = rollout.run(0, "dumpable", Isolation::Shared).await;
    assert!(messages(&report).contains(r#""content":"0""#), "{report:?}");
}

#[test]
fn nothing_of_a_guard_can_be_read_by_others_of_its_user() {
    let user = ordinary_user();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let guard = std::process::Command::new(env!("CARGO_BIN_EXE_osmosis-worker-guard"))
        .args(["worker-guard", "--", "/bin/sleep", "1000"])
        .env_clear()
        .env("A_SECRET", "hunter2")
        .stdin(std::process::Stdio::from(std::os::fd::OwnedFd::from(
            theirs,
        )))
        .uid(user)
        .spawn();
    let mut guard = match guard {
        // The build is where that user can't go.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return,
        guard => guard.unwrap(),
    };
    let mut line = String::new();
    std::io::BufReader::new(&ours).read_line(&mut line).unwrap();
    assert!(line.starts_with("started "), "{line}");
    let read = |file: &str| {
        std::process::Command::new("cat")
            .arg(format!("/proc/{}/{file}", guard.id()))
            .uid(user)
            .output()
            .unwrap()
    };
    let (closed, open) = (read("environ"), read("cmdline"));
    drop(ours);
    guard.wait().unwrap();
    assert!(!closed.status.success(), "{closed:?}");
    assert!(open.status.success(), "{open:?}");
}

/// Root may read everything: then another user has to try.
fn ordinary_user() -> u32 {
    match rustix::process::getuid() {
        root if root.is_root() => 65534,
        user => user.as_raw(),
    }
}

#[tokio::test]
async fn a_worker_sees_what_is_on_the_list_and_nothing_else() {
    let rollout = start(&[]).await;
    let report = rollout.run(0, "environment", Isolation::Shared).await;
    let messages: serde_json::Value = serde_json::from_str(&messages(&report)).unwrap();
    let names = messages[0]["content"].as_str().unwrap();
    // What the SDK and the kernel's loader put there themselves.
    let own = [
        "OPENAI_AGENTS_DISABLE_TRACING",
        "_OSMOSIS_GUARD",
        "LC_CTYPE",
    ];
    for name in names.split(' ') {
        assert!(
            osmosis_worker::variables::reaches_workers(name) || own.contains(&name),
            "{name}"
        );
    }
    // Set for every test, and on no list.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert!(names.split(' ').any(|name| name == "PATH"), "{names}");
}
