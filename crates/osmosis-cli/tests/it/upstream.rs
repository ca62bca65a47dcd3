use std::time::Duration;

use osmosis_testkit::model_server::{Behaviour, Gate, ModelServer};

use crate::workspace::{AGENT, PLAIN, Ran, Workspace, product_rows};

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

/// Runs an agent without a framework, with these lines in `[evaluation]`.
fn plain(behaviour: Behaviour, rows: u64, main: &str, evaluation: &str) -> (Ran, Workspace) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(ModelServer::start(behaviour)).unwrap();
    let mut workspace = Workspace::new(main, "", &product_rows(rows));
    workspace.model("some-model", &format!("[evaluation]\n{evaluation}\n"));
    workspace.variable("OPENAI_BASE_URL", server.url());
    let ran = workspace.submit(&["--no-probe"]);
    (ran, workspace)
}

/// The plain agent, which makes an answer of what goes wrong.
fn catching() -> String {
    let exact = PLAIN.replace(
        "[\"content\"].split()",
        "[\"content\"].rstrip(\".\").split()",
    );
    exact.replace(
        "return [*ctx.prompt, await ask(ctx.prompt)]",
        "try:\n            return [*ctx.prompt, await ask(ctx.prompt)]\n        \
         except Exception as error:\n            \
         return [*ctx.prompt, {\"role\": \"assistant\", \"content\": f\"sorry: {error}\"}]",
    )
}

#[track_caller]
fn check_not_the_agents(ran: Ran, workspace: &Workspace, parts: &[&str]) {
    ran.expect(3);
    assert_eq!(workspace.outcomes(), ["infrastructure_failed"]);
    let line = &workspace.index()[0];
    assert_eq!(line["reward"], serde_json::Value::Null);
    let error = line["error"].as_str().unwrap();
    for part in parts {
        assert!(error.contains(part), "no `{part}` in `{error}`");
    }
}

#[test]
fn an_agent_that_catches_what_its_model_calls_raise_is_not_graded() {
    for (behaviour, part) in [
        (Behaviour::Refuses { status: 401 }, "status 401"),
        (Behaviour::Garbage("<html>oops</html>"), "upstream_garbage"),
        (Behaviour::CutsShort, "upstream_cut_short"),
    ] {
        let (ran, workspace) = plain(behaviour, 1, &catching(), "");
        check_not_the_agents(ran, &workspace, &[part]);
    }
}

#[test]
fn an_agent_that_declares_to_handle_model_errors_is_graded_by_what_it_made_of_them() {
    let unauthorized = Behaviour::Refuses { status: 401 };
    let declared = "model_errors = \"agent\"";
    let (ran, workspace) = plain(unauthorized.clone(), 1, &catching(), declared);
    ran.expect(0);
    assert_eq!(workspace.outcomes(), ["scored"]);
    assert_eq!(workspace.index()[0]["reward"], 0.0);
    let (ran, workspace) = plain(unauthorized, 1, PLAIN, declared);
    ran.expect(0);
    assert_eq!(workspace.outcomes(), ["agent_failed"]);
}

#[test]
fn an_agent_whose_client_gives_up_on_a_silent_upstream_has_not_failed() {
    let impatient = PLAIN.replace("timeout=60", "timeout=0.5");
    let silent = Behaviour::Held(Gate::default());
    let (ran, workspace) = plain(silent, 1, &impatient, "");
    let parts = ["upstream_timed_out", "http://127.0.0.1:", "sent no answer"];
    check_not_the_agents(ran, &workspace, &parts);
}

#[test]
fn an_upstream_that_never_answers_is_known_before_the_agents_deadline() {
    for main in [PLAIN.to_owned(), catching()] {
        let silent = Behaviour::Held(Gate::default());
        let limit = "agent_workflow_timeout_s = 3";
        let (ran, workspace) = plain(silent, 1, &main, limit);
        let parts = [
            "upstream_timed_out",
            "http://127.0.0.1:",
            "deadline is near",
        ];
        check_not_the_agents(ran, &workspace, &parts);
    }
}

#[test]
fn retries_of_the_gateway_are_not_the_agents_time() {
    // Three waits of 2 s, and more, within a deadline of 5 s.
    let behaviour = Behaviour::RefusesFirst {
        times: 3,
        status: 429,
        retry_after: Some("2"),
    };
    let limit = "agent_workflow_timeout_s = 5";
    let (ran, workspace) = plain(behaviour, 1, PLAIN, limit);
    ran.expect(0);
    assert_eq!(workspace.outcomes(), ["scored"]);
}

#[test]
fn under_mixed_faults_no_rollout_is_the_agents_failure() {
    let behaviour = Behaviour::InTurn(vec![
        Behaviour::Refuses { status: 429 },
        Behaviour::Answers,
        Behaviour::Resets,
        Behaviour::Refuses { status: 500 },
        Behaviour::CutsShort,
        Behaviour::Answers,
        Behaviour::Refuses { status: 502 },
        Behaviour::Garbage("<html>oops</html>"),
    ]);
    let limit = "agent_workflow_timeout_s = 45";
    let (ran, workspace) = plain(behaviour, 8, &catching(), limit);
    assert!(matches!(ran.code, 0 | 3), "{}", ran.stderr);
    for line in workspace.index() {
        let outcome = line["outcome"].as_str().unwrap();
        assert!(
            matches!(outcome, "scored" | "infrastructure_failed"),
            "{line}"
        );
        if outcome == "scored" {
            assert_eq!(line["reward"], 1.0, "an answer, and no excuse: {line}");
        }
    }
}

#[test]
fn an_agent_that_asks_a_slow_upstream_for_ever_runs_into_its_deadline() {
    let endless = PLAIN.replace(
        "return [*ctx.prompt, await ask(ctx.prompt)]",
        "while True: await ask(ctx.prompt)",
    );
    let slow = Behaviour::SlowFirstByte(Duration::from_millis(700));
    let (ran, workspace) = plain(slow, 1, &endless, "agent_workflow_timeout_s = 8");
    ran.expect(0);
    assert_eq!(workspace.outcomes(), ["timed_out"]);
}

#[test]
fn a_reward_that_an_agent_gives_itself_is_none() {
    let main = r#"
from osmosis_ai.rollout import AgentWorkflow, Grader, RolloutSample, SampleSource, get_rollout_context

class Source(SampleSource):
    def __init__(self, **grade):
        self.grade = grade
    async def get_sample(self, name):
        return RolloutSample(id=name, messages=[{"role": "user", "content": "hi"}], **self.grade)

class Paid(AgentWorkflow):
    async def run(self, ctx):
        get_rollout_context().register_sample_source("paid", Source(reward=1.0))
        get_rollout_context().register_sample_source("gone", Source(remove_sample=True))

class Indifferent(Grader):
    async def grade(self, ctx):
        assert all(s.reward is None and not s.remove_sample for s in ctx.samples.values())
"#;
    let (ran, workspace) = plain(Behaviour::Answers, 1, main, "");
    ran.expect(0);
    assert_eq!(workspace.outcomes(), ["ungraded"]);
    let error = workspace.index()[0]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("`paid`, `gone`"), "{error}");
    let assigned = main.replace("        assert all", "        ctx.samples[\"paid\"].reward = 0.5\n        ctx.samples[\"gone\"].remove_sample = True\n        return\n        assert all");
    let (ran, workspace) = plain(Behaviour::Answers, 1, &assigned, "");
    ran.expect(0);
    assert_eq!(workspace.outcomes(), ["scored"]);
    assert_eq!(workspace.index()[0]["reward"], 0.5);
}
