//! Runs whose records are in PostgreSQL: the same commands, the same numbers.

use osmosis_testkit::postgres_server::PostgresServer;
use osmosis_testkit::python_environment;
use serde_json::Value;

use crate::gateway_command::Serving;
use crate::view::Viewing;
use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// The numbers of a report that do not depend on when and where it was made.
fn numbers(report: &Value) -> Value {
    let keys = [
        "outcomes",
        "pass_rate",
        "pass_at_k",
        "model_calls",
        "prompt_tokens",
        "completion_tokens",
    ];
    keys.map(|key| report[key].clone()).to_vec().into()
}

/// Exported lines without times.
fn exported(workspace: &Workspace, more: &[&str]) -> String {
    let arguments = [&["export", "t", "--format", "jsonl", "--output", "-"], more].concat();
    workspace.osmosis(&arguments).expect(0).stdout
}

#[test]
fn an_evaluation_in_a_database_is_submitted_resumed_regraded_shown_and_copied() {
    let server = PostgresServer::start();
    let url = server.url_as("postgres:s3cret", "postgres");
    let mut workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(6));
    let in_folder = workspace.submit_json(&[]);
    workspace
        .osmosis(&["run", "rename", "t", "plain"])
        .expect(0);

    workspace.variable("OSMOSIS_STORE", &url);
    let report = workspace.submit_json(&[]);
    assert_eq!(numbers(&report), numbers(&in_folder));
    let folder = workspace.run_folder("t");
    assert!(folder.join("metrics.json").exists() && folder.join("logs.txt").exists());
    assert!(
        !folder.join("run.db").exists(),
        "the records are in the database"
    );

    // The database's runs are listed, and not those of the folder.
    let listed = workspace
        .osmosis(&["eval", "list", "--json"])
        .expect(0)
        .json();
    let names: Vec<&str> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["run_name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["t"]);
    let info = workspace
        .osmosis(&["eval", "info", "t", "--json"])
        .expect(0)
        .json();
    assert_eq!(numbers(&info["data"]), numbers(&report));
    let shown = workspace
        .osmosis(&["eval", "show", "t", "2", "--json"])
        .expect(0)
        .json();
    assert!(shown.to_string().contains("say 2"), "{shown}");
    let python = python_environment::python();
    workspace
        .osmosis(&["eval", "resume", "t", "--python", python.as_str()])
        .expect(0);
    workspace
        .osmosis(&[
            "eval",
            "regrade",
            "t",
            "--name",
            "again",
            "--python",
            python.as_str(),
        ])
        .expect(0);
    workspace
        .osmosis(&["eval", "compare", "t", "again"])
        .expect(0);
    let stopped = workspace.osmosis(&["eval", "stop", "t"]);
    assert!(stopped.stdout.contains("finished") || stopped.stderr.contains("finished"));
    workspace.osmosis(&["run", "verify", "t"]).expect(0);

    // There and back: what is exported is the same.
    let other = tempfile::tempdir().unwrap();
    let target = other.path().canonicalize().unwrap();
    std::fs::create_dir(target.join("rollouts")).unwrap();
    let target = target.to_str().unwrap();
    let copied = workspace
        .osmosis(&["run", "copy", "t", "--to", target, "--json"])
        .expect(0)
        .json();
    assert_eq!(copied["resource"]["results"], 6);
    assert_eq!(copied["resource"]["calls"], 6);
    let there = exported(&workspace, &[]);
    workspace.variable("OSMOSIS_STORE", "");
    let back = exported(&workspace, &["--workspace", target]);
    assert_eq!(there, back);
    let again = workspace
        .osmosis(&["run", "copy", "plain", "--to", &url, "--json"])
        .expect(0);
    let to = again.json()["resource"]["to"].as_str().unwrap().to_owned();
    assert!(
        to.contains("#evaluation/plain") && !to.contains("s3cret"),
        "{to}"
    );

    // By the option, too.
    let removed = ["run", "rm", "plain", "--yes", "--store", &url];
    workspace.osmosis(&removed).expect(0);
    assert!(
        workspace.run_folder("plain").join("run.db").exists(),
        "the workspace's own run stays"
    );
    workspace
        .osmosis(&["run", "archive", "t", "--store", &url])
        .expect(0);
    assert!(!folder.exists(), "the files went with the records");
}

#[test]
fn a_store_that_is_none_is_named_without_its_password() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    let store = "mysql://ada:s3cret@h/db";
    let ran = workspace
        .osmosis(&["eval", "list", "--store", store, "--json"])
        .expect(2);
    let told = format!("{}{}", ran.stdout, ran.stderr);
    assert!(told.contains("postgres://HOST/DATABASE"), "{told}");
    assert!(!told.contains("s3cret"), "{told}");
}

/// A plain client of the gateway.
const CLIENT: &str = r#"
import json, os, urllib.request
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "m", "messages": [{"role": "user", "content": "say 7"}]}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
print(json.dumps(json.load(urllib.request.urlopen(request))["choices"][0]["message"]))
"#;

#[test]
fn runs_in_a_database_are_viewed_and_gateways_record_there() {
    let server = PostgresServer::start();
    let mut workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(4));
    workspace.variable("OSMOSIS_STORE", &server.url());
    workspace.submit(&[]).expect(0);

    let viewing = Viewing::start(&workspace);
    let runs = viewing.json("/api/v1/runs");
    assert!(runs.to_string().contains("\"t\""), "{runs}");
    let page = viewing.json("/api/v1/runs/t");
    assert!(page.to_string().contains("scored"), "{page}");
    let rollout = viewing.json("/api/v1/runs/t/rollouts/3.0");
    assert!(rollout.to_string().contains("say 3"), "{rollout}");
    assert_eq!(viewing.stop(), Some(0));
    let site = workspace.root.join("site");
    workspace
        .osmosis(&["view", "t", "--export", site.as_str()])
        .expect(0);
    assert!(site.join("index.html").exists());

    let model = ["--model", "script:policies/p.toml", "--name", "g"];
    for calls in 1..=2 {
        let serving = Serving::start(&workspace, &model);
        assert_eq!(serving.client(CLIENT)["content"], "7");
        serving.stop().expect(0);
        let verified = workspace
            .osmosis(&["run", "verify", "serve/g", "--json"])
            .expect(0)
            .json();
        assert_eq!(
            verified["resource"]["checked"]["calls"], calls,
            "{verified}"
        );
    }
    assert!(!workspace.root.join(".osmosis/serve/g/run.db").exists());
}
