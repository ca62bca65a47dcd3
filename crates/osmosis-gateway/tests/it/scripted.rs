use camino::Utf8Path;
use osmosis_gateway::{FaultKind, ScriptedPolicy};
use serde_json::{Value, json};

use crate::fixture::{House, streamed, user};

const MULTIPLY: &str = r#"
[[reply]]
when.last_role = "user"
when.last_user = 'What is (?<a>\d+) times (?<b>\d+)'
tool_calls = [{ name = "multiply", arguments = { a = "{a:int}", b = "{b:int}", note = "{a} x {b}", exact = true } }]

[[reply]]
when.last_role = "tool"
text = "The answer is {tool_result}."
"#;

fn after_tool(question: &str, result: &str) -> Value {
    json!({"messages": [
        {"role": "system", "content": "You multiply."},
        {"role": "user", "content": [{"type": "text", "text": question}]},
        {"role": "assistant", "content": null, "tool_calls": []},
        {"role": "tool", "tool_call_id": "x", "content": result},
    ]})
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[tokio::test]
async fn a_script_answers_a_tool_conversation_the_same_way_every_time() {
    let mut transcripts = Vec::new();
    for _ in 0..2 {
        let house = House::scripted(MULTIPLY).await;
        let first = house.send(&user("What is 12 times 3?")).await;
        let second = house.send(&after_tool("What is 12 times 3?", "36")).await;
        let stream = house.send(&streamed("What is 12 times 3?")).await;
        assert_eq!(
            (first.status, second.status, stream.status),
            (200, 200, 200)
        );
        transcripts.push(format!(
            "{}\n\n{}\n\n{}",
            serde_json::to_string_pretty(&first.json()).unwrap(),
            serde_json::to_string_pretty(&second.json()).unwrap(),
            stream.text
        ));
    }
    assert_eq!(transcripts[0], transcripts[1]);
    insta::assert_snapshot!(transcripts[0]);
}

#[tokio::test]
async fn calls_that_ask_the_same_get_ids_of_their_own_and_the_same_ones_every_time() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let house = House::scripted(MULTIPLY).await;
        let mut ids = Vec::new();
        for _ in 0..3 {
            let answer = house.send(&user("What is 12 times 3?")).await.json();
            let call = &answer["choices"][0]["message"]["tool_calls"][0];
            ids.extend([answer["id"].to_string(), call["id"].to_string()]);
        }
        runs.push(ids);
    }
    assert_eq!(runs[0], runs[1]);
    let different: std::collections::HashSet<&String> = runs[0].iter().collect();
    assert_eq!(different.len(), 6, "{:?}", runs[0]);
}

#[tokio::test]
async fn plain_and_streamed_replies_say_the_same() {
    let house = House::scripted("[[reply]]\ntext = 'Well, {last_user} it is.'\n").await;
    let plain = house.send(&user("tea")).await;
    let mut asked = streamed("tea");
    asked["stream_options"] = json!({"include_usage": true});
    let stream = house.send(&asked).await;
    assert_eq!(content(&plain.json()), "Well, tea it is.");
    assert_eq!(stream.spelt(), "Well, tea it is.");
    let events = stream.events();
    let usage: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(usage["usage"], plain.json()["usage"]);
    let calls = house.store.calls();
    assert_eq!(calls[0].prompt_tokens, Some(1));
    assert_eq!(calls[0].completion_tokens, calls[1].completion_tokens);
}

#[tokio::test]
async fn conditions_choose_the_rule() {
    let house = House::scripted(
        r#"
[[reply]]
when.system = "(?i)pirate"
text = "Arr."
[[reply]]
when.tool_result = "(?<what>error.*)"
text = "It failed: {what}"
[[reply]]
when.turn = [2, 3]
text = "Turn {turn}."
[[reply]]
text = "Else."
"#,
    )
    .await;
    let cases = [
        (json!([{"role": "user", "content": "hi"}]), "Else."),
        (
            json!([{"role": "developer", "content": "Be a Pirate"}, {"role": "user", "content": "hi"}]),
            "Arr.",
        ),
        (
            json!([{"role": "tool", "content": "an error: no"}]),
            "It failed: error: no",
        ),
        (
            json!([{"role": "tool", "content": "error"}, {"role": "user", "content": "so?"}]),
            "Else.",
        ),
        (
            json!([{"role": "assistant"}, {"role": "user", "content": "so?"}]),
            "Turn 2.",
        ),
        (json!([]), "Else."),
    ];
    for (messages, expected) in cases {
        let answer = house.send(&json!({"messages": messages})).await;
        assert_eq!(content(&answer.json()), expected, "{messages}");
    }
}

#[tokio::test]
async fn a_call_that_no_rule_answers_fails_loudly() {
    let house = House::scripted("[[reply]]\nwhen.turn = 9\ntext = 'x'\n").await;
    let answer = house.send(&user("What now?")).await;
    assert_eq!(answer.status, 400);
    insta::assert_snapshot!(answer.error_message(), @"script `test.toml`: no rule answers turn 1 of sample `main`, whose last message is `user`: `What now?`");
    let fault = house.session.close().await.last_fault.unwrap();
    assert_eq!(fault.kind, FaultKind::Misconfigured);
    assert!(!fault.kind.worth_retrying());
}

#[tokio::test]
async fn scripted_errors_fail_like_an_upstream_as_often_as_they_say() {
    let house = House::scripted(
        "[[reply]]\ntimes = 2\nerror = { status = 500, message = 'scripted failure' }\n\
         [[reply]]\nwhen.last_user = 'bad'\nerror = { status = 422 }\n\
         [[reply]]\ntext = 'ok'\n",
    )
    .await;
    let statuses = async |body: Value| house.send(&body).await.status;
    assert_eq!(statuses(user("hi")).await, 500);
    assert_eq!(statuses(user("hi")).await, 500);
    assert_eq!(statuses(user("hi")).await, 200);
    assert_eq!(statuses(user("bad")).await, 422);
    // Each rollout has its own count.
    let other = house
        .gateway
        .open(osmosis_core::RolloutId::of(9, 0), osmosis_core::Attempt(1));
    let call = house
        .client
        .post(house.chat_url())
        .bearer_auth(other.key())
        .body(user("hi").to_string());
    assert_eq!(call.send().await.unwrap().status(), 500);
    let fault = other.close().await.last_fault.unwrap();
    assert_eq!(fault.kind, FaultKind::ServerError);
    assert!(fault.message.contains("scripted failure"));
    assert_eq!(house.session.close().await.last_fault, None);
}

#[tokio::test]
async fn a_script_can_cut_garble_and_mangle() {
    let house = House::scripted(
        "[[reply]]\nwhen.last_user = 'cut'\ntext = 'one two three'\ncut_after = 2\n\
         [[reply]]\nwhen.last_user = 'garbage'\ngarbage = '<html>'\n\
         [[reply]]\nwhen.last_user = 'mangle'\ntool_calls = [{ name = 'f', arguments_text = '{{\"a\": ' }]\n\
         [[reply]]\nwhen.last_user = 'long'\ntext = 'x'\nfinish_reason = 'length'\n",
    )
    .await;
    let cut = house.send(&streamed("cut")).await;
    assert!(cut.aborted);
    assert_eq!(cut.spelt(), "one ");
    assert_eq!(house.send(&user("cut")).await.status, 502);
    let garbage = house.send(&user("garbage")).await;
    assert!(garbage.error_message().contains("<html>"));
    let mangled = house.send(&user("mangle")).await.json();
    let call = &mangled["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], "{\"a\": ");
    assert_eq!(
        house.send(&user("long")).await.json()["choices"][0]["finish_reason"],
        "length"
    );
}

#[tokio::test]
async fn delays_are_waited_for() {
    let house =
        House::scripted("[[reply]]\ntext = 'a b'\ndelay_ms = 50\nchunk_delay_ms = 20\n").await;
    let started = std::time::Instant::now();
    assert_eq!(house.send(&streamed("hi")).await.spelt(), "a b");
    // Role, two words, finish, usage (not shown) and the end.
    assert!(started.elapsed() >= std::time::Duration::from_millis(50 + 6 * 20));
}

#[tokio::test]
async fn variants_differ_between_rollouts_and_never_within_one() {
    let script =
        "seed = 7\n[[reply]]\nvariants = [{ text = 'right', weight = 3 }, { text = 'wrong' }]\n";
    let mut first = Vec::new();
    for round in 0..2 {
        let house = House::scripted(script).await;
        let mut said = Vec::new();
        for run in 0..60 {
            let session = house.gateway.open(
                osmosis_core::RolloutId::of(0, run),
                osmosis_core::Attempt(1),
            );
            let call = house
                .client
                .post(house.chat_url())
                .bearer_auth(session.key())
                .body(user("hi").to_string());
            let answer = crate::fixture::Answer::of(call.send().await.unwrap()).await;
            said.push(content(&answer.json()).to_owned());
        }
        if round == 0 {
            first = said;
        } else {
            assert_eq!(said, first);
        }
    }
    let right = first.iter().filter(|text| *text == "right").count();
    assert!((30..60).contains(&right), "{right} of 60");
}

#[tokio::test]
async fn several_choices_can_be_asked_for() {
    let house = House::scripted("[[reply]]\ntext = 'x'\n").await;
    let mut body = user("hi");
    body["n"] = json!(3);
    assert_eq!(
        house.send(&body).await.json()["choices"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    body["n"] = json!(0);
    assert_eq!(house.send(&body).await.status, 400);
}

#[tokio::test]
async fn a_value_that_cannot_be_made_is_a_mistake_of_the_script() {
    let house = House::scripted(
        "\n[[reply]]\nwhen.last_user = '(?<word>.*)'\ntool_calls = [{ name = 'f', arguments = { a = '{word:int}' } }]\n",
    )
    .await;
    let answer = house.send(&user("six")).await;
    assert_eq!(answer.status, 400);
    insta::assert_snapshot!(answer.error_message(), @"script `test.toml`, rule at line 2: `{word:int}` cannot be made of `six`");
}

#[test]
fn every_problem_of_a_script_is_reported_at_once_with_its_place() {
    let script = r#"
sed = 1
[[reply]]
when.last_usr = "x"
when.turn = 0
when.last_role = "tol"
when.system = "(unclosed"
when.last_user = '(?<a>\d+)'
text = "{b} and {aa} and {a:integer}"
delay_ms = "soon"

[[reply]]
txt = "x"

[[reply]]
error = { status = 200 }
text = "both"

[[reply]]
tool_calls = [{ arguments = { when = 1979-05-27 } }]
times = 0

[[reply]]
variants = [{ weight = 2 }, "x"]

[[reply]]
text = "{tool_result"
finish_reason = "done"

[[reply]]
text = "everything"

[[reply]]
text = "never"
"#;
    let errors = ScriptedPolicy::parse(Utf8Path::new("scripts/bad.toml"), script).unwrap_err();
    insta::assert_snapshot!(errors);
    assert!(errors.hint().is_some());
}

#[test]
fn a_file_that_is_no_toml_or_says_nothing_is_refused() {
    let problem = |text: &str| {
        ScriptedPolicy::parse(Utf8Path::new("s.toml"), text)
            .unwrap_err()
            .to_string()
    };
    insta::assert_snapshot!(problem("[[reply]]\ntext = \n"), @"s.toml:2:8: string values must be quoted, expected literal string");
    insta::assert_snapshot!(problem(""), @"s.toml:1:1: the script has no `[[reply]]`, so it could answer nothing");
    insta::assert_snapshot!(problem("reply = 3"), @"s.toml:1:9: `reply` must be a list of tables, not integer");
}

#[test]
fn the_scripts_in_the_documentation_are_valid() {
    let page = include_str!("../../../../docs/scripted-policy.md");
    let scripts: Vec<&str> = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert_eq!(scripts.len(), 2);
    for script in scripts {
        ScriptedPolicy::parse(Utf8Path::new("page.toml"), script).unwrap();
    }
}

proptest::proptest! {
    #[test]
    fn no_script_makes_the_reader_panic(
        text in r#"(\[\[reply\]\]\n|when\.turn = |when\.last_user = |text = |tool_calls = |variants = |error = |[0-9]|"\{[a-z:]{0,9}\}"|'\(\?<é>.\)'|\[|\]|\{|\}|name = |, |\n){0,24}"#
    ) {
        let _ = ScriptedPolicy::parse(Utf8Path::new("s.toml"), &text);
    }
}
