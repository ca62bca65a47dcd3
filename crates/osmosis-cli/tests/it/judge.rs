//! A model as judge, from end to end: the grader asks it through the gateway, and what it costs is told
//! apart from the policy.

use camino::Utf8PathBuf;
use osmosis_testkit::model_server::{Behaviour, Gate, ModelServer};
use osmosis_testkit::python_environment;
use rusqlite::Connection;
use serde_json::Value;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

const KEY: &str = "sk-judge-not-to-be-seen";

/// The reply of a judge that says `score`, as a script has it.
fn scores(score: &str) -> String {
    format!(
        "[[reply]]\nwhen.system = 'impartial judge'\n\
         text = '{{{{\"explanation\": \"as asked\", \"score\": {score}}}}}'\n"
    )
}

/// The plain agent, with a grader that does this.
fn graded_by(grade: &str) -> String {
    let (agent, _) = PLAIN.split_once("class Exact").unwrap();
    format!(
        "{agent}\nfrom osmosis_ai import evaluate_rubric\n\n\
         class Judged(Grader):\n    async def grade(self, ctx):\n{grade}"
    )
}

const BY_RUBRIC: &str = "        \
    result = await evaluate_rubric(rubric='Is it the word?', messages=ctx.sample.messages)\n        \
    ctx.sample.metrics['explanation'] = result.explanation\n        \
    ctx.set_reward(result)\n";

/// A workspace whose judge is this script.
pub(crate) fn judged(main: &str, judge: &str, rows: u64) -> Workspace {
    let workspace = Workspace::new(main, ECHO_SCRIPT, &echo_rows(rows));
    workspace.write("policies/judge.toml", judge);
    workspace.config("[grader]\njudge_model = \"script:policies/judge.toml\"\n");
    workspace
}

pub(crate) fn database(workspace: &Workspace, run: &str) -> Connection {
    Connection::open(workspace.run_folder(run).join("run.db")).unwrap()
}

fn purposes(workspace: &Workspace) -> Vec<String> {
    let database = database(workspace, "t");
    let mut select = database
        .prepare("SELECT purpose FROM calls ORDER BY call_id")
        .unwrap();
    let rows = select.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn the_judges_calls_are_recorded_and_counted_apart_from_the_policys() {
    let workspace = judged(&graded_by(BY_RUBRIC), &scores("0.75"), 3);
    let resource = workspace.submit_json(&[]);
    assert_eq!(resource["reward"]["mean"], 0.75);
    assert_eq!(resource["model_calls"], 3);
    assert_eq!(resource["judge"]["calls"], 3);
    assert!(resource["judge"]["prompt_tokens"].as_u64().unwrap() > 100);
    let mut found = purposes(&workspace);
    found.sort();
    assert_eq!(
        found,
        ["judge", "judge", "judge", "policy", "policy", "policy"]
    );

    // The policy's sums are those of a run without a judge.
    workspace.write("rollouts/r/main.py", PLAIN);
    workspace.config("");
    let python = python_environment::python();
    let arguments = [
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--name",
        "u",
        "--json",
    ];
    let without = workspace.osmosis(&[&arguments[..], &["--python", python.as_str()]].concat());
    let without = &without.expect(0).json()["resource"];
    for sum in ["model_calls", "prompt_tokens", "completion_tokens"] {
        assert_eq!(resource[sum], without[sum], "{sum}");
    }
    assert_eq!(without["judge"]["calls"], 0);

    let shown = workspace
        .osmosis(&["eval", "show", "t", "1", "--calls"])
        .expect(0);
    assert!(shown.stdout.contains("1 judge calls"), "{}", shown.stdout);
    assert!(shown.stdout.contains("(judge)"), "{}", shown.stdout);
    assert!(shown.stdout.contains("as asked"), "{}", shown.stdout);
    let shown = workspace
        .osmosis(&["eval", "show", "t", "1", "--json"])
        .expect(0)
        .json();
    assert_eq!(shown["data"][0]["calls"][1]["purpose"], "judge");
    let info = workspace.osmosis(&["eval", "info", "t"]).expect(0);
    assert!(info.stdout.contains("3 calls"), "{}", info.stdout);
}

#[test]
fn a_reply_without_a_score_is_asked_for_again_and_every_call_counts() {
    let judge = format!(
        "[[reply]]\ntimes = 1\nerror = {{ status = 400, message = 'response_format is not known' }}\n\
         [[reply]]\ntimes = 1\ntext = 'It is rather good.'\n{}",
        scores("7")
    );
    let workspace = judged(&graded_by(BY_RUBRIC), &judge, 1);
    let resource = workspace.submit_json(&[]);
    assert_eq!(resource["reward"]["mean"], 1.0, "7 is beyond the range");
    assert_eq!(resource["judge"]["calls"], 3, "refused, unreadable, scored");
    assert_eq!(resource["model_calls"], 1);
}

#[test]
fn a_judge_that_never_gives_a_score_leaves_the_sample_ungraded() {
    let workspace = judged(&graded_by(BY_RUBRIC), "[[reply]]\ntext = 'Hm.'\n", 1);
    workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["ungraded"]);
    let line = &workspace.index()[0];
    assert_eq!(line["reward"], Value::Null);
    let error = line["error"].as_str().unwrap();
    assert!(error.starts_with("judge_malformed: "), "{error}");
    assert!(
        error.contains("no score in 3 replies") && error.contains("Hm."),
        "{error}"
    );
}

#[test]
fn a_grader_that_makes_up_its_mind_without_the_judge_is_graded() {
    let grade = "        \
        from osmosis_ai import JudgeError\n        \
        try:\n            await evaluate_rubric(rubric='?', solution_str='x')\n        \
        except JudgeError as error:\n            ctx.sample.metrics['why'] = error.kind\n            \
        ctx.set_reward(0.5)\n";
    let judge = "[[reply]]\nerror = { status = 503, message = 'gone' }\n";
    let workspace = judged(&graded_by(grade), judge, 1);
    let resource = workspace.submit_json(&[]);
    assert_eq!(resource["reward"]["mean"], 0.5);
}

#[test]
fn a_real_openai_client_asks_the_judge_and_the_config_keeps_to_its_own_fields() {
    let grade = "        \
        from openai import AsyncOpenAI\n        \
        async with AsyncOpenAI(base_url=ctx.judge.base_url, api_key=ctx.judge.api_key) as client:\n            \
        models = [model.id async for model in client.models.list()]\n            \
        assert models == [ctx.judge.model], models\n            \
        reply = await client.chat.completions.create(\n                \
        model='osmosis-rollout', messages=[{'role': 'user', 'content': 'say 1'}])\n        \
        ctx.set_reward(float(reply.choices[0].message.content == 'I am the judge'))\n";
    let main = format!(
        "{}\nfrom osmosis_ai.rollout import GraderConfig\n\
         class Strict(GraderConfig, extra='forbid'):\n    strictness: float = 0.0\n\
         grader_config = Strict(name='strict')\n",
        graded_by(grade)
    );
    let workspace = judged(&main, "[[reply]]\ntext = 'I am the judge'\n", 1);
    workspace.config("[grader]\nstrictness = 0.5\njudge_model = \"script:policies/judge.toml\"\n");
    let resource = workspace.submit_json(&[]);
    assert_eq!(resource["reward"]["mean"], 1.0, "{resource}");
    assert_eq!(resource["judge"]["calls"], 1);
}

/// A run whose judge is behind `HOSTED_VLLM_BASE_URL` and behaves like this.
fn judged_remotely(behaviour: Behaviour) -> (Workspace, ModelServer, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(ModelServer::start(behaviour)).unwrap();
    let mut workspace = Workspace::new(&graded_by(BY_RUBRIC), ECHO_SCRIPT, &echo_rows(1));
    workspace.config("[grader]\njudge_model = \"hosted_vllm/big-judge\"\n");
    workspace.variable("HOSTED_VLLM_BASE_URL", server.url());
    workspace.variable("HOSTED_VLLM_API_KEY", KEY);
    (workspace, server, runtime)
}

fn remote(behaviour: Behaviour) -> (Ran, Workspace, ModelServer, tokio::runtime::Runtime) {
    let (workspace, server, runtime) = judged_remotely(behaviour);
    let ran = workspace.submit(&["--json", "--no-probe"]);
    for file in ["logs.txt", "index.jsonl", "run.db"] {
        let bytes = std::fs::read(workspace.run_folder("t").join(file)).unwrap();
        assert!(
            !String::from_utf8_lossy(&bytes).contains(KEY),
            "the key is in {file}"
        );
    }
    (ran, workspace, server, runtime)
}

#[test]
fn a_remote_judge_is_asked_in_the_openai_format_and_its_key_is_seen_by_nobody() {
    const REPLY: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"big-judge",
        "choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant",
        "content":"{\"explanation\":\"half\",\"score\":0.5}"}}],
        "usage":{"prompt_tokens":70,"completion_tokens":9,"total_tokens":79}}"#;
    let (ran, _workspace, server, _runtime) = remote(Behaviour::Garbage(REPLY));
    let resource = &ran.expect(0).json()["resource"];
    assert_eq!(resource["reward"]["mean"], 0.5);
    let judge = serde_json::json!({"calls": 1, "prompt_tokens": 70, "completion_tokens": 9});
    assert_eq!(resource["judge"], judge);
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        requests[0].headers["authorization"],
        format!("Bearer {KEY}")
    );
    assert_eq!(requests[0].body["model"], "big-judge");
    assert_eq!(requests[0].body["response_format"]["type"], "json_schema");
    assert_eq!(requests[0].body["temperature"], 0.0);
}

#[test]
fn a_judge_that_is_down_is_no_score_and_the_samples_can_be_graded_later() {
    let (ran, workspace, _server, _runtime) = remote(Behaviour::Down);
    ran.expect(3);
    assert_eq!(workspace.outcomes(), ["infrastructure_failed"]);
    let line = &workspace.index()[0];
    assert_eq!(line["reward"], Value::Null);
    let error = line["error"].as_str().unwrap();
    assert!(error.starts_with("judge_upstream_unreachable: "), "{error}");

    workspace.write("policies/judge.toml", &scores("0.25"));
    workspace.config("[grader]\njudge_model = \"script:policies/judge.toml\"\n");
    let regraded = regrade_json(&workspace, "t", &["--name", "u"]);
    assert_eq!(regraded["reward"]["mean"], 0.25);
    assert_eq!(
        (&regraded["model_calls"], &regraded["judge"]["calls"]),
        (&0.into(), &1.into())
    );
}

#[test]
fn a_judge_that_never_answers_is_known_before_the_graders_deadline() {
    let (workspace, _server, _runtime) = judged_remotely(Behaviour::Held(Gate::default()));
    workspace.config(
        "[evaluation]\ngrader_timeout_s = 3\n[grader]\njudge_model = \"hosted_vllm/big-judge\"\n",
    );
    workspace.submit(&["--no-probe"]).expect(3);
    assert_eq!(workspace.outcomes(), ["infrastructure_failed"]);
    let error = workspace.index()[0]["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("judge_upstream_timed_out: "), "{error}");
}

#[test]
fn a_judge_that_refuses_the_key_is_told_as_what_it_is() {
    let (ran, workspace, server, _runtime) = remote(Behaviour::Refuses { status: 401 });
    ran.expect(3);
    assert_eq!(workspace.outcomes(), ["infrastructure_failed"]);
    assert_eq!(server.requests().len(), 1, "a wrong key is not tried again");
}

#[test]
fn a_judge_that_cannot_be_asked_is_found_before_anything_runs() {
    let (workspace, server, _runtime) = judged_remotely(Behaviour::Refuses { status: 401 });
    let error = workspace.submit(&["--json"]).expect(1).error();
    assert_eq!(error["code"], "model_key_refused", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("judge_model `hosted_vllm/big-judge`"),
        "{message}"
    );
    assert!(!error.to_string().contains(KEY), "{error}");
    assert_eq!(server.requests().len(), 1);
    assert!(!workspace.run_folder("t").exists(), "nothing was begun");
}

#[test]
fn a_judge_that_is_named_wrongly_is_found_before_anything_runs() {
    let workspace = judged(PLAIN, "", 1);
    for (model, code) in [
        ("script:policies/nowhere.toml", "io"),
        ("hosted_vllm/m", "model_unconfigured"),
        ("builtin/nobody", "model_invalid"),
        ("two words", "config_invalid"),
    ] {
        workspace.config(&format!("[grader]\njudge_model = \"{model}\"\n"));
        let error = workspace.submit(&["--json"]).error();
        assert_eq!(error["code"], code, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("judge_model") || message.contains("nowhere.toml"),
            "{message}"
        );
        assert!(!message.contains("model_path"), "{message}");
    }
}

#[test]
fn an_embedded_model_can_judge_and_takes_the_response_format() {
    // A model this small says nothing of use; what counts is the way there.
    let workspace = Workspace::new(&graded_by(BY_RUBRIC), ECHO_SCRIPT, &echo_rows(1));
    workspace.config("[grader]\njudge_model = \"builtin/tiny\"\n");
    let resource = workspace.submit_json(&[]);
    assert_eq!(workspace.outcomes(), ["ungraded"], "{resource}");
    let calls = resource["judge"]["calls"].as_u64().unwrap();
    assert!(calls >= 2, "{resource}");
    // The prompt is too long for it, and nothing else is wrong.
    let refused: i64 = database(&workspace, "t")
        .query_row(
            "SELECT count(*) FROM calls WHERE purpose = 'judge' AND error LIKE '%response_format%'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(refused, 0, "{resource}");
}

#[test]
fn a_grader_has_its_judge_in_training_too() {
    // A model this small gives no score; what counts is that it was asked, and how that is told.
    let main = crate::workspace::CHECKSUM.replace(
        "        ctx.set_reward(sum",
        "        from osmosis_ai import JudgeError, evaluate_rubric\n        \
         try:\n            await evaluate_rubric(rubric='?', solution_str='x', max_tokens=4)\n        \
         except JudgeError:\n            pass\n        \
         ctx.set_reward(sum",
    );
    let workspace = Workspace::new(&main, "", &echo_rows(2));
    let judge = "[grader]\njudge_model = \"builtin/tiny\"\n";
    workspace.training("builtin/tiny", "steps = 1", judge);
    workspace.train(&[]).expect(0);
    let path = workspace.training_folder("t").join("run.db");
    let database = Connection::open(path).unwrap();
    let count = |purpose: &str| -> i64 {
        let sql = "SELECT count(*) FROM calls WHERE purpose = ?1 AND token_records > 0";
        database
            .query_row(sql, [purpose], |row| row.get(0))
            .unwrap()
    };
    assert_eq!(count("policy"), 8);
    assert!(count("judge") >= 8, "{}", count("judge"));
    let sums = "SELECT sum(model_calls), sum(judge_calls) > 8 FROM rollouts";
    let sums: (i64, bool) = database
        .query_row(sums, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!(sums, (8, true));
}

/// `eval regrade RUN --json`; its `resource`.
pub(crate) fn regrade_json(workspace: &Workspace, run: &str, more: &[&str]) -> Value {
    let ran = regrade(workspace, run, &[&["--json"], more].concat());
    ran.json()["resource"].clone()
}

pub(crate) fn regrade(workspace: &Workspace, run: &str, more: &[&str]) -> Ran {
    let python: Utf8PathBuf = python_environment::python();
    let mut arguments = vec!["eval", "regrade", run, "--python", python.as_str()];
    arguments.extend(more);
    workspace.osmosis(&arguments)
}
