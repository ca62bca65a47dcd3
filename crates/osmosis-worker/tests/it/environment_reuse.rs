use osmosis_testkit::waiting::until;
use osmosis_worker::environment::{self, EnvironmentError, EnvironmentErrorKind, EnvironmentEvent};

use crate::fake_machine::FakeMachine;
use crate::harness::{LONG, gone};

fn machine() -> FakeMachine {
    let machine = FakeMachine::new();
    machine.python("bin/python3", "3.12.1");
    machine.depend_on("'numpy'");
    machine
}

const READY_AGAIN: [EnvironmentEvent; 1] = [EnvironmentEvent::Ready { reused: true }];

#[tokio::test]
async fn an_environment_is_made_once_and_then_reused_without_starting_anything() {
    let machine = machine();
    let (first, events) = machine.prepare().await.unwrap();
    let folder = machine.rollout.join(".venv");
    assert_eq!(first.python, folder.join("bin/python"));
    assert!(
        matches!(&events[0], EnvironmentEvent::Creating { tool: "pip", path } if *path == folder)
    );
    assert!(
        matches!(&events[1], EnvironmentEvent::Installing { packages } if packages.contains(&"numpy".to_owned())
            && packages.iter().any(|package| package.starts_with("pydantic")))
    );
    assert_eq!(
        events[2],
        EnvironmentEvent::OutputLine {
            line: "Installed".to_owned()
        }
    );
    assert_eq!(events[3], EnvironmentEvent::Ready { reused: false });
    assert!(!machine.started().is_empty());

    let (second, events) = machine.prepare().await.unwrap();
    assert_eq!(events, READY_AGAIN);
    assert_eq!(second, first);
    assert_eq!(machine.started(), [""; 0]);
}

#[tokio::test]
async fn the_sdk_is_on_the_import_path_of_the_environment() {
    let machine = machine();
    let (prepared, _) = machine.prepare().await.unwrap();
    let link = machine
        .rollout
        .join(".venv/lib/python3/site-packages/osmosis_ai.pth");
    let expected = format!("{}\n", prepared.sdk_path);
    assert_eq!(std::fs::read_to_string(&link).unwrap(), expected);
    assert!(
        prepared
            .sdk_path
            .join("osmosis_ai/worker/__main__.py")
            .exists()
    );

    // Another SDK needs no other environment.
    std::fs::write(&link, "/an/older/sdk\n").unwrap();
    let (_, events) = machine.prepare().await.unwrap();
    assert_eq!(events, READY_AGAIN);
    assert_eq!(std::fs::read_to_string(&link).unwrap(), expected);
}

#[tokio::test]
async fn other_dependencies_make_another_environment() {
    let machine = machine();
    let (first, _) = machine.prepare().await.unwrap();
    let left_over = machine.rollout.join(".venv/left-over");
    std::fs::write(&left_over, "").unwrap();
    machine.depend_on("'numpy', 'scipy'");
    let (second, events) = machine.prepare().await.unwrap();
    assert_eq!(
        events.last(),
        Some(&EnvironmentEvent::Ready { reused: false })
    );
    assert_ne!(second.digest, first.digest);
    assert!(!left_over.exists());
}

#[tokio::test]
async fn the_order_of_dependencies_makes_no_difference() {
    let machine = machine();
    machine.depend_on("'a', 'b'");
    machine.prepare().await.unwrap();
    machine.depend_on("'b', 'a'");
    assert_eq!(machine.prepare().await.unwrap().1, READY_AGAIN);
}

#[tokio::test]
async fn an_interpreter_that_was_replaced_makes_another_environment() {
    let machine = machine();
    machine.prepare().await.unwrap();
    machine.python("bin/python3", "3.13.10");
    let (_, events) = machine.prepare().await.unwrap();
    assert_eq!(
        events.last(),
        Some(&EnvironmentEvent::Ready { reused: false })
    );
}

#[tokio::test]
async fn the_interpreter_that_was_asked_for_is_run_as_it_is_and_nothing_is_made() {
    let machine = machine();
    machine.prepare().await.unwrap();
    let kept = machine.rollout.join(".venv/kept");
    std::fs::write(&kept, "").unwrap();
    let other = machine.python("bin/python3.11", "3.11.1");
    machine.started();
    let (prepared, events) = machine.prepare_with(Some(&other)).await.unwrap();
    assert_eq!(prepared.python, other);
    assert_eq!(events, READY_AGAIN);
    assert!(kept.exists());
    let started = machine.started();
    assert!(
        started.iter().all(|line| line.starts_with("python3.11 -c")),
        "it was only asked what it is: {started:?}"
    );
    let note = prepared.notes.last().unwrap();
    assert!(note.contains("is used as it is"), "{note}");

    // The environment is still what a run without `--python` uses.
    let (prepared, events) = machine.prepare().await.unwrap();
    assert_eq!(prepared.python, machine.rollout.join(".venv/bin/python"));
    assert_eq!(events, READY_AGAIN);
}

#[tokio::test]
async fn an_interpreter_that_was_asked_for_and_lacks_packages_is_told_with_both_ways_out() {
    let machine = machine();
    let bare = machine.python_lacking("bin/python3.11", "3.11.1", "msgpack");
    let error = machine.prepare_with(Some(&bare)).await.unwrap_err();
    assert!(error.to_string().ends_with("lacks `msgpack`"), "{error}");
    let hint = error.hint().unwrap();
    assert!(
        hint.contains("pip install msgpack") && hint.contains("leave out `--python`"),
        "{hint}"
    );
    assert!(!machine.rollout.join(".venv").exists());
}

#[tokio::test]
async fn inspecting_tells_what_preparing_would_do_and_writes_nothing() {
    use osmosis_worker::environment::EnvironmentState;
    let machine = machine();
    let inspect = async || {
        environment::inspect_in(&machine.surroundings, &machine.rollout, None)
            .await
            .unwrap()
    };
    let EnvironmentState::ToMake {
        folder,
        reason,
        version,
        tool,
        packages,
        ..
    } = inspect().await
    else {
        panic!("there is nothing yet")
    };
    assert_eq!(folder, machine.rollout.join(".venv"));
    assert_eq!(
        (reason, &*version, tool),
        ("is not there yet", "3.12.1", "pip")
    );
    assert!(packages.contains(&"numpy".to_owned()), "{packages:?}");
    assert!(!folder.exists() && !machine.path("cache").exists());

    machine.prepare().await.unwrap();
    let EnvironmentState::Ready { python, .. } = inspect().await else {
        panic!("it was made")
    };
    assert_eq!(python, folder.join("bin/python"));

    machine.depend_on("'numpy', 'scipy'");
    let EnvironmentState::ToMake { reason, .. } = inspect().await else {
        panic!("it does not fit any more")
    };
    assert!(reason.contains("other dependencies"), "{reason}");
}

#[tokio::test]
async fn a_half_made_environment_is_made_again() {
    let machine = machine();
    machine.depend_on("'broken'");
    machine.prepare().await.unwrap_err();
    machine.depend_on("'numpy'");
    let (_, events) = machine.prepare().await.unwrap();
    assert_eq!(
        events.last(),
        Some(&EnvironmentEvent::Ready { reused: false })
    );
}

#[tokio::test]
async fn a_package_that_can_not_be_installed_is_told_with_command_lines_and_remedy() {
    let machine = machine();
    machine.depend_on("'broken>=1'");
    let error = machine.prepare().await.unwrap_err();
    assert_eq!(error.kind(), EnvironmentErrorKind::Install);
    let EnvironmentError::Tool {
        command, output, ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(
        command.contains("-m pip install") && command.contains("'broken>=1'"),
        "{command}"
    );
    assert_eq!(
        output,
        &["ERROR: No matching distribution found for broken"]
    );
    assert!(error.hint().unwrap().contains("pyproject.toml"));
}

#[tokio::test]
async fn uv_is_used_when_it_is_there() {
    let machine = machine();
    machine.uv();
    let (_, events) = machine.prepare().await.unwrap();
    assert!(matches!(
        events[0],
        EnvironmentEvent::Creating { tool: "uv", .. }
    ));
    let started = machine.started();
    assert!(
        started
            .iter()
            .any(|line| line.starts_with("uv pip install --python")),
        "{started:?}"
    );
}

#[tokio::test]
async fn an_environment_of_the_users_own_is_used_as_it_is() {
    let machine = machine();
    let own = machine.python("rollouts/multiply/.venv/bin/python", "3.11.1");
    let (prepared, events) = machine.prepare().await.unwrap();
    assert_eq!(prepared.python, own);
    assert_eq!(events, READY_AGAIN);
    assert!(prepared.notes[0].contains("used as it is"));
    let entries: Vec<_> = std::fs::read_dir(machine.rollout.join(".venv"))
        .unwrap()
        .collect();
    assert_eq!(entries.len(), 1, "nothing was added: {entries:?}");

    let other = machine.path("bin/python3");
    let (prepared, _) = machine.prepare_with(Some(&other)).await.unwrap();
    assert_eq!(prepared.python, other);
    assert!(own.exists());
}

#[tokio::test]
async fn an_environment_of_the_users_own_must_hold_the_essential_packages() {
    let machine = machine();
    machine.python_lacking("rollouts/multiply/.venv/bin/python", "3.11.1", "pydantic");
    let error = machine.prepare().await.unwrap_err();
    let hint = error.hint().unwrap();
    assert!(
        hint.contains("pip install pydantic") && hint.contains("remove"),
        "{hint}"
    );
}

#[tokio::test]
async fn the_sdk_is_replaced_by_its_packages_with_a_note() {
    let machine = machine();
    machine.depend_on("'osmosis-ai[openai-agents,server]==0.3.8'");
    let (prepared, events) = machine.prepare().await.unwrap();
    let EnvironmentEvent::Installing { packages } = &events[1] else {
        panic!("{events:?}")
    };
    let has = |name: &str| packages.iter().any(|package| package.starts_with(name));
    assert!(has("openai-agents") && has("uvicorn"), "{packages:?}");
    assert!(!has("osmosis"), "{packages:?}");
    let replaced = prepared.notes.iter().any(|note| note.contains("replaced"));
    assert!(replaced, "{:?}", prepared.notes);
}

#[tokio::test]
async fn two_at_once_make_the_environment_once() {
    let machine = machine();
    let (one, other) = tokio::join!(machine.prepare(), machine.prepare());
    let installs = machine
        .started()
        .iter()
        .filter(|line| line.contains("pip install"))
        .count();
    assert_eq!(installs, 1);
    assert_eq!(one.unwrap().0, other.unwrap().0);
}

#[tokio::test]
async fn losing_interest_ends_the_installation() {
    let machine = machine();
    machine.depend_on("'hang'");
    let pid_file = machine.path("pid");
    let pid = || -> Option<u32> {
        let text = std::fs::read_to_string(&pid_file).ok()?;
        text.trim().parse().ok()
    };
    let installing = until("it installs", LONG, || pid().is_some());
    let prepare = environment::prepare_in(&machine.surroundings, &machine.rollout, None, |_| {});
    tokio::select! {
        prepared = prepare => panic!("it hangs: {prepared:?}"),
        () = installing => {}
    }
    gone(pid().unwrap()).await;
}

#[tokio::test]
async fn a_worker_is_launched_in_the_environment_and_the_rollouts_folder() {
    let machine = machine();
    let (prepared, _) = machine.prepare().await.unwrap();
    let launch = prepared.launch(&machine.rollout, vec![("A".to_owned(), "1".to_owned())]);
    assert_eq!(launch.program, machine.rollout.join(".venv/bin/python"));
    assert_eq!(launch.working_directory, machine.rollout);
    assert!(launch.arguments[0].ends_with("osmosis_ai/worker/__main__.py"));
    let value = |name: &str| {
        let found = launch.environment.iter().rfind(|(key, _)| key == name);
        found.map(|(_, value)| value.clone()).unwrap()
    };
    assert_eq!(value("A"), "1");
    assert_eq!(value("VIRTUAL_ENV"), machine.rollout.join(".venv"));
    assert!(value("PATH").starts_with(machine.rollout.join(".venv/bin").as_str()));
}
