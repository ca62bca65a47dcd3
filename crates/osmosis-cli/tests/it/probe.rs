//! A bad key, model or address ends a run before its first rollout.

use osmosis_testkit::model_server::{Behaviour, ModelServer};

use crate::workspace::{PLAIN, Ran, Workspace, product_rows};

const KEY: &str = "sk-not-to-be-seen";

struct Case {
    _runtime: tokio::runtime::Runtime,
    server: ModelServer,
    workspace: Workspace,
}

fn case(behaviour: Behaviour) -> Case {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(ModelServer::start(behaviour)).unwrap();
    let mut workspace = Workspace::new(PLAIN, "", &product_rows(2));
    workspace.model("some-model", "");
    workspace.variable("OPENAI_BASE_URL", server.url());
    workspace.variable("OPENAI_API_KEY", KEY);
    Case {
        _runtime: runtime,
        server,
        workspace,
    }
}

fn hint_of(ran: &Ran) -> String {
    ran.error()["details"]["hint"].as_str().unwrap().to_owned()
}

#[test]
fn a_bad_key_model_or_address_is_told_once_before_any_rollout() {
    for (behaviour, code, hint) in [
        (
            Behaviour::Refuses { status: 401 },
            "model_key_refused",
            "OPENAI_API_KEY",
        ),
        (
            Behaviour::Refuses { status: 404 },
            "model_unreachable",
            "OPENAI_BASE_URL",
        ),
        (Behaviour::Down, "model_unreachable", "OPENAI_BASE_URL"),
        (
            Behaviour::Garbage("<html>hello</html>"),
            "model_unreachable",
            "OPENAI_BASE_URL",
        ),
    ] {
        for more in [&["--json"][..], &["--json", "--dry-run"]] {
            let case = case(behaviour.clone());
            let ran = case.workspace.submit(more).expect(1);
            assert_eq!(ran.error()["code"], code, "{}", ran.stderr);
            assert!(hint_of(&ran).contains(hint), "{}", ran.stderr);
            assert!(!ran.stderr.contains(KEY) && !ran.stdout.contains(KEY));
            assert!(case.server.requests().len() <= 1);
            assert!(!case.workspace.run_folder("t").exists(), "a run was begun");
        }
    }
}

#[test]
fn a_server_that_is_only_overloaded_is_warned_of_and_used() {
    let overloaded = Behaviour::RefusesFirst {
        times: 1,
        status: 429,
        retry_after: None,
    };
    let case = case(overloaded);
    let ran = case.workspace.submit(&[]).expect(0);
    assert!(
        ran.stderr.contains("the server of model_path may not work"),
        "{}",
        ran.stderr
    );
    assert_eq!(case.workspace.outcomes(), ["scored"; 2]);
    // One for the probe and one for each row.
    assert_eq!(case.server.requests().len(), 3);
    let again = case.workspace.submit(&[]).expect(0);
    assert_eq!(case.server.requests().len(), 3, "{}", again.stderr);
}

#[test]
fn a_dry_run_says_whether_the_model_server_works() {
    let case = case(Behaviour::Answers);
    let found = case.workspace.submit_json(&["--dry-run"]);
    assert_eq!(found["model_server"], "works");
    let unasked = case.workspace.submit_json(&["--dry-run", "--no-probe"]);
    assert_eq!(unasked["model_server"], "not_asked");
    case.workspace.config("");
    case.workspace
        .write("policies/p.toml", "[[reply]]\ntext = \"hi\"\n");
    let scripted = case.workspace.submit_json(&["--dry-run"]);
    assert_eq!(scripted["model_server"], "not_asked");
    assert_eq!(case.server.requests().len(), 1);
}
