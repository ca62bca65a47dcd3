//! Who may use `osmosis serve`, and whom it asks in turn.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use osmosis_testkit::model_server::Behaviour;
use osmosis_testkit::python_environment;
use serde_json::{Value, json};

use crate::serve::{Facade, Serving, controller, model};
use crate::workspace::{PLAIN, Ran, Workspace};

fn workspace() -> Workspace {
    Workspace::new(PLAIN, "", "")
}

#[test]
fn a_server_that_is_given_no_key_makes_one_and_prints_it() {
    let workspace = workspace();
    let (_runtime, model) = model(Behaviour::Answers);
    let serving = Serving::start_with_key(&workspace, &["--workers", "1"]);
    let key = serving.resource()["api_key"].as_str().unwrap().to_owned();
    assert!(key.starts_with("osm-serve-") && key.len() > 40, "{key}");
    assert_eq!(serving.resource()["needs_key"], true);
    let output = controller("keyed", serving.url(), &model)
        .env("ROLLOUT_KEY", &key)
        .output()
        .unwrap();
    let said = Ran::of(&output).expect(0).json();
    assert_eq!(said["sent"], 202);
    assert_eq!(said["told"]["grader"]["status"], "success");
    let refused = json!({"no key": 401, "text": 415, "page": 403, "name": 421});
    assert_eq!(said["refused"], refused);
    serving.terminate();
    let ran = serving.ended(&workspace).expect(0);
    assert!(!ran.stderr.contains(&key));
    let log = workspace.read(".osmosis/serve/s/logs.txt");
    assert!(!log.contains(&key), "the key is in the log");

    // For people: the address, then the key as a variable.
    let python = python_environment::python();
    let mut child = workspace
        .command(&["serve", "r", "--python", python.as_str(), "--workers", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines
            .next()
            .unwrap()
            .unwrap()
            .starts_with("http://127.0.0.1:")
    );
    let second = lines.next().unwrap().unwrap();
    assert!(
        second.starts_with("OSMOSIS_ROLLOUT_KEY=osm-serve-"),
        "{second}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_server_that_others_reach_needs_a_key_and_asks_nothing_of_its_own_machine() {
    let mut workspace = workspace();
    workspace.variable("SERVER_KEY", "server-key-not-to-be-seen");
    let (_runtime, model) = model(Behaviour::Answers);
    let mut more = vec![
        "--workers",
        "1",
        "--listen",
        "0.0.0.0:0",
        "--api-key-env",
        "SERVER_KEY",
    ];
    let serving = Serving::start(&workspace, &more);
    assert_eq!(serving.resource()["api_key"], Value::Null, "it was given");
    let run = |scenario: &str, url: &str| {
        let mut command = controller(scenario, url, &model);
        command.env("ROLLOUT_KEY", "server-key-not-to-be-seen");
        Ran::of(&command.output().unwrap()).expect(0).json()
    };
    let said = run("sent", serving.url());
    assert_eq!(said["status"], 422);
    assert!(
        said["text"].as_str().unwrap().contains("--allow-url"),
        "{said}"
    );
    serving.terminate();
    serving.ended(&workspace).expect(0);

    let url = model.url().to_owned();
    more.extend(["--allow-url", &url, "--allow-url", "http://127.0.0.1"]);
    // The receiver's port is not known yet, and a prefix has one.
    let serving = Serving::start(&workspace, &more);
    let said = run("sent", serving.url());
    assert_eq!(said["status"], 422);
    let text = said["text"].as_str().unwrap();
    assert!(!text.contains("chat_completions_url"), "{text}");
    assert!(text.contains("completion_callback_url"), "{text}");
    serving.terminate();
    serving.ended(&workspace).expect(0);
}

#[test]
fn the_facade_asks_for_a_key_where_one_is_set() {
    let workspace = workspace();
    let (_runtime, model) = model(Behaviour::Answers);
    let facade = Facade::start_keyed(
        &workspace,
        PLAIN,
        "workflow=Plain, grader=Exact",
        "facade-key-not-to-be-seen",
    );
    let output = controller("keyed", &facade.url, &model)
        .env("ROLLOUT_KEY", "facade-key-not-to-be-seen")
        .output()
        .unwrap();
    let said = Ran::of(&output).expect(0).json();
    assert_eq!(said["sent"], 202);
    assert_eq!(said["told"]["grader"]["status"], "success");
    // With a key, it may be called by any name.
    let refused = json!({"no key": 401, "text": 415, "page": 403, "name": 202});
    assert_eq!(said["refused"], refused);
    facade.end();
}
