//! The pool and the environments together with the real Python package.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::execution::{GradeJob, Isolation, RunJob, TaskReport, TaskResult};
use osmosis_core::frame::Load;
use osmosis_core::{JsonText, RolloutId};
use osmosis_testkit::python_environment;
use osmosis_worker::environment::{self, EnvironmentEvent, Surroundings};
use osmosis_worker::{PoolOptions, Role, WorkerError, WorkerEvent, WorkerPool};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::harness::{LONG, gone, loss, messages};

/// Does what the prompt says.
const OBEDIENT: &str = r#"
import asyncio, ctypes, os, subprocess, sys, time
from osmosis_ai.rollout import AgentWorkflow, Grader

class Obedient(AgentWorkflow):
    async def run(self, ctx):
        word = ctx.prompt[-1]["content"]
        if word == "print":
            print("hello from", os.getpid())
        elif word == "raise":
            raise KeyError("x")
        elif word == "exit":
            os._exit(3)
        elif word == "segfault":
            ctypes.string_at(0)
        elif word == "sleep":
            await asyncio.sleep(1000)
        elif word == "spin":
            while True:
                pass
        elif word == "subprocess":
            child = subprocess.Popen(["sleep", "1000"])
            print("child", child.pid, flush=True)
            os._exit(1)
        return [*ctx.prompt, {"role": "assistant", "content": str(os.getpid())}]

class Fair(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.label == "yes" else 0.25)
"#;

struct Rollout {
    pool: WorkerPool,
    log: mpsc::Receiver<WorkerEvent>,
    _folder: TempDir,
}

async fn start(source: &str) -> Result<Rollout, WorkerError> {
    let temporary = TempDir::new().unwrap();
    let folder = Utf8PathBuf::from_path_buf(temporary.path().canonicalize().unwrap()).unwrap();
    std::fs::write(folder.join("main.py"), source).unwrap();
    let python = python_environment::python();
    let prepared = environment::prepare_in(&surroundings(&folder), &folder, Some(&python), |_| {})
        .await
        .unwrap();
    start_in(temporary, folder, &prepared).await
}

async fn start_in(
    temporary: TempDir,
    folder: Utf8PathBuf,
    prepared: &environment::PreparedEnvironment,
) -> Result<Rollout, WorkerError> {
    let load = Load {
        project_path: folder.to_string(),
        entrypoint: "main.py".to_owned(),
        workflow: JsonText::parse("{}").unwrap(),
        grader: JsonText::parse("{}").unwrap(),
    };
    let options = PoolOptions {
        agent_workers: 2,
        grader_workers: 1,
        in_flight_per_worker: 8,
        start_limit: LONG,
        cancel_grace: Duration::from_secs(2),
        limits: osmosis_worker::Limits::default(),
        isolation: osmosis_core::config::WorkerIsolation::Shared,
    };
    let (events, log) = mpsc::channel(1024);
    let mut launch = prepared.launch(&folder, Vec::new());
    launch.guard = crate::harness::guard();
    Ok(Rollout {
        pool: WorkerPool::start(launch, load, options, events).await?,
        log,
        _folder: temporary,
    })
}

fn surroundings(folder: &camino::Utf8Path) -> Surroundings {
    Surroundings {
        cache: Some(folder.join("cache")),
        ..Surroundings::from_environment()
    }
}

impl Rollout {
    async fn run(&self, row: u64, word: &str, isolation: Isolation, limit: Duration) -> TaskReport {
        let job = RunJob {
            rollout_id: RolloutId::of(row, 0),
            prompt: JsonText::parse(format!(r#"[{{"role": "user", "content": "{word}"}}]"#))
                .unwrap(),
            label: None,
            metadata: None,
            chat_completions_url: "http://127.0.0.1:1/v1".to_owned(),
            api_key: "key".to_owned(),
            artifacts_dir: None,
            row: None,
            is_eval: false,
            clock: None,
            other_api_key: None,
        };
        let cancel = CancellationToken::new();
        self.pool.run(job, isolation, limit, &cancel).await
    }

    async fn line_of(&mut self, row: u64, start: &str) -> String {
        let waiting = async {
            loop {
                if let WorkerEvent::Output {
                    rollout_id, line, ..
                } = self.log.recv().await.unwrap()
                    && rollout_id == Some(RolloutId::of(row, 0))
                    && let Some(rest) = line.strip_prefix(start)
                {
                    return rest.to_owned();
                }
            }
        };
        tokio::time::timeout(LONG, waiting).await.unwrap()
    }
}

#[tokio::test]
async fn a_rollout_is_run_and_graded_by_workers_forked_from_one_import() {
    let mut rollout = start(OBEDIENT).await.unwrap();
    let manifest = rollout.pool.manifest();
    assert_eq!(manifest.workflow.name, "Obedient");
    assert_eq!(manifest.not_forkable, None);
    let report = rollout.run(4, "print", Isolation::Shared, LONG).await;
    let pid = rollout.line_of(4, "hello from ").await;
    assert!(messages(&report).contains(&pid), "{}", messages(&report));

    let TaskResult::Done { samples, .. } = report.result else {
        panic!("{report:?}")
    };
    let job = GradeJob {
        rollout_id: RolloutId::of(4, 0),
        label: Some("yes".to_owned()),
        samples,
        metadata: None,
        artifacts_dir: None,
        judge: None,
        clock: None,
        turns: BTreeMap::new(),
    };
    let cancel = CancellationToken::new();
    let report = rollout
        .pool
        .grade(job, Isolation::Shared, LONG, &cancel)
        .await;
    let TaskResult::Done { samples, .. } = report.result else {
        panic!("{report:?}")
    };
    assert!((samples[0].reward.unwrap().get() - 1.0).abs() < f64::EPSILON);
    rollout.pool.shut_down(LONG).await;
    gone(pid.parse().unwrap()).await;
}

#[tokio::test]
async fn an_entrypoint_that_raises_is_told_with_its_traceback() {
    let Err(error) = start("import no_such_module\n").await else {
        panic!("it must not load")
    };
    let WorkerError::LoadFailed { problems, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(problems[0].code, "import_failed");
    assert!(format!("{problems:?}").contains("no_such_module"));
}

#[tokio::test]
async fn what_user_code_raises_is_a_failure_and_the_worker_goes_on() {
    let rollout = start(OBEDIENT).await.unwrap();
    let report = rollout.run(0, "raise", Isolation::Shared, LONG).await;
    assert!(
        matches!(&report.result, TaskResult::Failed { failure } if failure.kind == "KeyError"),
        "{report:?}"
    );
    messages(&rollout.run(1, "fine", Isolation::Shared, LONG).await);
}

#[tokio::test]
async fn crashes_are_told_by_code_and_signal_and_attributed_when_alone() {
    let rollout = start(OBEDIENT).await.unwrap();
    let report = rollout.run(0, "exit", Isolation::Shared, LONG).await;
    assert_eq!(loss(&report), ("exited with code 3", false));
    let report = rollout.run(0, "exit", Isolation::Alone, LONG).await;
    assert_eq!(loss(&report), ("exited with code 3", true));
    let report = rollout.run(1, "segfault", Isolation::Alone, LONG).await;
    assert_eq!(loss(&report), ("was killed by signal 11 (SIGSEGV)", true));
    messages(&rollout.run(2, "fine", Isolation::Shared, LONG).await);
    messages(&rollout.run(3, "fine", Isolation::Alone, LONG).await);
}

#[tokio::test]
async fn a_task_that_awaits_past_its_deadline_is_cancelled() {
    let rollout = start(OBEDIENT).await.unwrap();
    let limit = Duration::from_millis(200);
    let report = rollout.run(0, "sleep", Isolation::Alone, limit).await;
    assert!(matches!(report.result, TaskResult::TimedOut), "{report:?}");
    assert!(
        report.took < Duration::from_secs(2),
        "it was cancelled, not killed: {report:?}"
    );
}

#[tokio::test]
async fn a_task_that_holds_the_interpreter_past_its_deadline_is_killed() {
    let mut rollout = start(OBEDIENT).await.unwrap();
    let limit = Duration::from_millis(200);
    let report = rollout.run(0, "spin", Isolation::Shared, limit).await;
    assert!(matches!(report.result, TaskResult::TimedOut), "{report:?}");
    let killed = async {
        while !matches!(
            rollout.log.recv().await,
            Some(WorkerEvent::Killed {
                role: Role::Agent,
                ..
            })
        ) {}
    };
    tokio::time::timeout(LONG, killed).await.unwrap();
    messages(&rollout.run(1, "fine", Isolation::Shared, LONG).await);
}

#[tokio::test]
async fn what_user_code_started_ends_with_its_worker() {
    let mut rollout = start(OBEDIENT).await.unwrap();
    let report = rollout.run(0, "subprocess", Isolation::Shared, LONG).await;
    assert_eq!(loss(&report).0, "exited with code 1");
    let pid = rollout.line_of(0, "child ").await;
    gone(pid.parse().unwrap()).await;
}

#[tokio::test]
async fn an_environment_is_really_made_and_holds_what_the_project_asks_for() {
    let temporary = TempDir::new().unwrap();
    let folder = Utf8PathBuf::from_path_buf(temporary.path().canonicalize().unwrap()).unwrap();
    let surroundings = surroundings(&folder);
    let wheel = make_wheel(&folder);
    std::fs::write(
        folder.join("pyproject.toml"),
        format!(
            "[project]\nrequires-python = '>=3.10'\ndependencies = ['osmosis-rs', 'tiny-words @ file://{wheel}']\n"
        ),
    )
    .unwrap();
    std::fs::write(
        folder.join("main.py"),
        format!("import tiny_words\nassert tiny_words.WORD == 'tiny'\n{OBEDIENT}"),
    )
    .unwrap();
    let mut events = Vec::new();
    let prepared = environment::prepare_in(&surroundings, &folder, None, |event| {
        events.push(event);
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        events.last(),
        Some(&EnvironmentEvent::Ready { reused: false })
    );

    let imports = std::process::Command::new(&prepared.python)
        .args(["-c", "import osmosis_ai, sys; print(osmosis_ai.__file__)"])
        .current_dir("/")
        .output()
        .unwrap();
    let imported = String::from_utf8(imports.stdout).unwrap();
    assert!(
        imported.starts_with(prepared.sdk_path.as_str()),
        "{imported}"
    );

    let mut events = Vec::new();
    let again = environment::prepare_in(&surroundings, &folder, None, |event| events.push(event))
        .await
        .unwrap();
    assert_eq!(events, [EnvironmentEvent::Ready { reused: true }]);
    assert_eq!(again, prepared);

    let rollout = start_in(temporary, folder, &prepared).await.unwrap();
    messages(&rollout.run(0, "fine", Isolation::Shared, LONG).await);
}

/// A package of one module, built without any tool.
fn make_wheel(folder: &camino::Utf8Path) -> Utf8PathBuf {
    let wheel = folder.join("tiny_words-1.0-py3-none-any.whl");
    let script = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("tiny_words.py", "WORD = 'tiny'\n")
    info = "tiny_words-1.0.dist-info"
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-words\nVersion: 1.0\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", f"tiny_words.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
"#;
    let status = std::process::Command::new(python_environment::python())
        .args(["-c", script, wheel.as_str()])
        .status()
        .unwrap();
    assert!(status.success());
    wheel
}
