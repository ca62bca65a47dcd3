//! What model calls are sent with, how their answers ended, and whom their errors name.

use insta::assert_snapshot;
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use serde_json::{Value, json};

use crate::workspace::{PLAIN, Ran, Workspace, echo_rows};

/// An answer that ends at the token limit.
const CUT: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"sa"},"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;

struct Evaluated {
    ran: Ran,
    workspace: Workspace,
    url: String,
    bodies: Vec<Value>,
}

/// Evaluates two rows with a model behind a URL.
fn evaluate(behaviour: Behaviour, main: &str, more: &str, options: &[&str]) -> Evaluated {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(ModelServer::start(behaviour)).unwrap();
    let mut workspace = Workspace::new(main, "", &echo_rows(2));
    workspace.model("some-model", more);
    workspace.variable("OPENAI_BASE_URL", server.url());
    let ran = workspace.submit(&[&["--no-probe"], options].concat());
    Evaluated {
        ran,
        workspace,
        url: server.url().to_owned(),
        bodies: server
            .requests()
            .into_iter()
            .map(|request| request.body)
            .collect(),
    }
}

fn line<'t>(ran: &'t Ran, label: &str) -> &'t str {
    let mut lines = ran.stdout.lines().map(str::trim);
    lines.find(|line| line.starts_with(label)).unwrap_or("none")
}

#[test]
fn an_evaluation_sends_no_sampling_that_nobody_set_and_says_so() {
    let done = evaluate(Behaviour::Answers, PLAIN, "", &["--plain"]);
    assert_eq!(done.bodies.len(), 2);
    for body in &done.bodies {
        assert_eq!(
            (body.get("temperature"), body.get("top_p")),
            (None, None),
            "{body}"
        );
    }
    assert_snapshot!(line(&done.ran, "sampling"), @"sampling    temperature, top_p not set (left to the model server)");
    let info = done
        .workspace
        .osmosis(&["eval", "info", "t", "--json"])
        .json();
    let sampling = &info["data"]["sampling"];
    assert_eq!(sampling["calls"], 2);
    assert_eq!(sampling["temperature"]["left_to_server"], 2);
    assert_eq!(
        info["data"]["truncated"],
        json!({"calls": 0, "rollouts": 0})
    );
}

#[test]
fn an_evaluation_sends_what_the_agent_set_and_fills_in_what_the_config_sets() {
    let main = PLAIN.replace(
        "\"messages\": messages}",
        "\"messages\": messages, \"temperature\": 0.25, \"max_tokens\": 9}",
    );
    let more = "[sampling]\nrollout_temperature = 0.5\nrollout_top_p = 0.75\n";
    let done = evaluate(Behaviour::Answers, &main, more, &["--plain"]);
    for body in &done.bodies {
        assert_eq!(
            (&body["temperature"], &body["top_p"]),
            (&json!(0.25), &json!(0.75))
        );
    }
    assert_snapshot!(line(&done.ran, "sampling"), @"sampling    temperature 0.25 (agent) · top_p 0.75 ([sampling]) · max_tokens 9 (agent)");
}

#[test]
fn answers_cut_at_the_token_limit_are_graded_and_counted() {
    let done = evaluate(Behaviour::Garbage(CUT), PLAIN, "", &["--plain"]);
    let ran = done.ran.expect(0);
    assert_eq!(done.workspace.outcomes(), ["scored"; 2]);
    assert_snapshot!(line(&ran, "cut"), @"cut         2 answers in 2 rollouts ended at the token limit");
    let info = done
        .workspace
        .osmosis(&["eval", "info", "t", "--json"])
        .json();
    assert_eq!(
        info["data"]["truncated"],
        json!({"calls": 2, "rollouts": 2})
    );
}

#[test]
fn what_a_client_says_of_a_failed_call_names_the_users_endpoint() {
    let done = evaluate(Behaviour::Refuses { status: 400 }, PLAIN, "", &["--json"]);
    assert_eq!(done.workspace.outcomes(), ["agent_failed"; 2]);
    let failure = &done.ran.json()["resource"]["failures"][0];
    let error = failure["error"].as_str().unwrap();
    assert!(
        error.contains(&format!("'{}/chat/completions'", done.url)),
        "{error}"
    );
    let shown = done
        .workspace
        .osmosis(&["eval", "show", "t", "0", "--json"])
        .stdout;
    let host = done
        .url
        .trim_start_matches("http://")
        .trim_end_matches("/v1");
    let others = shown
        .split("127.0.0.1:")
        .skip(1)
        .filter(|rest| !host.ends_with(rest.split(|c: char| !c.is_ascii_digit()).next().unwrap()));
    assert_eq!(others.count(), 0, "an address of ours: {shown}");
}

#[test]
fn the_built_in_model_says_that_it_knows_the_demos_language_only() {
    let rows = "{\"user_prompt\": \"Which customers bought shoes in November?\", \"ground_truth\": \"Ann\"}\n";
    let workspace = Workspace::new(PLAIN, "", rows);
    workspace.model("builtin/tiny", "");
    let ran = workspace.submit(&["--plain"]).expect(0);
    assert!(
        ran.stderr
            .contains("`builtin/tiny` knows the language of `osmosis demo` only"),
        "{}",
        ran.stderr
    );
    assert_snapshot!(line(&ran, "sampling"), @"sampling    temperature, top_p not set (sampled with 1)");
    let rows = "{\"user_prompt\": \"What is 6 times 7?\", \"ground_truth\": \"42\"}\n";
    workspace.write("data/d.jsonl", rows);
    let ran = workspace.submit(&["--plain", "--fresh"]).expect(0);
    assert!(!ran.stderr.contains("osmosis demo"), "{}", ran.stderr);
}
