//! What people see when a config is wrong, and what programs get when it is right.

mod overrides;
mod problems;
mod tables;

use insta::assert_snapshot;

use super::*;

const EXPERIMENT: &str = r#"[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "openai/gpt-5"
dataset = "multiply"
"#;

/// The rendered problems of an evaluation config, which must have some.
fn eval_errors(text: &str) -> String {
    EvalConfig::parse("eval.toml".into(), text)
        .expect_err("the config was accepted")
        .render()
}

/// The same below a sound `[experiment]`, whose five lines come first.
fn eval_errors_with(rest: &str) -> String {
    eval_errors(&format!("{EXPERIMENT}{rest}"))
}

fn train_errors_with(rest: &str) -> String {
    TrainConfig::parse("train.toml".into(), &format!("{EXPERIMENT}{rest}"))
        .expect_err("the config was accepted")
        .render()
}

fn experiment_errors(key: &str, value: &str) -> String {
    let text: String = EXPERIMENT
        .lines()
        .map(|line| {
            if line.starts_with(key) {
                format!("{key} = {value}\n")
            } else {
                format!("{line}\n")
            }
        })
        .collect();
    eval_errors(&text)
}

fn eval(rest: &str) -> EvalConfig {
    EvalConfig::parse("eval.toml".into(), &format!("{EXPERIMENT}{rest}")).unwrap()
}

fn train(rest: &str) -> TrainConfig {
    TrainConfig::parse("train.toml".into(), &format!("{EXPERIMENT}{rest}")).unwrap()
}

#[test]
fn a_minimal_evaluation_has_every_default() {
    let config = eval("");
    assert_snapshot!(serde_json::to_string_pretty(&config).unwrap(), @r#"
    {
      "experiment": {
        "rollout": "multiply",
        "entrypoint": "main.py",
        "model_path": "openai/gpt-5",
        "dataset": "multiply",
        "branch": null,
        "commit_sha": null,
        "chat_template": null,
        "tool_format": null
      },
      "evaluation": {
        "limit": null,
        "n": 1,
        "batch_size": null,
        "pass_threshold": 1.0,
        "agent_workflow_timeout_s": 450.0,
        "grader_timeout_s": 150.0
      },
      "sampling": {
        "rollout_temperature": null,
        "rollout_top_p": null
      },
      "workflow": {},
      "grader": {},
      "judge_model": null,
      "env": {},
      "secrets": {
        "required": []
      },
      "advanced": {}
    }
    "#);
    assert_eq!(format!("{:?}", config.sampling.temperature()), "1.0");
    assert_eq!(format!("{:?}", config.sampling.top_p()), "1.0");
}

#[test]
fn a_minimal_training_has_every_default() {
    let config = train("");
    assert_snapshot!(serde_json::to_string_pretty(&config).unwrap(), @r#"
    {
      "experiment": {
        "rollout": "multiply",
        "entrypoint": "main.py",
        "model_path": "openai/gpt-5",
        "dataset": "multiply",
        "branch": null,
        "commit_sha": null,
        "chat_template": null,
        "tool_format": null
      },
      "training": {
        "lr": 1e-6,
        "total_epochs": 1,
        "n_samples_per_prompt": 8,
        "rollout_batch_size": 32,
        "max_prompt_length": 8192,
        "max_response_length": 8192,
        "agent_workflow_timeout_s": 450.0,
        "grader_timeout_s": 150.0,
        "algorithm": "grpo",
        "max_staleness": 0,
        "clip_ratio": 0.2,
        "kl_coef": 0.0,
        "updates_per_batch": 1,
        "seed": null,
        "steps": null,
        "held_out": null,
        "incomplete_groups": "drop"
      },
      "sampling": {
        "rollout_temperature": null,
        "rollout_top_p": null
      },
      "checkpoints": {
        "eval_interval": 10,
        "checkpoint_save_freq": 20
      },
      "workflow": {},
      "grader": {},
      "judge_model": null,
      "env": {},
      "secrets": {
        "required": []
      },
      "advanced": {}
    }
    "#);
}

#[test]
fn every_key_of_an_evaluation_is_read() {
    let config = eval(
        r#"commit_sha = "ABCDEF0123"
chat_template = "templates/chat.jinja"
tool_format = "hermes"
[evaluation]
limit = 10
n = 4
batch_size = 16
pass_threshold = 1
agent_workflow_timeout_s = 0.5
grader_timeout_s = 20
[sampling]
rollout_temperature = 0
rollout_top_p = 0.9
[workflow]
name = "multiply"
since = 1979-05-27T07:32:00Z
nested.deep = [1, 2.5, true, { a = "b" }]
[workflow.table]
x = 1
[[workflow.tables]]
y = 2
[grader]
tolerance = 0.01
[env]
LOG_LEVEL = "debug"
_PRIVATE1 = ""
[secrets]
required = ["SEARCH_KEY", "DB2"]
[advanced]
anything = { goes = "here" }
"#,
    );
    assert_snapshot!(serde_json::to_string(&config).unwrap(), @r#"{"experiment":{"rollout":"multiply","entrypoint":"main.py","model_path":"openai/gpt-5","dataset":"multiply","branch":null,"commit_sha":"abcdef0123","chat_template":"templates/chat.jinja","tool_format":"hermes"},"evaluation":{"limit":10,"n":4,"batch_size":16,"pass_threshold":1.0,"agent_workflow_timeout_s":0.5,"grader_timeout_s":20.0},"sampling":{"rollout_temperature":0.0,"rollout_top_p":0.9},"workflow":{"name":"multiply","since":"1979-05-27T07:32:00Z","nested":{"deep":[1,2.5,true,{"a":"b"}]},"table":{"x":1},"tables":[{"y":2}]},"grader":{"tolerance":0.01},"judge_model":null,"env":{"LOG_LEVEL":"debug","_PRIVATE1":""},"secrets":{"required":["SEARCH_KEY","DB2"]},"advanced":{"anything":{"goes":"here"}}}"#);
    assert_eq!(format!("{:?}", config.sampling.temperature()), "0.0");
    assert_eq!(format!("{:?}", config.sampling.top_p()), "0.9");
    assert_eq!(config.evaluation.agent_timeout().as_millis(), 500);
    assert_eq!(config.evaluation.grader_timeout().as_secs(), 20);
}

#[test]
fn every_key_of_a_training_is_read() {
    let config = train(
        r#"branch = "main"
[training]
lr = 1e-5
total_epochs = 2
n_samples_per_prompt = 4
rollout_batch_size = 16
max_prompt_length = 100
max_response_length = 200
agent_workflow_timeout_s = 30
grader_timeout_s = 10
algorithm = "grpo"
max_staleness = 2
clip_ratio = 0.3
kl_coef = 0.01
updates_per_batch = 3
seed = 0
steps = 50
eval_dataset = "held_out"
incomplete_groups = "keep"
[sampling]
rollout_temperature = 0.7
[checkpoints]
eval_interval = 5
checkpoint_save_freq = 7
"#,
    );
    assert_snapshot!(serde_json::to_string(&config).unwrap(), @r#"{"experiment":{"rollout":"multiply","entrypoint":"main.py","model_path":"openai/gpt-5","dataset":"multiply","branch":"main","commit_sha":null,"chat_template":null,"tool_format":null},"training":{"lr":0.00001,"total_epochs":2,"n_samples_per_prompt":4,"rollout_batch_size":16,"max_prompt_length":100,"max_response_length":200,"agent_workflow_timeout_s":30.0,"grader_timeout_s":10.0,"algorithm":"grpo","max_staleness":2,"clip_ratio":0.3,"kl_coef":0.01,"updates_per_batch":3,"seed":0,"steps":50,"held_out":{"dataset":"held_out"},"incomplete_groups":"keep"},"sampling":{"rollout_temperature":0.7,"rollout_top_p":null},"checkpoints":{"eval_interval":5,"checkpoint_save_freq":7},"workflow":{},"grader":{},"judge_model":null,"env":{},"secrets":{"required":[]},"advanced":{}}"#);
    assert_eq!(
        train("[training]\neval_fraction = 0.1").training.held_out,
        Some(HeldOut::Fraction(0.1))
    );
}

#[test]
fn overlap_is_allowed_by_those_who_mean_it_and_pinned_then() {
    let pinned = |text: &str| serde_json::to_value(train(text).training).unwrap();
    assert_eq!(
        pinned("[training]\nallow_overlap = true")["allow_overlap"],
        true
    );
    let without = pinned("[training]\nallow_overlap = false");
    assert_eq!(
        without.get("allow_overlap"),
        None,
        "runs from before resume"
    );
    assert_snapshot!(train_errors_with("[training]\nallow_overlap = 'yes'\n"), @"train.toml:7:17: `allow_overlap` in `[training]` must be `true` or `false`, found a string");
}

#[test]
fn the_decoupled_objective_has_a_cap_and_the_clipped_one_is_not_pinned() {
    for (text, cap) in [("", 5.0), ("behaviour_weight_cap = 2\n", 2.0)] {
        let config = train(&format!("[training]\nobjective = 'decoupled'\n{text}"));
        assert_eq!(
            config.training.objective,
            Objective::Decoupled {
                behaviour_weight_cap: cap
            }
        );
        assert_eq!(
            serde_json::to_value(&config).unwrap()["training"]["objective"],
            serde_json::json!({"decoupled": {"behaviour_weight_cap": cap}})
        );
    }
    // Runs from before there was a choice resume.
    let clipped = train("[training]\nobjective = 'clipped'");
    assert_eq!(clipped, train("[training]"));
    let pinned = serde_json::to_value(&clipped).unwrap();
    assert_eq!(pinned["training"].get("objective"), None);
}

#[test]
fn a_cap_without_the_decoupled_objective_is_refused() {
    assert_snapshot!(train_errors_with("[training]\nbehaviour_weight_cap = 2\n"), @r#"
    train.toml:7:1: `behaviour_weight_cap` in `[training]`: only the decoupled objective has such a cap
      hint: write `objective = "decoupled"` too, or leave it out
    "#);
    assert_snapshot!(train_errors_with("[training]\nobjective = 'clipped'\nbehaviour_weight_cap = 2\n"), @r#"
    train.toml:8:1: `behaviour_weight_cap` in `[training]`: only the decoupled objective has such a cap
      hint: write `objective = "decoupled"` too, or leave it out
    "#);
    assert_snapshot!(train_errors_with("[training]\nobjective = 'coupled'\nbehaviour_weight_cap = 1\nbehavior_weight_cap = 2\n"), @r"
    train.toml:7:13: `objective` in `[training]`: unknown value `coupled`
      hint: write `clipped`, `decoupled`, `gspo` or `cispo`
    train.toml:8:24: `behaviour_weight_cap` in `[training]` must be more than 1 and finite, not `1`
    train.toml:9:1: unknown key `behavior_weight_cap` in `[training]`
      hint: did you mean `behaviour_weight_cap`?
    ");
}

#[test]
fn whose_model_errors_are_is_declared_and_pinned_only_when_it_is_the_agents() {
    let agents = eval("[evaluation]\nmodel_errors = 'agent'");
    assert_eq!(agents.evaluation.model_errors, ModelErrors::Agent);
    let pinned = serde_json::to_value(&agents).unwrap();
    assert_eq!(pinned["evaluation"]["model_errors"], "agent");
    let usual = eval("[evaluation]\nmodel_errors = 'infrastructure'");
    assert_eq!(usual, eval("[evaluation]"));
    let pinned = serde_json::to_value(&usual).unwrap();
    assert_eq!(pinned["evaluation"].get("model_errors"), None);

    let agents = train("[training]\nmodel_errors = 'agent'");
    let pinned = serde_json::to_value(&agents).unwrap();
    assert_eq!(pinned["training"]["model_errors"], "agent");
    let pinned = serde_json::to_value(train("[training]")).unwrap();
    assert_eq!(pinned["training"].get("model_errors"), None);

    assert_snapshot!(train_errors_with("[training]\nmodel_errors = 'mine'\n"), @r"
    train.toml:7:16: `model_errors` in `[training]`: unknown value `mine`
      hint: write `infrastructure` or `agent`
    ");
    assert_snapshot!(eval_errors_with("[evaluation]\nmodel_errors = true\n"), @"eval.toml:7:16: `model_errors` in `[evaluation]` must be a string, found a boolean");
}
