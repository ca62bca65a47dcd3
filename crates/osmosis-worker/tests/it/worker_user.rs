//! Workers with a user of their own: what they can't reach, and what they still need to.
//!
//! Only root can start them, so these tests show the walls when root runs them. As any other user they show what the
//! walls would prevent: the same attacks succeed.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::WorkerUser;
use osmosis_core::execution::{GradeJob, Isolation, TaskResult};
use osmosis_core::frame::Load;
use osmosis_core::{JsonText, RolloutId, Sample, SampleId};
use osmosis_testkit::python_environment;
use osmosis_worker::WorkerPool;
use osmosis_worker::environment::{self, Surroundings};
use osmosis_worker::user::{Needed, NeededPath, RunsAs, UserError, WorkerIdentity, decide};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::harness::{self, Fixture, LONG, Setup, gone, job, messages};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn needed(needed: Needed, path: &Utf8Path) -> Vec<NeededPath> {
    let path = path.to_owned();
    vec![NeededPath { needed, path }]
}

/// A Python that the user of the workers can start, and that user. None for a test that isn't run by root.
fn other_user() -> Option<(Utf8PathBuf, WorkerIdentity)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let pythons = std::env::split_paths(&path)
        .filter_map(|folder| Utf8PathBuf::from_path_buf(folder.join("python3")).ok());
    for python in pythons.filter(|python| python.is_file()) {
        let needed = needed(Needed::Interpreter, &python);
        match decide(&WorkerUser::Auto, &needed, None).unwrap() {
            RunsAs::Other(user) => return Some((python, user)),
            RunsAs::Engine => return None,
            RunsAs::Root(_) => {}
        }
    }
    assert!(
        !is_root(),
        "root needs a Python that all users can start for these tests"
    );
    None
}

/// A folder that everybody can enter, with a project and the state of a run in it.
struct Machine {
    root: Utf8PathBuf,
    _folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        for (name, mode) in [
            ("", 0o755),
            ("project", 0o755),
            ("state", 0o700),
            ("state/artifacts", 0o700),
        ] {
            let path = root.join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        for (name, mode) in [("project/main.py", 0o644), ("state/run.db", 0o600)] {
            std::fs::write(root.join(name), "as it was").unwrap();
            std::fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
        }
        Self {
            root,
            _folder: folder,
        }
    }

    fn content(&self, name: &str) -> String {
        std::fs::read_to_string(self.root.join(name)).unwrap()
    }
}

async fn start(other: Option<&(Utf8PathBuf, WorkerIdentity)>) -> Fixture {
    let mut setup = Setup::new();
    if let Some((python, user)) = other {
        setup.python = python.clone();
        setup.user = Some(user.clone());
    }
    setup.start().await.unwrap()
}

async fn answer(fixture: &Fixture, code: &str) -> Value {
    let prompt = json!(["run_code", code]).to_string();
    let report = fixture.run(&prompt).await;
    let messages: Value = serde_json::from_str(&messages(&report)).unwrap();
    messages[0].clone()
}

/// What an agent may try; `answer` is what it succeeded in.
const ATTACKS: &str = r#"
import os
def engine_environment():
    open(f"/proc/{ENGINE}/environ", "rb").read()
def engine_memory():
    open(f"/proc/{ENGINE}/mem", "rb")
def engine_signal():
    os.kill(ENGINE, 0)
def guard_signal():
    os.kill(os.getppid(), 0)
def state_listed():
    os.listdir(f"{ROOT}/state")
def rows_read():
    open(f"{ROOT}/state/run.db").read()
def rows_written():
    open(f"{ROOT}/state/run.db", "a").write("forged")
def grader_written():
    open(f"{ROOT}/project/main.py", "a").write("forged")
def grader_replaced():
    open(f"{ROOT}/project/new", "w").write("forged")
    os.replace(f"{ROOT}/project/new", f"{ROOT}/project/main.py")
def socket_folder_listed():
    os.listdir(os.path.dirname(os.environ["OSMOSIS_WORKER_ADDR"].removeprefix("unix:")))
def root_again():
    os.setuid(0)
attacks = [engine_environment, engine_memory, engine_signal, guard_signal, state_listed, rows_read, rows_written,
           grader_written, grader_replaced, socket_folder_listed, root_again]
answer = []
for attack in attacks:
    try:
        attack()
    except OSError:
        continue
    answer.append(attack.__name__)
"#;

async fn attack(machine: &Machine, other: Option<&(Utf8PathBuf, WorkerIdentity)>) -> Vec<String> {
    let fixture = start(other).await;
    let (engine, root) = (std::process::id(), &machine.root);
    let code = format!("ENGINE, ROOT = {engine}, '{root}'\n{ATTACKS}");
    let succeeded = answer(&fixture, &code).await;
    fixture.pool.shut_down(LONG).await;
    serde_json::from_value(succeeded).unwrap()
}

#[tokio::test]
async fn a_worker_with_a_user_of_its_own_reaches_neither_engine_nor_rows_nor_grader() {
    if let Some(other) = other_user() {
        let machine = Machine::new();
        assert_eq!(attack(&machine, Some(&other)).await, Vec::<String>::new());
        for name in ["state/run.db", "project/main.py"] {
            assert_eq!(machine.content(name), "as it was", "{name}");
        }
    }
    // Without that wall.
    let machine = Machine::new();
    let succeeded = attack(&machine, None).await;
    let of_the_same_user = [
        "engine_signal",
        "guard_signal",
        "state_listed",
        "rows_read",
        "rows_written",
        "grader_written",
        "grader_replaced",
        "socket_folder_listed",
    ];
    for name in of_the_same_user {
        assert!(
            succeeded.iter().any(|it| it == name),
            "{name}: {succeeded:?}"
        );
    }
    assert_eq!(machine.content("state/run.db"), "as it wasforged");
    assert_eq!(machine.content("project/main.py"), "forged");
}

#[tokio::test]
async fn such_a_worker_has_a_home_a_name_and_no_rights_to_gain() {
    let Some(other) = other_user() else { return };
    let fixture = start(Some(&other)).await;
    let code = r#"
import getpass, os, pathlib, tempfile
home = pathlib.Path.home()
(home / "x").write_text("x")
with tempfile.NamedTemporaryFile() as file:
    temporary = os.path.dirname(file.name)
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
folder = os.path.dirname(os.environ["OSMOSIS_WORKER_ADDR"].removeprefix("unix:"))
answer = {
    "ids": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
    "user": getpass.getuser(),
    "places": [str(home.relative_to(folder)), os.path.relpath(temporary, folder)],
    "capabilities": [status["CapEff"], status["CapPrm"], status["CapAmb"]],
    "no_new_privileges": status["NoNewPrivs"],
    "user_site": os.environ["PYTHONNOUSERSITE"],
    "folder": folder,
}
"#;
    let mut found = answer(&fixture, code).await;
    let folder = found["folder"].take();
    let (uid, gid) = (other.1.uid, other.1.gid);
    let none = "0000000000000000";
    assert_eq!(
        found,
        json!({
            "ids": [uid, uid, uid, gid, gid, gid],
            "user": "osmosis-worker",
            "places": ["home", "tmp"],
            "capabilities": [none, none, none],
            "no_new_privileges": "1",
            "user_site": "1",
            "folder": null,
        })
    );
    fixture.pool.shut_down(LONG).await;
    assert!(!Utf8Path::new(folder.as_str().unwrap()).exists());
}

#[tokio::test]
async fn what_such_a_worker_starts_ends_with_it() {
    let Some(other) = other_user() else { return };
    let fixture = start(Some(&other)).await;
    let code = "import subprocess\nanswer = subprocess.Popen(['sleep', '1000'], start_new_session=True).pid";
    let left = answer(&fixture, code).await.as_u64().unwrap();
    fixture.pool.shut_down(LONG).await;
    gone(u32::try_from(left).unwrap()).await;
}

fn grade_job(code: &str, artifacts: &Utf8Path) -> GradeJob {
    let metadata = json!({ "code": code }).to_string();
    GradeJob {
        rollout_id: RolloutId::of(0, 0),
        label: None,
        samples: vec![Sample {
            id: SampleId::main(),
            messages: JsonText::parse("[]").unwrap(),
            reward: None,
            remove_sample: false,
            metrics: None,
            extra_fields: None,
        }],
        metadata: Some(JsonText::parse(&metadata).unwrap()),
        artifacts_dir: Some(artifacts.to_owned()),
        judge: None,
        clock: None,
        turns: BTreeMap::new(),
    }
}

#[tokio::test]
async fn what_a_rollout_leaves_goes_to_the_run_and_to_its_grader() {
    let other = other_user();
    let machine = Machine::new();
    let fixture = start(other.as_ref()).await;
    let kept = machine.root.join("state/artifacts/r0-0");
    let code = "import os\nfolder = task['artifacts_dir']\nos.makedirs(folder + '/deep')\n\
        open(folder + '/deep/x', 'w').write('agent')\nos.symlink('/etc/shadow', folder + '/link')\nanswer = folder";
    let mut agent = job(0, &json!(["run_code", code]).to_string());
    agent.artifacts_dir = Some(kept.clone());
    let cancel = CancellationToken::new();
    let ran = fixture
        .pool
        .run(agent, Isolation::Shared, LONG, &cancel)
        .await;
    let seen: Value = serde_json::from_str(&messages(&ran)).unwrap();
    let seen = seen[0].as_str().unwrap();
    assert_eq!(machine.content("state/artifacts/r0-0/deep/x"), "agent");
    assert!(kept.join("link").is_symlink());
    if other.is_some() {
        assert_ne!(seen, kept);
        assert!(!Utf8Path::new(seen).exists(), "given back");
        let file = kept.join("deep/x").metadata().unwrap();
        assert_eq!((file.uid(), file.mode() & 0o777), (0, 0o600));
    }

    let code = "folder = task['artifacts_dir']\nopen(folder + '/deep/x', 'a').write(' and grader')";
    let grade = grade_job(code, &kept);
    let graded = fixture
        .pool
        .grade(grade, Isolation::Shared, LONG, &cancel)
        .await;
    assert!(
        matches!(graded.result, TaskResult::Done { .. }),
        "{graded:?}"
    );
    assert_eq!(
        machine.content("state/artifacts/r0-0/deep/x"),
        "agent and grader"
    );
    assert_eq!(kept.join("link").read_link_utf8().unwrap(), "/etc/shadow");
    fixture.pool.shut_down(LONG).await;
}

const NAMES_ITSELF: &str = r#"
import getpass, os, pathlib
from osmosis_ai.rollout import AgentWorkflow, Grader

IMPORTED_BY = os.getpid()

class A(AgentWorkflow):
    async def run(self, ctx):
        (pathlib.Path(ctx.artifacts_dir) / "x").write_text("left")
        said = f"{os.getuid()} {getpass.getuser()} {pathlib.Path.home().name} {IMPORTED_BY != os.getpid()}"
        return [{"role": "assistant", "content": said}]

class G(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"#;

fn says(python: &Utf8Path, code: &str) -> String {
    let output = std::process::Command::new(python)
        .args(["-c", code])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// An environment with the packages of the tests' own, on an interpreter that all users can start. None where there is
/// no such interpreter of the same version.
fn environment_for_all(python: &Utf8Path, folder: &Utf8Path) -> Option<Utf8PathBuf> {
    let packages = python_environment::python();
    let version = "import sys; print(sys.version_info[:2])";
    if says(python, version) != says(&packages, version) {
        return None;
    }
    let made = std::process::Command::new(python)
        .args(["-m", "venv", "--without-pip", folder.as_str()])
        .status();
    if !made.unwrap().success() {
        return None;
    }
    let place = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let own = folder.join("bin/python");
    let link = Utf8PathBuf::from(says(&own, place)).join("packages.pth");
    let packages = says(&packages, place);
    std::fs::write(link, &packages).unwrap();
    let needs = needed(Needed::Environment, Utf8Path::new(&packages));
    matches!(
        decide(&WorkerUser::Auto, &needs, None),
        Ok(RunsAs::Other(_))
    )
    .then_some(own)
}

#[tokio::test]
async fn a_python_worker_with_a_user_of_its_own_is_forked_and_knows_who_it_is() {
    let Some((python, _)) = other_user() else {
        return;
    };
    let machine = Machine::new();
    let Some(python) = environment_for_all(&python, &machine.root.join("venv")) else {
        return;
    };
    let project = machine.root.join("project");
    std::fs::write(project.join("main.py"), NAMES_ITSELF).unwrap();
    let cache = machine.root.join("cache");
    let surroundings = Surroundings {
        cache: Some(cache.clone()),
        ..Surroundings::from_environment()
    };
    let prepared = environment::prepare_in(&surroundings, &project, Some(&python), |_| {});
    let mut launch = prepared.await.unwrap().launch(&project, Vec::new());
    let RunsAs::Other(user) = decide(&WorkerUser::Auto, &launch.needed, Some(&cache)).unwrap()
    else {
        panic!("all of it can be reached");
    };
    launch.guard = harness::guard();
    launch.run_as(user.clone()).await;
    let sdk = launch
        .needed
        .iter()
        .find(|it| it.needed == Needed::Sdk)
        .unwrap();
    let compiled = sdk.path.join("osmosis_ai/worker/__pycache__");
    assert!(user.can_read(&compiled) && compiled.read_dir_utf8().unwrap().count() > 0);

    let load = Load {
        project_path: project.to_string(),
        entrypoint: "main.py".to_owned(),
        workflow: JsonText::parse("{}").unwrap(),
        grader: JsonText::parse("{}").unwrap(),
    };
    let (events, _log) = mpsc::channel(1024);
    let pool = WorkerPool::start(launch, load, Setup::new().options, events)
        .await
        .unwrap();
    let mut agent = job(0, r#"[{"role": "user", "content": "who are you?"}]"#);
    let kept = machine.root.join("state/artifacts/r0-0");
    agent.artifacts_dir = Some(kept.clone());
    let cancel = CancellationToken::new();
    let report = pool.run(agent, Isolation::Shared, LONG, &cancel).await;
    let messages: Value = serde_json::from_str(&messages(&report)).unwrap();
    assert_eq!(messages[0]["content"], "60900 osmosis-worker home True");
    assert_eq!(std::fs::read_to_string(kept.join("x")).unwrap(), "left");
    pool.shut_down(LONG).await;
}

#[test]
fn who_workers_run_as_depends_on_what_was_asked_for_and_what_can_be_reached() {
    let folder = TempDir::new().unwrap();
    let root = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    let project = root.join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("main.py"), "").unwrap();
    let open = |path: &Utf8Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    open(&project, 0o755);
    open(&project.join("main.py"), 0o644);
    let needs = needed(Needed::Project, &project);
    let decided = |choice: WorkerUser| decide(&choice, &needs, None);

    assert_eq!(decided(WorkerUser::Same), Ok(RunsAs::Engine));
    let unknown = WorkerUser::Named("no-such-user".to_owned());
    assert!(matches!(decided(unknown), Err(UserError::Unknown { .. })));
    for root in [WorkerUser::Uid(0), WorkerUser::Named("root".to_owned())] {
        assert!(matches!(decided(root), Err(UserError::IsRoot { .. })));
    }
    let ours = rustix::process::geteuid().as_raw();
    if !is_root() {
        assert_eq!(decided(WorkerUser::Auto), Ok(RunsAs::Engine));
        assert_eq!(decided(WorkerUser::Uid(ours)), Ok(RunsAs::Engine));
        assert!(matches!(
            decided(WorkerUser::Uid(ours + 1)),
            Err(UserError::NotRoot { .. })
        ));
        return;
    }
    let named_closed = |path: &Utf8Path, mode: u32| {
        let RunsAs::Root(error) = decided(WorkerUser::Auto).unwrap() else {
            panic!("{path} is closed");
        };
        let expected = format!(
            "user 60900 can't use the project `{project}`: `{path}` is closed to it (mode {mode:04o})"
        );
        assert_eq!(error.to_string(), expected);
        assert!(
            error.hint().contains(&format!("chmod -R go+rX {path}")),
            "{}",
            error.hint()
        );
        // The same is an error where a user was named.
        assert!(matches!(
            decided(WorkerUser::Uid(60_901)),
            Err(UserError::Closed { .. })
        ));
    };
    open(&root, 0o700);
    named_closed(&root, 0o700);
    open(&root, 0o711);
    open(&project.join("main.py"), 0o600);
    named_closed(&project.join("main.py"), 0o600);
    open(&project.join("main.py"), 0o604);
    let Ok(RunsAs::Other(user)) = decided(WorkerUser::Auto) else {
        panic!("all of it can be reached");
    };
    assert_eq!(user.uid, 60_900);
    assert!(
        matches!(decided(WorkerUser::Uid(4321)), Ok(RunsAs::Other(user)) if (user.uid, user.gid) == (4321, 4321))
    );
}

#[test]
fn what_is_in_our_cache_is_opened_to_workers_that_nothing_else_keeps_out() {
    if !is_root() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let root = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    let cache = root.join("cache");
    let sdk = cache.join("sdk/1");
    std::fs::create_dir_all(sdk.join("worker")).unwrap();
    std::fs::write(sdk.join("worker/main.py"), "").unwrap();
    let mode = |path: &Utf8Path| path.metadata().unwrap().mode() & 0o777;
    let close = |path: &Utf8Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    for path in [&cache, &cache.join("sdk"), &sdk, &sdk.join("worker")] {
        close(path, 0o700);
    }
    close(&sdk.join("worker/main.py"), 0o600);
    let needs = needed(Needed::Sdk, &sdk);
    let decided = || decide(&WorkerUser::Auto, &needs, Some(&cache)).unwrap();
    // The folder above is closed: nothing is opened for nothing.
    close(&root, 0o700);
    assert!(matches!(decided(), RunsAs::Root(UserError::Closed { .. })));
    assert_eq!(mode(&cache), 0o700);
    close(&root, 0o711);
    assert!(matches!(decided(), RunsAs::Other(_)));
    let modes = [
        &cache,
        &cache.join("sdk"),
        &sdk,
        &sdk.join("worker"),
        &sdk.join("worker/main.py"),
    ];
    assert_eq!(
        modes.map(|path| mode(path)),
        [0o701, 0o701, 0o755, 0o755, 0o644]
    );
}
