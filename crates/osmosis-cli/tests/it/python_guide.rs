//! Every block of `docs/python.md` is executed: a guide that is not true fails here. `guide.py` says how.

use std::process::{Command, Output};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use osmosis_testkit::python_environment;

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/python.md");
const RUNNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/guide.py");

type Interpreter = fn() -> Utf8PathBuf;

/// One test for each section, and the list of them.
macro_rules! sections {
    ($($name:ident: $heading:literal in $python:path;)*) => {
        const SECTIONS: &[(&str, Interpreter)] = &[$(($heading, $python)),*];

        $(
            #[test]
            fn $name() {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                let model = runtime.block_on(ModelServer::start(Behaviour::Answers)).unwrap();
                let mut command = guide(&$python(), Utf8Path::new(GUIDE), &["run", $heading]);
                succeed(&command.env("OPENAI_BASE_URL", model.url()).output().unwrap());
            }
        )*
    };
}

sections! {
    the_first_rollout_runs: "First rollout in five minutes" in python_environment::python;
    openai_agents_run: "OpenAI Agents SDK" in python_environment::python;
    strands_agents_run: "Strands" in python_environment::strands_python;
    plain_python_runs: "Plain Python" in python_environment::python;
    a_migrated_agent_runs: "Migration in four steps" in python_environment::python;
    graders_grade: "Graders" in python_environment::python;
    turns_have_rewards: "Rewards of single turns" in python_environment::python;
    configs_reach_user_code: "Configuration" in python_environment::python;
    one_row_is_debugged: "Debugging one row" in python_environment::python;
    tests_pass_offline: "Testing offline" in python_environment::python;
    the_rollout_server_serves: "The rollout server" in python_environment::python;
    a_rollout_server_evaluates: "Evaluating at a rollout server" in python_environment::python;
}

pub(crate) fn guide(python: &Utf8Path, file: &Utf8Path, task: &[&str]) -> Command {
    let mut command = Command::new(python);
    command
        .arg(RUNNER)
        .arg(file)
        .args(task)
        .env("OSMOSIS_BIN", env!("CARGO_BIN_EXE_osmosis"))
        .env("OSMOSIS_CACHE_DIR", crate::workspace::cache_dir())
        .env("XDG_STATE_HOME", crate::workspace::cache_dir())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[track_caller]
pub(crate) fn succeed(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    said
}

#[test]
fn no_section_of_the_guide_is_left_out() {
    let python = python_environment::python();
    let list = guide(&python, Utf8Path::new(GUIDE), &["list"]).output();
    let headings: Vec<String> = serde_json::from_str(&succeed(&list.unwrap())).unwrap();
    let ours: Vec<&str> = SECTIONS.iter().map(|(heading, _)| *heading).collect();
    assert_eq!(headings, ours);
}

#[test]
fn the_guides_python_passes_a_strict_type_checker() {
    for python in [
        python_environment::python,
        python_environment::strands_python,
    ] {
        let python = python();
        let here = SECTIONS.iter().filter(|(_, theirs)| theirs() == python);
        let task: Vec<&str> = std::iter::once("types")
            .chain(here.map(|(heading, _)| *heading))
            .collect();
        let environment = python.ancestors().nth(2).unwrap().file_name().unwrap();
        let cache = crate::workspace::cache_dir().join(format!("types-{environment}"));
        let mut command = guide(&python, Utf8Path::new(GUIDE), &task);
        succeed(&command.env("MYPY_CACHE", cache).output().unwrap());
    }
}

#[test]
fn a_guide_that_is_not_true_fails() {
    let check = |text: &str, complaint: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = Utf8PathBuf::from_path_buf(folder.path().join("guide.md")).unwrap();
        std::fs::write(&file, format!("# Guide\n\n## Part\n\n{text}\n")).unwrap();
        let task = ["run", "Part"];
        let python = python_environment::python();
        let output = guide(&python, &file, &task).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if complaint.is_empty() {
            succeed(&output);
        } else {
            assert!(
                !output.status.success() && said.contains(complaint),
                "{said}"
            );
        }
    };
    let console = |lines: &str| format!("```console\n{lines}\n```");
    let file = "```python title=\"part.py\"\nprint('said')\n```\n\n";
    check(&(file.to_owned() + &console("$ python part.py\nsa…d")), "");
    check(&console("$ exit 3\n(exit code 3)"), "");
    check(&console("$ exit 3"), "exit code 3 instead of 0");
    check(&console("$ echo one\ntwo"), "no line `two`");
    check(&console("$ echo one; echo two\ntwo\none"), "no line `one`");
    check(
        &(file.to_owned() + &console("$ true")),
        "nothing uses `part.py`",
    );
    let broken = file.replace("print", "prints");
    check(&(broken + &console("$ python part.py")), "exit code 1");
    let policy = "```toml title=\"policies/p.toml\"\n```\n\n";
    check(
        &(policy.to_owned() + &console("$ true")),
        "nothing uses `policies/p.toml`",
    );
    check(
        "```python\nprint(1)\n```",
        "nothing runs a block of kind `python`",
    );
    check("```console\n$ true\n", "has no end");
}
