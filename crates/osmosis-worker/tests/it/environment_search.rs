use camino::Utf8Path;
use osmosis_worker::environment::{EnvironmentError, EnvironmentErrorKind};

use crate::fake_machine::FakeMachine;

#[tokio::test]
async fn the_first_interpreter_in_path_that_fits_is_taken() {
    let machine = FakeMachine::new();
    machine.python("bin/python3", "3.9.2");
    machine.program(
        "bin/python",
        "#!/bin/sh\necho 'pyenv: no such version' >&2\nexit 127\n",
    );
    let expected = machine.python("bin/python3.12", "3.12.1");
    machine.python("bin/python3.11", "3.11.1");
    let (prepared, _) = machine.prepare().await.unwrap();
    assert_eq!(prepared.python, expected);
}

#[tokio::test]
async fn an_active_environment_comes_before_path_and_the_rollouts_own_before_both() {
    let mut machine = FakeMachine::new();
    machine.python("bin/python3", "3.12.1");
    let active = machine.python("active/bin/python", "3.12.1");
    machine.surroundings.virtual_env = Some(machine.path("active"));
    assert_eq!(machine.prepare().await.unwrap().0.python, active);
    let own = machine.python("rollouts/multiply/.venv/bin/python", "3.12.1");
    assert_eq!(machine.prepare().await.unwrap().0.python, own);
}

#[tokio::test]
async fn the_rollouts_own_range_counts() {
    let machine = FakeMachine::new();
    machine.pyproject("[project]\nrequires-python = '>=3.12'\n");
    machine.python("bin/python3", "3.11.9");
    let fits = machine.python("bin/python3.12", "3.12.3");
    let (prepared, _) = machine.prepare().await.unwrap();
    assert_eq!(
        prepared.python.canonicalize_utf8().unwrap(),
        fits.canonicalize_utf8().unwrap()
    );
}

#[tokio::test]
async fn without_any_that_fits_each_candidate_is_told_with_the_reason() {
    let machine = FakeMachine::new();
    machine.python("bin/python3", "3.9.2");
    machine.program(
        "bin/python",
        "#!/bin/sh\necho 'pyenv: no such version' >&2\nexit 127\n",
    );
    machine.program("bin/python3.13", "#!/bin/sh\necho hello\n");
    machine.python("bin/python3.12", "3.14.0");
    let error = machine.prepare().await.unwrap_err();
    assert_eq!(error.kind(), EnvironmentErrorKind::Interpreter);
    let message = error
        .to_string()
        .replace(machine.path("bin").as_str(), "BIN");
    assert_eq!(
        message,
        "no python interpreter that satisfies `>=3.10, <3.14`:\n  \
         `BIN/python3` is python 3.9.2\n  \
         `BIN/python` failed (exit status: 127): pyenv: no such version\n  \
         `BIN/python3.13` did not answer like a python interpreter\n  \
         `BIN/python3.12` is python 3.14.0"
    );
    assert!(error.hint().unwrap().contains("--python"));
}

#[tokio::test]
async fn a_machine_without_python_says_so() {
    let error = FakeMachine::new().prepare().await.unwrap_err();
    assert!(
        error.to_string().contains("nothing was found in `PATH`"),
        "{error}"
    );
}

#[tokio::test]
async fn the_interpreter_that_was_asked_for_is_the_only_candidate() {
    let machine = FakeMachine::new();
    machine.python("bin/python3", "3.12.1");
    let asked_for = machine.python("elsewhere/python", "3.11.1");
    let (prepared, _) = machine.prepare_with(Some(&asked_for)).await.unwrap();
    assert_eq!(prepared.python, asked_for);

    let by_name = machine.prepare_with(Some(Utf8Path::new("python3"))).await;
    assert_eq!(by_name.unwrap().0.python, machine.path("bin/python3"));

    let missing = machine.path("nowhere/python");
    let error = machine.prepare_with(Some(&missing)).await.unwrap_err();
    let EnvironmentError::NoInterpreter { passed_over, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(passed_over.len(), 1);
    assert_eq!(passed_over[0].path, missing);
    assert_eq!(passed_over[0].reason, "does not exist");
}

#[tokio::test]
async fn without_a_project_the_essential_packages_must_be_there() {
    let machine = FakeMachine::new();
    machine.python_lacking("bin/python3", "3.12.1", "msgpack");
    let error = machine.prepare().await.unwrap_err();
    assert!(error.to_string().ends_with("lacks `msgpack`"), "{error}");
    let file = machine.rollout.join("pyproject.toml");
    let python = machine.path("bin/python3");
    let expected = |dependency: &str| {
        format!(
            "create `{file}` with these two lines, and osmosis makes the project's environment:\n  \
             [project]\n  dependencies = [\"{dependency}\"]\nor run `{python} -m pip install msgpack`"
        )
    };
    assert_eq!(error.hint().unwrap(), expected("osmosis-rs"));

    let import = "from osmosis_ai.rollout.integrations.agents.strands import OsmosisStrandsAgent\n";
    std::fs::write(machine.rollout.join("main.py"), import).unwrap();
    let error = machine.prepare().await.unwrap_err();
    assert_eq!(error.hint().unwrap(), expected("osmosis-rs[strands]"));

    // These lines are enough.
    machine.depend_on("'osmosis-rs[strands]'");
    machine.prepare().await.unwrap();
}

#[tokio::test]
async fn a_version_requirement_is_told_once() {
    let machine = FakeMachine::new();
    machine.pyproject("[project]\nrequires-python = '>=3.10'\n");
    let error = machine.prepare().await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("no python interpreter that satisfies `>=3.10, <3.14`:"),
        "{error}"
    );
}

#[tokio::test]
async fn a_broken_project_file_is_told_with_its_problems() {
    let machine = FakeMachine::new();
    machine.python("bin/python3", "3.12.1");
    machine.depend_on("'not a requirement!', 3");
    let error = machine.prepare().await.unwrap_err();
    assert_eq!(error.kind(), EnvironmentErrorKind::Project);
    assert!(
        error.to_string().contains("`not a requirement!`"),
        "{error}"
    );
}
