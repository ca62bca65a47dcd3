use std::time::Duration;

use osmosis_testkit::model_server::{Behaviour, ModelServer};

use crate::workspace::{AGENT, Ran, Workspace, product_rows};

const KEY: &str = "sk-not-to-be-seen";

/// Runs the multiply agent against a model behind `OPENAI_BASE_URL` that behaves like this.
fn submit(behaviour: Behaviour, rows: u64, main: &str) -> (Ran, Workspace, usize) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(ModelServer::start(behaviour)).unwrap();
    let mut workspace = Workspace::new(main, "", &product_rows(rows));
    workspace.model(
        "some-model",
        "[evaluation]\nagent_workflow_timeout_s = 60\n",
    );
    workspace.variable("OPENAI_BASE_URL", server.url());
    workspace.variable("OPENAI_API_KEY", KEY);
    let ran = workspace.submit(&["--no-probe"]);
    let calls = server.requests().len();
    for request in server.requests() {
        assert_eq!(request.headers["authorization"], format!("Bearer {KEY}"));
        assert_eq!(request.body["model"], "some-model");
        assert!(request.headers.contains_key("x-rollout-id"));
        assert_eq!(request.headers["x-sample-id"], "calc");
    }
    for file in ["logs.txt", "index.jsonl", "run.db"] {
        let bytes = std::fs::read(workspace.run_folder("t").join(file)).unwrap();
        assert!(
            !String::from_utf8_lossy(&bytes).contains(KEY),
            "the key is in {file}"
        );
    }
    assert!(!ran.stderr.contains(KEY) && !ran.stdout.contains(KEY));
    (ran, workspace, calls)
}

#[track_caller]
fn check_infrastructure_failed(behaviour: Behaviour, message: &str) {
    let (ran, workspace, _) = submit(behaviour, 1, AGENT);
    let ran = ran.expect(3);
    assert_eq!(workspace.outcomes(), ["infrastructure_failed"]);
    let line = &workspace.index()[0];
    assert_eq!(line["reward"], serde_json::Value::Null);
    let error = line["error"].as_str().unwrap();
    assert!(error.contains(message), "no `{message}` in `{error}`");
    assert!(
        ran.stdout.contains("none: no rollout ran"),
        "{}",
        ran.stdout
    );
}

#[test]
fn the_same_agent_works_against_a_model_behind_a_url() {
    let (ran, workspace, calls) = submit(Behaviour::Answers, 4, AGENT);
    ran.expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 4]);
    assert!(workspace.index().iter().all(|line| line["reward"] == 1.0));
    assert_eq!(calls, 8);
}

#[test]
fn a_streaming_agent_is_recorded_with_its_usage() {
    let main = AGENT.replace(
        "await Runner.run(agent, ctx.prompt, session=session)",
        "result = Runner.run_streamed(agent, ctx.prompt, session=session)\n        \
         async for _ in result.stream_events(): pass",
    );
    let (ran, workspace, calls) = submit(Behaviour::Answers, 2, &main);
    ran.expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 2]);
    assert_eq!(calls, 4);
    let line = &workspace.index()[0];
    assert!(line["prompt_tokens"].as_u64().unwrap() > 0, "{line}");
    let show = workspace
        .osmosis(&["eval", "show", "t", "0", "--json"])
        .expect(0)
        .json();
    assert_eq!(show["data"][0]["calls"][0]["streamed"], true);
}

#[test]
fn a_short_outage_is_ridden_out_and_costs_nobody_anything() {
    for status in [429, 500, 503] {
        let behaviour = Behaviour::RefusesFirst {
            times: 2,
            status,
            retry_after: None,
        };
        let (ran, workspace, _) = submit(behaviour, 1, AGENT);
        ran.expect(0);
        assert_eq!(workspace.outcomes(), ["scored"]);
    }
}

#[test]
fn an_upstream_that_is_down_is_an_infrastructure_failure() {
    check_infrastructure_failed(Behaviour::Down, "upstream_unreachable");
}

#[test]
fn garbage_from_the_upstream_is_an_infrastructure_failure() {
    check_infrastructure_failed(Behaviour::Garbage("<html>oops</html>"), "upstream_garbage");
}

#[test]
fn a_reply_that_is_cut_is_an_infrastructure_failure() {
    check_infrastructure_failed(Behaviour::CutsShort, "upstream_cut_short");
}

#[test]
fn a_wrong_key_is_told_once_and_not_tried_again() {
    let (ran, workspace, calls) = submit(Behaviour::Refuses { status: 401 }, 1, AGENT);
    ran.expect(3);
    assert_eq!(workspace.outcomes(), ["infrastructure_failed"]);
    assert_eq!(calls, 1);
}

#[test]
fn a_request_the_upstream_refuses_is_the_agents_failure() {
    let (ran, workspace, calls) = submit(Behaviour::Refuses { status: 400 }, 1, AGENT);
    ran.expect(0);
    assert_eq!(workspace.outcomes(), ["agent_failed"]);
    assert_eq!(calls, 1);
}

#[test]
fn a_slow_upstream_runs_into_the_agents_deadline() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let slow = Behaviour::SlowFirstByte(Duration::from_hours(1));
    let server = runtime.block_on(ModelServer::start(slow)).unwrap();
    let mut workspace = Workspace::new(AGENT, "", &product_rows(2));
    workspace.model("some-model", "[evaluation]\nagent_workflow_timeout_s = 2\n");
    workspace.variable("OPENAI_BASE_URL", server.url());
    workspace.submit(&["--no-probe"]).expect(0);
    assert_eq!(workspace.outcomes(), ["timed_out"; 2]);
}
