//! `osmosis gateway` as OpenAI's own client meets it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use osmosis_store::KeyFolder;
use osmosis_store_sqlite::SqliteStore;
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use osmosis_testkit::python_environment;
use osmosis_tokens::{Origin, TokenRecord};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::workspace::{PLAIN, Ran, Workspace, echo_rows};

/// A gateway in a process of its own.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) resource: Value,
}

impl Serving {
    pub(crate) fn start(workspace: &Workspace, arguments: &[&str]) -> Self {
        Self::serve(&mut workspace.command(&[&["gateway", "--json"], arguments].concat()))
    }

    /// With the key of an upstream.
    fn start_with_key(workspace: &Workspace, arguments: &[&str], key: &str) -> Self {
        let mut command = workspace.command(&[&["gateway", "--json"], arguments].concat());
        Self::serve(command.env("OPENAI_API_KEY", key))
    }

    pub(crate) fn serve(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
        while !said.ends_with("\n}\n") {
            assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}");
        }
        let envelope: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(envelope["status"], "serving");
        Self {
            child,
            resource: envelope["resource"].clone(),
        }
    }

    /// Runs a script with the real client against it.
    pub(crate) fn client(&self, script: &str) -> Value {
        let output = Command::new(python_environment::python())
            .args(["-c", script])
            .env("OPENAI_BASE_URL", self.resource["url"].as_str().unwrap())
            .env("OPENAI_API_KEY", self.resource["api_key"].as_str().unwrap())
            .env(
                "OSMOSIS_CONTROL_KEY",
                self.resource["control_key"].as_str().unwrap(),
            )
            .env_remove("HTTP_PROXY")
            .env_remove("http_proxy")
            .output()
            .unwrap();
        Ran::of(&output).expect(0).json()
    }

    pub(crate) fn stop(self) -> Ran {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        Ran::of(&self.child.wait_with_output().unwrap())
    }
}

const CLIENT: &str = r#"
import json
from openai import AuthenticationError, OpenAI

client = OpenAI()
messages = [{"role": "user", "content": "What is 12 plus 30?"}]
ask = {"model": "osmosis-rollout", "messages": messages, "max_tokens": 48}
plain = client.chat.completions.create(**ask, temperature=1.0, seed=3)
again = client.chat.completions.create(**ask, temperature=1.0, seed=3)
streamed = "".join(
    chunk.choices[0].delta.content or ""
    for chunk in client.chat.completions.create(**ask, temperature=1.0, seed=3, stream=True)
    if chunk.choices
)
number = {"type": "integer"}
tool = {"type": "function", "function": {
    "name": "calculate",
    "description": "Add, subtract, multiply or divide two whole numbers; a quotient is rounded down.",
    "parameters": {
        "type": "object",
        "properties": {"a": number, "operation": {"type": "string"}, "b": number},
        "required": ["a", "operation", "b"],
    },
}}
instructions = {"role": "system", "content": "Use the tool, then answer with the number alone."}
called = [
    client.chat.completions.create(
        **{**ask, "messages": [instructions, *messages]}, tools=[tool], seed=seed
    ).choices[0].message.tool_calls
    for seed in range(8)
]
calls = [call for calls in called for call in calls or []]
try:
    OpenAI(api_key="wrong").chat.completions.create(**ask)
    refused = False
except AuthenticationError:
    refused = True
print(json.dumps({
    "plain": plain.choices[0].message.content,
    "again": again.choices[0].message.content,
    "streamed": streamed,
    "tokens": plain.usage.completion_tokens,
    "models": [model.id for model in client.models.list()],
    "tools": sorted({call.function.name for call in calls}),
    "arguments": [json.loads(call.function.arguments) for call in calls],
    "refused": refused,
}))
"#;

#[test]
fn openais_client_gets_plain_streamed_and_tool_answers_from_the_builtin_model() {
    let workspace = Workspace::new(PLAIN, "[[reply]]\ntext = \"x\"\n", &echo_rows(1));
    let serving = Serving::start(&workspace, &["--model", "builtin/tiny", "--name", "g"]);
    let said = serving.client(CLIENT);
    assert_eq!(said["models"], serde_json::json!(["builtin/tiny"]));
    assert_eq!(said["plain"], said["again"], "{said}");
    let plain = said["plain"].as_str().unwrap_or_default();
    assert_eq!(said["streamed"].as_str().unwrap(), plain, "{said}");
    assert!(said["tokens"].as_u64().unwrap() > 0, "{said}");
    assert_eq!(said["tools"], serde_json::json!(["calculate"]), "{said}");
    assert_eq!(said["refused"], true);
    let key = serving.resource["api_key"].as_str().unwrap().to_owned();
    let folder = serving.resource["output_path"].as_str().unwrap().to_owned();
    serving.stop().expect(0);

    let database = rusqlite::Connection::open(format!("{folder}/run.db")).unwrap();
    let calls: i64 = database
        .query_row("SELECT COUNT(*) FROM calls WHERE status = 200", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(calls, 3 + 8);
    for file in std::fs::read_dir(folder).unwrap().filter_map(Result::ok) {
        if file.path().is_file() {
            let bytes = std::fs::read(file.path()).unwrap();
            let found = bytes
                .windows(key.len())
                .any(|window| window == key.as_bytes());
            assert!(!found, "the key is in {}", file.path().display());
        }
    }
}

#[test]
fn any_model_path_can_be_served_and_a_name_goes_on_with_its_run() {
    let script = "[[reply]]\ntext = \"forty-two\"\n";
    let workspace = Workspace::new(PLAIN, script, &echo_rows(1));
    let ask =
        "import json; from openai import OpenAI; print(json.dumps(OpenAI().chat.completions.create(
        model='x', messages=[{'role': 'user', 'content': 'hello'}]).choices[0].message.content))";
    for _ in 0..2 {
        let arguments = ["--model", "script:policies/p.toml", "--name", "g"];
        let serving = Serving::start(&workspace, &arguments);
        assert_eq!(serving.client(ask), "forty-two");
        serving.stop().expect(0);
    }
    let folder = workspace.root.join(".osmosis/serve/g/run.db");
    let database = rusqlite::Connection::open(folder).unwrap();
    let calls: i64 = database
        .query_row("SELECT COUNT(*) FROM calls", [], |row| row.get(0))
        .unwrap();
    assert_eq!(calls, 2);
}

#[test]
fn ids_that_an_upstream_reports_are_recorded_as_it_sampled_them() {
    let workspace = Workspace::new(PLAIN, "[[reply]]\ntext = \"x\"\n", &echo_rows(1));
    // An embedded model tells its ids as vLLM does.
    let model = Serving::start(&workspace, &["--model", "builtin/tiny", "--name", "model"]);
    let url = model.resource["url"].as_str().unwrap();
    let key = model.resource["api_key"].as_str().unwrap();
    let arguments = ["--upstream", url, "--engine", "vllm", "--name", "front"];
    let front = Serving::start_with_key(&workspace, &arguments, key);
    let ask = "import json; from openai import OpenAI
replies = []
for stream in (False, True):
    reply = OpenAI().chat.completions.create(model='x', temperature=1.0, top_p=1.0, max_tokens=16,
        messages=[{'role': 'user', 'content': 'What is 2 plus 3?'}], stream=stream)
    replies += [part.to_json() for part in (reply if stream else [reply])]
print(json.dumps(any('token_ids' in reply or 'top_logprobs' in reply for reply in replies)))";
    assert_eq!(front.client(ask), false);
    front.stop().expect(0);
    model.stop().expect(0);
    let recorded = |name: &str| -> Vec<TokenRecord> {
        let folder = workspace.root.join(".osmosis/serve").join(name);
        let store = SqliteStore::open_read_only(&folder, &KeyFolder::none()).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        [1, 2]
            .map(|call| runtime.block_on(store.call_body(call)).unwrap().unwrap())
            .iter()
            .flat_map(|body| &body.tokens)
            .map(|record| TokenRecord {
                // Why a prompt begins anew is told in messages there, and in ids here.
                origin: Origin::Root { reason: None },
                ..TokenRecord::decode(record).unwrap()
            })
            .collect()
    };
    let told = recorded("front");
    assert_eq!(told.len(), 2);
    assert!(
        told.iter()
            .all(|record| record.complete && !record.sampled.is_empty())
    );
    assert_eq!(told, recorded("model"));
}

#[test]
fn the_gateway_says_what_is_wrong_with_its_arguments() {
    let workspace = Workspace::new(PLAIN, "[[reply]]\ntext = \"x\"\n", &echo_rows(1));
    let check = |arguments: &[&str], code: i32, words: &str| {
        let ran = workspace
            .osmosis(&[&["gateway"], arguments].concat())
            .expect(code);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    };
    check(&[], 2, "--model");
    check(&["--model", "builtin/none"], 1, "tiny");
    check(&["--model", "run:none"], 1, "no run `none`");
    let upstream = ["--upstream", "http://127.0.0.1:1/v1"];
    #[rustfmt::skip]
    let wrong: [(&[&str], i32, &str); 8] = [
        (&["--durable", "never"], 2, "group, answer"),
        (&["--upstream-speaks", "french"], 2, "responses, messages, completions"),
        (&["--upstream", "ftp://h/v1"], 1, "is not an http or https URL"),
        (&["--policy", "judge"], 2, "NAME=URL"),
        (&["--policy", "judge=h:1"], 1, "upstream url"),
        (&["--policy", "osmosis-rollout=http://h/v1"], 2, "the run's own policy"),
        (&["--policy", "j=http://h/v1,a", "--policy", "j=http://h/v1,b"], 2, "different models, `a`, `b`"),
        (&["--max-in-flight", "0"], 2, "--max-in-flight"),
    ];
    for (arguments, code, words) in wrong {
        check(&[&upstream, arguments].concat(), code, words);
    }
    let with = |more: &[&'static str]| [&upstream[..], more].concat();
    check(&with(&["--tokenizer", "."]), 1, "--engine vllm");
    check(&with(&["--engine", "sglang"]), 1, "--tokenizer DIR");
    check(
        &with(&["--engine", "vllm", "--tokenizer", "none"]),
        1,
        "tokenizer.json",
    );
    check(
        &with(&[
            "--upstream",
            "http://h/v1",
            "--engine",
            "vllm",
            "--tokenizer",
            ".",
        ]),
        1,
        "go to one",
    );
    check(
        &["--model", "builtin/tiny", "--engine", "vllm"],
        2,
        "cannot be used with",
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = ["--model", "script:policies/p.toml", "--listen", &address];
    check(&arguments, 1, &address);
}

const OPERATOR: &str = r#"
import json
import os
import urllib.request

from openai import OpenAI

client = OpenAI()
root = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
key = os.environ["OSMOSIS_CONTROL_KEY"]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def control(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(root + path, data, {"Authorization": f"Bearer {key}"})
    with opener.open(request) as response:
        return response.read().decode()


def ask(model):
    messages = [{"role": "user", "content": "hello"}]
    return client.chat.completions.create(model=model, messages=messages).model


asked = [ask("any"), ask("any"), ask("judge")]
before = json.loads(control("/v1/policy"))
paused = json.loads(control("/v1/policy/pause", {"wait": True}))
updated = json.loads(control("/v1/policy", {"version": 7}))
control("/v1/policy/resume", {})
asked.append(ask("any"))
print(json.dumps({
    "asked": asked,
    "models": [model.id for model in client.models.list()],
    "endpoints": [endpoint["url"] for endpoint in before["policy"]["endpoints"]],
    "limit": before["policy"]["endpoints"][0]["limit"],
    "drained": paused["drained"],
    "version": updated["version"],
    "metrics": control("/metrics"),
}))
"#;

#[test]
fn calls_go_to_several_upstreams_by_name_and_through_a_proxy_and_are_controlled_with_a_key() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = || {
        let server = ModelServer::start(Behaviour::Answers);
        runtime.block_on(server).unwrap()
    };
    let (one, two, judge, proxy) = (start(), start(), start(), start());
    let mut workspace = Workspace::new(PLAIN, "[[reply]]\ntext = \"x\"\n", &echo_rows(1));
    workspace.variable("OPENAI_API_KEY", "sk-main");
    workspace.variable("JUDGE_2_API_KEY", "sk-judge");
    workspace.variable("OSMOSIS_CONTROL_KEY", "chosen-control-key");
    // The proxy answers in the place of what it is asked for.
    workspace.variable("HTTP_PROXY", proxy.url().trim_end_matches("/v1"));
    let by_name = format!("judge={},org/judge", judge.url());
    let by_proxy = "judge-2=http://model.invalid/v1";
    let arguments = [
        &[
            "--name",
            "g",
            "--max-in-flight",
            "5",
            "--upstream-model",
            "m",
        ][..],
        &["--upstream", one.url(), "--upstream", two.url()],
        &["--policy", &by_name, "--policy", by_proxy],
    ]
    .concat();
    let serving = Serving::start(&workspace, &arguments);
    assert_eq!(serving.resource["control_key"], "chosen-control-key");
    let said = serving.client(OPERATOR);
    assert_eq!(
        said["asked"],
        serde_json::json!(["m", "m", "org/judge", "m"])
    );
    let models = serde_json::json!(["m", "judge", "judge-2"]);
    assert_eq!(said["models"], models);
    assert_eq!(said["endpoints"], serde_json::json!([one.url(), two.url()]));
    assert_eq!((&said["limit"], &said["version"]), (&5.into(), &7.into()));
    assert_eq!(said["drained"], true);
    let metrics = said["metrics"].as_str().unwrap();
    let expected = format!("upstream=\"{}\",outcome=\"ok\"}} 1", judge.url());
    assert!(metrics.contains(&expected), "{metrics}");
    assert_eq!(one.requests().len() + two.requests().len(), 3);
    assert!(!one.requests().is_empty() && !two.requests().is_empty());
    assert_eq!(one.requests()[0].headers["authorization"], "Bearer sk-main");
    assert!(!judge.requests()[0].headers.contains_key("authorization"));

    let through_proxy = "import json; from openai import OpenAI; print(json.dumps(
        OpenAI().chat.completions.create(model='judge-2', messages=[]).model))";
    assert_eq!(serving.client(through_proxy), "judge-2");
    assert_eq!(proxy.requests().len(), 1);
    assert_eq!(proxy.requests()[0].headers["host"], "model.invalid");
    assert_eq!(
        proxy.requests()[0].headers["authorization"],
        "Bearer sk-judge"
    );
    let folder = serving.resource["output_path"].as_str().unwrap().to_owned();
    serving.stop().expect(0);
    let database = rusqlite::Connection::open(format!("{folder}/run.db")).unwrap();
    let mut query = database
        .prepare("SELECT upstream, policy_version FROM calls ORDER BY call_id")
        .unwrap();
    let calls: Vec<(String, i64)> = query
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let versions: Vec<i64> = calls.iter().map(|(_, version)| *version).collect();
    assert_eq!(versions, [0, 0, 0, 7, 0]);
    assert_eq!(calls[2].0, judge.url());
}
