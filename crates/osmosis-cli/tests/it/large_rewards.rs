//! Rewards that are as large as they may be, and larger ones.

use osmosis_testkit::python_environment;
use serde_json::Value;

use crate::training::metrics;
use crate::workspace::{CHECKSUM, ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// The plain agent with a grader that gives this.
fn graded(reward: &str) -> String {
    PLAIN.replace(
        "ctx.set_reward(1.0 if ctx.label in ctx.sample.messages[-1][\"content\"].split() else 0.0)",
        &format!("ctx.set_reward({reward})"),
    )
}

/// The numbers of the rewards, wherever they stand.
fn reward_numbers(value: &Value) -> Option<&Value> {
    match value {
        Value::Object(fields) => fields
            .get("reward")
            .filter(|reward| reward.get("mean").is_some())
            .or_else(|| fields.values().find_map(reward_numbers)),
        Value::Array(items) => items.iter().find_map(reward_numbers),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

#[test]
fn a_reward_that_sums_could_not_hold_leaves_the_rollout_ungraded() {
    let workspace = Workspace::new(&graded("1.7e308"), ECHO_SCRIPT, &echo_rows(2));
    workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["ungraded", "ungraded"]);
    let error = workspace.index()[0]["error"].as_str().unwrap().to_owned();
    let told = "a reward must be a finite number between -1e15 and 1e15, not `1.7e+308`";
    assert!(error.contains(told), "{error}");
}

#[test]
fn the_largest_rewards_are_reported_and_compared_in_finite_numbers() {
    let reward = "1e15 if int(ctx.label) % 2 else -1e15";
    let workspace = Workspace::new(&graded(reward), ECHO_SCRIPT, &echo_rows(6));
    workspace.submit(&[]).expect(0);
    workspace.write(
        "rollouts/r/main.py",
        &graded("-1e15 if int(ctx.label) % 3 else 1e15"),
    );
    let python = python_environment::python();
    let again = ["eval", "submit", "configs/eval/c.toml", "--name", "u"];
    workspace
        .osmosis(&[&again[..], &["--python", python.as_str()]].concat())
        .expect(0);
    let info = workspace
        .osmosis(&["eval", "info", "t", "--json"])
        .expect(0);
    let info = info.json();
    let numbers = reward_numbers(&info).unwrap();
    for name in ["mean", "min", "median", "max"] {
        assert!(numbers[name].is_f64(), "{name}: {numbers}");
    }
    let interval = numbers["ci95"].as_array().unwrap();
    assert!(interval.iter().all(Value::is_f64), "{numbers}");
    workspace
        .osmosis(&["eval", "compare", "t", "u", "--json"])
        .expect(0)
        .json();
    let text = workspace.osmosis(&["eval", "compare", "t", "u"]).expect(0);
    let odd = |word: &str| word.contains("NaN") || word.trim_matches(['[', ']', ',', '-']) == "inf";
    assert!(!text.stdout.split_whitespace().any(odd), "{}", text.stdout);
}

#[test]
fn the_largest_rewards_can_be_trained_on() {
    let main = CHECKSUM.replace("% 5 / 4", "% 5 * 5e14 - 1e15");
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(4));
    workspace.training("builtin/tiny", "steps = 1", "");
    workspace.train(&[]).expect(0);
    let steps = metrics(&workspace);
    let last = steps.last().unwrap().as_object().unwrap();
    assert!(
        last["reward/mean"].as_f64().unwrap().abs() > 1e10,
        "{last:?}"
    );
    for (name, value) in last {
        let computed = ["reward/", "loss", "grad", "advantage", "policy"];
        if computed.iter().any(|part| name.contains(part)) {
            assert!(!value.is_null(), "{name}: {last:?}");
        }
    }
}
