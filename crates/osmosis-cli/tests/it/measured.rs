//! Tokens, cost, gates and the report for CI systems.

use std::io::Write as _;
use std::process::{Command, Stdio};

use osmosis_testkit::model_server::{Behaviour, ModelServer};
use osmosis_testkit::python_environment;
use serde_json::{Value, json};

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows, product_rows};

/// A dollar for each token: a rollout of the plain agent costs what its words count.
const A_DOLLAR_EACH: [&str; 4] = ["--price-prompt", "1000000", "--price-completion", "1000000"];

/// Answers half of the rows right, and fails for the last.
const HALF: &str = r#"
[[reply]]
when.last_user = 'say (?<word>[02])$'
text = "{word}"

[[reply]]
text = "<wrong> & \"odd\""
"#;

/// A grader that fails with a text XML can't hold, and a secret.
fn failing_grader() -> String {
    PLAIN.replace(
        "        ctx.set_reward(",
        "        if ctx.label == '3':\n            import os\n            raise ValueError('\\x1b[31m<bad> & ]]> ' + os.environ['GRADER_KEY'])\n        ctx.set_reward(",
    )
}

fn half() -> Workspace {
    let mut workspace = Workspace::new(&failing_grader(), HALF, &echo_rows(4));
    workspace.config("[secrets]\nrequired = [\"GRADER_KEY\"]\n");
    workspace.variable("GRADER_KEY", "hunter2-hunter2");
    workspace
}

/// A `JUnit` file as Python's parser reads it.
fn parsed(xml: &str) -> Value {
    const PROGRAM: &str = r#"
import json, sys, xml.etree.ElementTree as ET
def read(e):
    return {"tag": e.tag, "attributes": e.attrib, "text": (e.text or "").strip(), "children": [read(c) for c in e]}
json.dump(read(ET.fromstring(sys.stdin.buffer.read())), sys.stdout)
"#;
    let mut python = Command::new(python_environment::python())
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python
        .stdin
        .take()
        .unwrap()
        .write_all(xml.as_bytes())
        .unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{xml}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_complete_run_below_a_gate_exits_with_code_4_and_writes_its_junit_report() {
    let workspace = half();
    let gates = [
        "--fail-under",
        "pass_rate=0.5",
        "--fail-under",
        "reward=0.9",
    ];
    let ran = workspace
        .submit(&[&gates[..], &["--junit", "out/results.xml", "--json"]].concat())
        .expect(4);
    let envelope = ran.json();
    assert_eq!(envelope["status"], "below_gate");
    let told = &envelope["resource"]["gates"];
    assert_eq!(
        told[0],
        json!({"number": "pass_rate", "at_least": 0.5, "value": 0.5, "holds": true})
    );
    assert_eq!(told[1]["holds"], false);

    let xml = workspace.read("out/results.xml");
    assert!(!xml.contains("hunter2-hunter2"), "{xml}");
    let suites = parsed(&xml);
    assert_eq!(suites["tag"], "testsuites");
    let suite = &suites["children"][0];
    for (name, value) in [
        ("tests", "4"),
        ("failures", "2"),
        ("errors", "0"),
        ("skipped", "0"),
    ] {
        assert_eq!(suite["attributes"][name], value, "{name}");
    }
    let children = suite["children"].as_array().unwrap();
    let tags: Vec<&str> = children
        .iter()
        .map(|child| child["tag"].as_str().unwrap())
        .collect();
    assert_eq!(
        tags,
        [
            "properties",
            "testcase",
            "testcase",
            "testcase",
            "testcase",
            "system-out",
            "system-err"
        ]
    );
    let case = |row: usize| &children[row + 1];
    assert_eq!(case(0)["children"], json!([]));
    let wrong = &case(1)["children"][0];
    assert_eq!(wrong["tag"], "failure");
    assert_eq!(wrong["attributes"]["type"], "scored");
    assert!(
        wrong["text"].as_str().unwrap().contains("eval show t 1.0"),
        "{wrong}"
    );
    let ungraded = &case(3)["children"][0];
    assert_eq!(ungraded["attributes"]["type"], "ungraded");
    let text = ungraded["text"].as_str().unwrap();
    assert!(text.contains("\\u{1b}[31m<bad> & ]]> [redacted]"), "{text}");

    // The same numbers, later.
    let info = ["eval", "info", "t", "--junit", "again.xml"];
    workspace.osmosis(&[&info[..], &gates].concat()).expect(4);
    workspace
        .osmosis(&[&info[..], &gates[..2]].concat())
        .expect(0);
    assert_eq!(parsed(&workspace.read("again.xml")), suites);
    let ran = workspace.osmosis(&[&info[..], &["--fail-under", "pass@2=0.5"]].concat());
    assert!(
        ran.expect(2)
            .stderr
            .contains("needs 2 rollouts of each row")
    );
}

#[test]
fn intervals_of_rewards_stay_inside_what_is_possible() {
    const ONE_RIGHT: &str =
        "[[reply]]\nwhen.last_user = 'say 3$'\ntext = '3'\n\n[[reply]]\ntext = 'no'\n";
    let workspace = Workspace::new(PLAIN, ONE_RIGHT, &echo_rows(10));
    let resource = workspace.submit_json(&[]);
    // Mean ± t standard errors is [-0.126, 0.326].
    assert_eq!(resource["reward"]["mean"], 0.1);
    assert_eq!(resource["reward"]["range"], json!([0.0, 1.0]));
    assert_eq!(resource["reward"]["ci95"], resource["pass_rate_ci95"]);
    let shown = workspace.osmosis(&["eval", "info", "t"]).expect(0);
    assert!(shown.stdout.contains("mean 0.1 [0.0"), "{}", shown.stdout);

    // A stated range holds, also for who grades outside of it.
    workspace.config("[evaluation]\nreward_range = [-1, 0.5]\n");
    let resource = workspace.submit_json(&["--fresh"]);
    assert_eq!(resource["outcomes"]["ungraded"], 1);
    assert_eq!(resource["outcomes"]["scored"], 9);
    assert_eq!(resource["reward"]["range"], json!([-1.0, 0.5]));
    let error = workspace.index()[3]["error"].to_string();
    assert!(
        error.contains("reward 1, outside the config's `reward_range` of [-1, 0.5]"),
        "{error}"
    );
    let gate = ["eval", "info", "t", "--fail-under", "reward=-1"];
    let ran = workspace.osmosis(&gate).expect(0);
    assert!(
        ran.stderr
            .contains("rollouts that failed and have no reward: 1"),
        "{}",
        ran.stderr
    );
    let gate = ["eval", "info", "t", "--fail-under", "scored=0.95"];
    workspace.osmosis(&gate).expect(4);
}

#[test]
fn a_bad_gate_is_refused_before_anything_runs() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    for (gate, complaint) in [
        ("pas_rate=0.8", "`pas_rate` is no number that can be a gate"),
        ("pass_rate=80", "lies between 0 and 1"),
        ("pass@2=0.8", "needs 2 rollouts of each row"),
    ] {
        let ran = workspace.submit(&["--fail-under", gate]).expect(2);
        assert!(ran.stderr.contains(complaint), "{}", ran.stderr);
    }
    let ran = workspace.submit(&["--max-cost", "1"]).expect(2);
    assert!(ran.stderr.contains("--price-prompt"), "{}", ran.stderr);
    let ran = workspace.submit(&["--price-prompt", "-1", "--price-completion", "1"]);
    ran.expect(2);
    assert!(!workspace.run_folder("t").exists());
}

#[test]
fn a_run_that_is_not_complete_is_not_judged() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let down = runtime
        .block_on(ModelServer::start(Behaviour::Down))
        .unwrap();
    let mut workspace = Workspace::new(PLAIN, "", &product_rows(1));
    workspace.model("m", "");
    workspace.variable("OPENAI_BASE_URL", down.url());
    let gate = ["--fail-under", "pass_rate=0.8"];
    let ran = workspace.submit(&[&gate[..], &["--no-probe", "--junit", "r.xml"]].concat());
    ran.expect(3);
    let suites = parsed(&workspace.read("r.xml"));
    let suite = &suites["children"][0];
    assert_eq!(suite["attributes"]["errors"], "1");
    assert_eq!(suite["children"][1]["children"][0]["tag"], "error");
    let info = workspace
        .osmosis(&[&["eval", "info", "t"], &gate[..]].concat())
        .expect(3);
    assert!(info.stderr.contains("not judged"), "{}", info.stderr);
}

#[test]
fn cached_and_reasoning_tokens_are_counted_and_priced() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime
        .block_on(ModelServer::start(Behaviour::Reasons))
        .unwrap();
    let mut workspace = Workspace::new(PLAIN, "", &product_rows(3));
    workspace.model("m", "");
    workspace.variable("OPENAI_BASE_URL", server.url());
    // Five words in, two of them cached, five out, three of them reasoning: 3 + 2/2 + 5.
    let prices = [&A_DOLLAR_EACH[..], &["--price-cached", "500000"]].concat();
    let resource = workspace.submit_json(&prices);
    assert_eq!(resource["cached_tokens"], 6);
    assert_eq!(resource["reasoning_tokens"], 9);
    assert_eq!(resource["cost"]["total"], 27.0);
    assert_eq!(resource["cost"]["judge"], Value::Null);
    let line = &workspace.index()[0];
    assert_eq!(
        (&line["cached_tokens"], &line["reasoning_tokens"]),
        (&json!(2), &json!(3))
    );
    // Prices are the run's own, until others are said.
    let info = |more: &[&str]| workspace.osmosis(&[&["eval", "info", "t"], more].concat());
    let shown = info(&[]).expect(0);
    assert!(
        shown.stdout.contains("$27.00 for the calls"),
        "{}",
        shown.stdout
    );
    assert!(
        shown
            .stdout
            .contains("15 prompt (6 cached) + 15 completion (9 reasoning) tokens")
    );
    let dearer = info(&[
        "--price-prompt",
        "2000000",
        "--price-completion",
        "1000000",
        "--json",
    ]);
    assert_eq!(dearer.json()["data"]["cost"]["total"], 45.0);
    let calls = workspace
        .osmosis(&["eval", "show", "t", "0", "--calls"])
        .expect(0);
    assert!(
        calls.stdout.contains("5 (2 cached)+5 (3 reasoning) tokens"),
        "{}",
        calls.stdout
    );
}

#[test]
fn without_prices_no_cost_is_told() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    let resource = workspace.submit_json(&[]);
    assert_eq!(resource["cost"], Value::Null);
    assert_eq!(resource["cached_tokens"], Value::Null);
    let shown = workspace.osmosis(&["eval", "info", "t"]).expect(0);
    assert!(!shown.stdout.contains('$'), "{}", shown.stdout);
}

#[test]
fn a_run_stops_at_its_budget_and_goes_on_with_a_larger_one() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime
        .block_on(ModelServer::start(Behaviour::Answers))
        .unwrap();
    let mut workspace = Workspace::new(PLAIN, "", &product_rows(6));
    workspace.model("m", "");
    workspace.variable("OPENAI_BASE_URL", server.url());
    let one_by_one = ["--max-in-flight", "1", "--no-probe"];
    // Ten dollars for each rollout: the third passes the limit.
    let arguments = [&A_DOLLAR_EACH[..], &one_by_one, &["--max-cost", "25"]].concat();
    let ran = workspace.submit(&arguments).expect(3);
    assert!(
        ran.stderr.contains("The run has cost $30.00"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("eval resume t"), "{}", ran.stderr);
    assert_eq!(workspace.outcomes(), ["scored"; 3]);

    let python = python_environment::python();
    let resume = |more: &[&str]| {
        let base = ["eval", "resume", "t", "--python", python.as_str()];
        workspace.osmosis(&[&base[..], &one_by_one, more].concat())
    };
    // What is spent is spent.
    resume(&["--max-cost", "30"]).expect(3);
    assert_eq!(server.requests().len(), 3);
    let ran = resume(&["--max-cost", "45", "--json"]).expect(3);
    assert_eq!(ran.json()["status"], "over_budget");
    assert_eq!(ran.json()["resource"]["cost"]["total"], 50.0);
    resume(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 6]);
}

#[test]
fn a_server_that_tells_no_tokens_has_no_known_cost_and_no_budget() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let untold = Behaviour::Garbage(
        r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#,
    );
    let server = runtime.block_on(ModelServer::start(untold)).unwrap();
    let mut workspace = Workspace::new(PLAIN, "", &product_rows(2));
    workspace.model("m", "");
    workspace.variable("OPENAI_BASE_URL", server.url());
    let ran = workspace
        .submit(&[&A_DOLLAR_EACH[..], &["--max-cost", "1"]].concat())
        .expect(0);
    assert!(
        ran.stdout
            .contains("unknown: the model server does not tell"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stderr.contains("--max-cost could not be kept"),
        "{}",
        ran.stderr
    );
    let info = workspace.osmosis(&["eval", "info", "t", "--json"]).json();
    assert_eq!(info["data"]["cost"]["total"], Value::Null);
}
