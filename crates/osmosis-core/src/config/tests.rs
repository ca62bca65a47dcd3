//! What people see when a config is wrong, and what programs get when it is right.

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

#[test]
fn sections_may_be_written_as_inline_tables_or_dotted_keys() {
    let text = r#"sampling = { rollout_top_p = 0.5 }
evaluation.n = 3
experiment = { rollout = "a", entrypoint = "main.py", model_path = "x", dataset = "d" }
"#;
    let config = EvalConfig::parse("eval.toml".into(), text).unwrap();
    assert_eq!(config.evaluation.n, 3);
    assert_eq!(config.sampling.rollout_top_p, Some(0.5));
}

#[test]
fn every_problem_is_reported_at_once_in_the_order_of_the_file() {
    assert_snapshot!(eval_errors(r#"rollout = "multiply"
[experiment]
rollout = "a/b"
entrypoint = "../main.py"
dataset = 7
[evaluations]
n = 1
[evaluation]
n = 0
batchsize = 2
lr = 1e-6
rollout_temperature = 1.0
timeout = 3
grader_timeout_s = inf
[sampling]
temperature = 0.5
[training]
[env]
debug = true
"#), @r#"
    eval.toml:1:1: unknown key `rollout` outside of any section
      hint: `rollout` belongs in `[experiment]`
    eval.toml:2:1: missing key `model_path` in `[experiment]`
      hint: add `model_path = "openai/MODEL"` to `[experiment]`
    eval.toml:3:11: `rollout` in `[experiment]`: rollout name `a/b` must be one path segment of letters, digits, `.`, `_` and `-`
      hint: name a folder directly below `rollouts/`
    eval.toml:4:14: `entrypoint` in `[experiment]`: `../main.py` leaves the rollout's folder
      hint: write a path relative to `rollouts/NAME/`, without `..`
    eval.toml:5:11: `dataset` in `[experiment]` must be a string, found an integer
    eval.toml:6:1: unknown section `[evaluations]`
      hint: did you mean `[evaluation]`?
    eval.toml:9:5: `n` in `[evaluation]` must be at least 1, not `0`
    eval.toml:10:1: unknown key `batchsize` in `[evaluation]`
      hint: did you mean `batch_size`?
    eval.toml:11:1: unknown key `lr` in `[evaluation]`
      hint: `lr` belongs in `[training]` of a training config
    eval.toml:12:1: unknown key `rollout_temperature` in `[evaluation]`
      hint: `rollout_temperature` belongs in `[sampling]`
    eval.toml:13:1: unknown key `timeout` in `[evaluation]`
      hint: did you mean `agent_workflow_timeout_s`?
    eval.toml:14:20: `grader_timeout_s` in `[evaluation]` must be more than 0 and at most 31536000, not `inf`
    eval.toml:16:1: unknown key `temperature` in `[sampling]`
      hint: did you mean `rollout_temperature`?
    eval.toml:17:1: unknown section `[training]`
      hint: it belongs in a training config; remove it here
    eval.toml:19:1: `debug` in `[env]`: a variable's name is capital letters, digits and `_`, and starts with no digit
      hint: write `DEBUG`
    eval.toml:19:9: `debug` in `[env]` must be a string, found a boolean
      hint: quote it: `debug = "true"`
    "#);
}

#[test]
fn broken_toml_is_reported_where_it_breaks() {
    assert_snapshot!(eval_errors("[experiment]\nrollout = \"a\nentrypoint = 1\n"), @r#"eval.toml:2:13: invalid basic string, expected `"`"#);
    assert_snapshot!(eval_errors("[experiment\n"), @"eval.toml:1:12: unclosed table, expected `]`");
    assert_snapshot!(eval_errors("[experiment]\nrollout = \n"), @"eval.toml:2:11: string values must be quoted, expected literal string");
    assert_snapshot!(eval_errors("[experiment]\nrollout = \"a\"\nrollout = \"b\"\n"), @"eval.toml:3:1: duplicate key");
    assert_snapshot!(eval_errors("[experiment]\n[experiment]\n"), @"eval.toml:2:2: duplicate key");
    assert_snapshot!(eval_errors("é = nope"), @"eval.toml:1:1: invalid unquoted key, expected letters, numbers, `-`, `_`");
}

#[test]
fn an_empty_file_lacks_its_required_section() {
    assert_snapshot!(eval_errors(""), @r"
    eval.toml:1:1: missing section `[experiment]`
      hint: add `[experiment]` with `rollout`, `entrypoint`, `model_path` and `dataset`
    ");
    assert_snapshot!(eval_errors("[experiment]\n"), @r#"
    eval.toml:1:1: missing key `rollout` in `[experiment]`
      hint: add `rollout = "NAME"` to `[experiment]`
    eval.toml:1:1: missing key `entrypoint` in `[experiment]`
      hint: add `entrypoint = "main.py"` to `[experiment]`
    eval.toml:1:1: missing key `model_path` in `[experiment]`
      hint: add `model_path = "openai/MODEL"` to `[experiment]`
    eval.toml:1:1: missing key `dataset` in `[experiment]`
      hint: add `dataset = "data/FILE.jsonl"` to `[experiment]`
    "#);
    assert_snapshot!(eval_errors("experiment = 3\n"), @"eval.toml:1:1: section `[experiment]` must be a table, found an integer");
    assert_snapshot!(eval_errors("[[experiment]]\n"), @"eval.toml:1:3: section `[experiment]` must be a table, found an array of tables");
}

#[test]
fn a_config_of_the_other_kind_is_recognised() {
    assert_snapshot!(eval_errors_with("[training]\nlr = 1e-6\n[checkpoints]\n"), @r"
    eval.toml:6:1: this is a training config: it has `[training]` and no `[evaluation]`
      hint: use `osmosis train submit`
    ");
    assert_snapshot!(train_errors_with("[evaluation]\nn = 4\n"), @r"
    train.toml:6:1: this is an evaluation config: it has `[evaluation]` and no `[training]`
      hint: use `osmosis eval submit`
    ");
    assert_snapshot!(eval_errors_with("[evaluation]\n[checkpoints]\neval_interval = 1\n"), @r"
    eval.toml:7:1: unknown section `[checkpoints]`
      hint: it belongs in a training config; remove it here
    ");
    assert_snapshot!(train_errors_with("[training]\nbatch_size = 1\n[evaluation]\n"), @r"
    train.toml:7:1: unknown key `batch_size` in `[training]`
      hint: did you mean `rollout_batch_size`?
    train.toml:8:1: unknown section `[evaluation]`
      hint: it belongs in an evaluation config; remove it here
    ");
}

#[test]
fn how_rollouts_are_kept_apart_is_declared_and_pinned_only_when_they_have_processes_of_their_own() {
    let pinned = |config: &EvalConfig| serde_json::to_value(config).unwrap();
    let apart = eval("[workers]\nisolation = 'process'");
    assert_eq!(apart.workers.isolation, WorkerIsolation::Process);
    assert_eq!(pinned(&apart)["workers"]["isolation"], "process");
    let together = eval("[workers]\nisolation = 'shared'");
    assert_eq!(together, eval(""));
    assert_eq!(pinned(&together).get("workers"), None);
    let trained = train("[workers]\nisolation = 'process'");
    assert_eq!(trained.workers, apart.workers);
    assert_snapshot!(eval_errors_with("[workers]\nisolation = 'vm'\n"), @r"
    eval.toml:7:13: `isolation` in `[workers]`: unknown value `vm`
      hint: write `shared` or `process`
    ");
}

#[test]
fn unknown_names_come_with_the_nearest_known_one() {
    assert_snapshot!(eval_errors_with("[evaluation]\nBatch-Size = 1\nagent_timeout_s = 1\nmodel_path = 'x'\nzebra = 1\n"), @r"
    eval.toml:7:1: unknown key `Batch-Size` in `[evaluation]`
      hint: did you mean `batch_size`?
    eval.toml:8:1: unknown key `agent_timeout_s` in `[evaluation]`
      hint: did you mean `agent_workflow_timeout_s`?
    eval.toml:9:1: unknown key `model_path` in `[evaluation]`
      hint: `model_path` belongs in `[experiment]`
    eval.toml:10:1: unknown key `zebra` in `[evaluation]`
      hint: `[evaluation]` takes `limit`, `n`, `batch_size`, `pass_threshold`, `reward_range`, `agent_workflow_timeout_s`, `grader_timeout_s` and `model_errors`
    ");
    assert_snapshot!(eval_errors_with("[smapling]\n[zebra]\n[workflows]\n[[tests]]\n"), @r"
    eval.toml:6:1: unknown section `[smapling]`
      hint: did you mean `[sampling]`?
    eval.toml:7:1: unknown section `[zebra]`
      hint: the sections are `experiment`, `dataset.columns`, `evaluation`, `sampling`, `workflow`, `grader`, `env`, `secrets`, `logs`, `workers` and `advanced`
    eval.toml:8:1: unknown section `[workflows]`
      hint: did you mean `[workflow]`?
    eval.toml:9:3: unknown section `[tests]`
      hint: the sections are `experiment`, `dataset.columns`, `evaluation`, `sampling`, `workflow`, `grader`, `env`, `secrets`, `logs`, `workers` and `advanced`
    ");
    assert_snapshot!(train_errors_with("[training]\nlearning_rate = 1\nn = 4\nn_samples = 4\nsave_freq = 1\n"), @r"
    train.toml:7:1: unknown key `learning_rate` in `[training]`
      hint: did you mean `lr`?
    train.toml:8:1: unknown key `n` in `[training]`
      hint: did you mean `n_samples_per_prompt`?
    train.toml:9:1: unknown key `n_samples` in `[training]`
      hint: did you mean `n_samples_per_prompt`?
    train.toml:10:1: unknown key `save_freq` in `[training]`
      hint: did you mean `checkpoint_save_freq` in `[checkpoints]`?
    ");
    assert_snapshot!(eval_errors_with("[secrets]\nrequire = []\n"), @r"
    eval.toml:7:1: unknown key `require` in `[secrets]`
      hint: did you mean `required`?
    ");
    assert_snapshot!(eval_errors("zebra = 1\n[experiment]\nrollout = 'a'\nentrypoint = 'a.py'\nmodel_path = 'm'\ndataset = 'd'\n"), @"eval.toml:1:1: unknown key `zebra` outside of any section");
}

#[test]
fn a_wrong_type_says_what_was_expected_and_found() {
    assert_snapshot!(eval_errors_with("[evaluation]\nlimit = '3'\nn = 1.0\npass_threshold = true\nbatch_size = [1]\nagent_workflow_timeout_s = { s = 1 }\ngrader_timeout_s = 1979-05-27\n"), @r"
    eval.toml:7:9: `limit` in `[evaluation]` must be an integer, found a string
    eval.toml:8:5: `n` in `[evaluation]` must be an integer, found a float
    eval.toml:9:18: `pass_threshold` in `[evaluation]` must be a number, found a boolean
    eval.toml:10:14: `batch_size` in `[evaluation]` must be an integer, found an array
    eval.toml:11:28: `agent_workflow_timeout_s` in `[evaluation]` must be a number, found a table
    eval.toml:12:20: `grader_timeout_s` in `[evaluation]` must be a number, found a datetime
    ");
    assert_snapshot!(experiment_errors("rollout", "['a']"), @"eval.toml:2:11: `rollout` in `[experiment]` must be a string, found an array");
    assert_snapshot!(eval_errors_with("[secrets]\nrequired = 'KEY'\n"), @"eval.toml:7:12: `required` in `[secrets]` must be an array of strings, found a string");
}

#[test]
fn numbers_out_of_range_say_the_range() {
    assert_snapshot!(eval_errors_with("[evaluation]\nlimit = 0\nn = -1\nbatch_size = 4294967296\npass_threshold = nan\nagent_workflow_timeout_s = 0\ngrader_timeout_s = 1e300\n[sampling]\nrollout_temperature = -0.1\nrollout_top_p = 0\n"), @r"
    eval.toml:7:9: `limit` in `[evaluation]` must be at least 1, not `0`
    eval.toml:8:5: `n` in `[evaluation]` must be at least 1, not `-1`
    eval.toml:9:14: `batch_size` in `[evaluation]` must be at most 4294967295, not `4294967296`
    eval.toml:10:18: `pass_threshold` in `[evaluation]` must be finite, not `nan`
    eval.toml:11:28: `agent_workflow_timeout_s` in `[evaluation]` must be more than 0 and at most 31536000, not `0`
    eval.toml:12:20: `grader_timeout_s` in `[evaluation]` must be more than 0 and at most 31536000, not `1e300`
    eval.toml:14:23: `rollout_temperature` in `[sampling]` must be at least 0 and finite, not `-0.1`
    eval.toml:15:17: `rollout_top_p` in `[sampling]` must be more than 0 and at most 1, not `0`
    ");
    assert_snapshot!(train_errors_with("[training]\nlr = 0\nclip_ratio = -1\nkl_coef = -1\neval_fraction = 1\nmax_staleness = -1\nsteps = 0\nn_samples_per_prompt = 1\n[sampling]\nrollout_temperature = 0\nrollout_top_p = 1.5\n[checkpoints]\neval_interval = 0\n"), @r"
    train.toml:7:6: `lr` in `[training]` must be more than 0 and finite, not `0`
    train.toml:8:14: `clip_ratio` in `[training]` must be more than 0 and finite, not `-1`
    train.toml:9:11: `kl_coef` in `[training]` must be at least 0 and finite, not `-1`
    train.toml:10:17: `eval_fraction` in `[training]` must be more than 0 and less than 1, not `1`
    train.toml:11:17: `max_staleness` in `[training]` must be at least 0, not `-1`
    train.toml:12:9: `steps` in `[training]` must be at least 1, not `0`
    train.toml:13:24: `n_samples_per_prompt` in `[training]` must be at least 2, not `1`
    train.toml:15:23: `rollout_temperature` in `[sampling]` must be more than 0 and finite, not `0`
    train.toml:16:17: `rollout_top_p` in `[sampling]` must be more than 0 and at most 1, not `1.5`
    train.toml:18:17: `eval_interval` in `[checkpoints]` must be at least 1, not `0`
    ");
}

#[test]
fn a_reward_range_is_two_finite_numbers_that_go_up() {
    let config = eval("[evaluation]\nreward_range = [-1, 2.5]\n");
    let range = crate::RewardRange::new(-1.0, 2.5).ok();
    assert_eq!(config.evaluation.reward_range, range);
    let config = train("[training]\nreward_range = [0, 1]\n");
    assert_eq!(config.training.reward_range, Some(crate::RewardRange::UNIT));
    let errors = |value: &str| eval_errors_with(&format!("[evaluation]\nreward_range = {value}\n"));
    assert_snapshot!(errors("1"), @"eval.toml:7:16: `reward_range` in `[evaluation]` must be an array of two numbers, found an integer");
    assert_snapshot!(errors("[0]"), @r"
    eval.toml:7:16: `reward_range` in `[evaluation]`: must be an array of two numbers, not `[0]`
      hint: write the lowest and the highest reward that the grader gives, like `[0, 1]`
    ");
    assert_snapshot!(errors("[0, '1']"), @r"
    eval.toml:7:16: `reward_range` in `[evaluation]`: must be an array of two numbers, not `[0, '1']`
      hint: write the lowest and the highest reward that the grader gives, like `[0, 1]`
    ");
    assert_snapshot!(errors("[1, 0]"), @r"
    eval.toml:7:16: `reward_range` in `[evaluation]`: the lower end must be below the upper end, and both finite, not `[1, 0]`
      hint: write the lowest and the highest reward that the grader gives, like `[0, 1]`
    ");
    assert_snapshot!(errors("[0, inf]"), @r"
    eval.toml:7:16: `reward_range` in `[evaluation]`: the lower end must be below the upper end, and both finite, not `[0, inf]`
      hint: write the lowest and the highest reward that the grader gives, like `[0, 1]`
    ");
    assert_snapshot!(train_errors_with("[training]\nreward_range = [1, 1]\n"), @r"
    train.toml:7:16: `reward_range` in `[training]`: the lower end must be below the upper end, and both finite, not `[1, 1]`
      hint: write the lowest and the highest reward that the grader gives, like `[0, 1]`
    ");
}

#[test]
fn a_list_of_names_is_a_sentence() {
    let listed = |names: &[&'static str]| super::error::listed(names.iter().copied(), "and");
    assert_eq!(listed(&[]), "");
    assert_eq!(listed(&["a"]), "`a`");
    assert_eq!(listed(&["a", "b", "c"]), "`a`, `b` and `c`");
}

#[test]
fn words_out_of_a_few_are_listed() {
    assert_snapshot!(train_errors_with("[training]\nalgorithm = 'ppo'\nincomplete_groups = 'maybe'\neval_dataset = 'x'\neval_fraction = 0.5\n"), @r"
    train.toml:7:13: `algorithm` in `[training]`: unknown value `ppo`
      hint: write `grpo`, `dr_grpo`, `rloo`, `reinforce_plus_plus` or `reinforce_plus_plus_baseline`
    train.toml:8:21: `incomplete_groups` in `[training]`: unknown value `maybe`
      hint: write `drop` or `keep`
    train.toml:10:1: `eval_dataset` and `eval_fraction` in `[training]` exclude each other
      hint: keep one of the two
    ");
}

#[test]
fn rloo_makes_one_update_per_batch() {
    let errors = train_errors_with(
        "[training]\nalgorithm = 'rloo'\nupdates_per_batch = 2\nflat_groups = 'drop'\n",
    );
    assert!(
        errors.contains("train.toml:8:1: `updates_per_batch` in `[training]`"),
        "{errors}"
    );
    assert!(
        errors.contains("`rloo` makes one update per batch"),
        "{errors}"
    );
    assert!(
        errors.contains("hint: write `updates_per_batch = 1`"),
        "{errors}"
    );
    assert!(
        errors.contains("hint: write `replace` or `keep`"),
        "{errors}"
    );
    for fine in [
        "algorithm = 'rloo'\nupdates_per_batch = 1",
        "algorithm = 'rloo'",
        "updates_per_batch = 2",
    ] {
        train(&format!("[training]\n{fine}\n"));
    }
}

#[test]
fn the_rollout_and_its_entrypoint_stay_in_their_folder() {
    assert_snapshot!(experiment_errors("rollout", "'../other'"), @r"
    eval.toml:2:11: `rollout` in `[experiment]`: rollout name `../other` must be one path segment of letters, digits, `.`, `_` and `-`
      hint: name a folder directly below `rollouts/`
    ");
    assert_snapshot!(experiment_errors("entrypoint", "'/main.py'"), @r"
    eval.toml:3:14: `entrypoint` in `[experiment]`: `/main.py` leaves the rollout's folder
      hint: write a path relative to `rollouts/NAME/`, without `..`
    ");
    assert_snapshot!(experiment_errors("entrypoint", "'main'"), @r"
    eval.toml:3:14: `entrypoint` in `[experiment]`: `main` is neither a `.py` file nor a `Cargo.toml`
      hint: write `main.py`, `main.py:Name`, `Cargo.toml` or `Cargo.toml#bin`
    ");
    assert_snapshot!(experiment_errors("entrypoint", "'main.py:not a name'"), @r"
    eval.toml:3:14: `entrypoint` in `[experiment]`: `not a name` is no Python name
      hint: after the `:`, name a class or object of the file
    ");
    assert_snapshot!(experiment_errors("entrypoint", "' '"), @"eval.toml:3:14: `entrypoint` in `[experiment]`: must not be empty");
}

#[test]
fn models_and_datasets_that_can_not_be_are_refused() {
    assert_snapshot!(experiment_errors("model_path", "'run:calc@first'"), @r"
    eval.toml:4:14: `model_path` in `[experiment]`: `@first` is not a checkpoint
      hint: write `@latest`, `@best` or a step such as `@120`
    ");
    assert_snapshot!(experiment_errors("model_path", "'openai/'"), @r"
    eval.toml:4:14: `model_path` in `[experiment]`: `openai/` names no model
      hint: write `openai/MODEL`
    ");
    assert_snapshot!(experiment_errors("dataset", "'../'"), @r"
    eval.toml:5:11: `dataset` in `[experiment]`: `../` names a folder
      hint: name a `.jsonl`, `.csv` or `.parquet` file
    ");
}

#[test]
fn a_chat_template_and_a_tool_format_are_checked_in_place() {
    assert_snapshot!(eval_errors_with("tool_format = 'xml'\nchat_template = 'templates/'\n"), @r"
    eval.toml:6:15: `tool_format` in `[experiment]`: unknown tool format `xml`
      hint: write `hermes`
    eval.toml:7:17: `chat_template` in `[experiment]`: `templates/` is not a file name
      hint: name a file from the workspace, like `templates/chat.jinja`
    ");
    assert_snapshot!(eval_errors_with("tool_format = 1\n"), @"eval.toml:6:15: `tool_format` in `[experiment]` must be a string, found an integer");
    let scripted = "[experiment]\nrollout = 'r'\nentrypoint = 'main.py'\nmodel_path = 'script:p.toml'\ndataset = 'd'\nchat_template = 'x.jinja'\n";
    let told = EvalConfig::parse("eval.toml".into(), scripted)
        .unwrap_err()
        .render();
    assert_snapshot!(told.trim_end(), @r"
    eval.toml:6:1: `chat_template` in `[experiment]`: a scripted policy renders no prompts
      hint: remove it, or set another `model_path`
    ");
}

#[test]
fn the_source_is_pinned_by_branch_or_commit() {
    assert_snapshot!(eval_errors_with("branch = 'main'\ncommit_sha = 'abcdef0'\n"), @r"
    eval.toml:7:1: `branch` and `commit_sha` in `[experiment]` exclude each other
      hint: keep one of the two
    ");
    assert_snapshot!(eval_errors_with("commit_sha = 'main'\n"), @"eval.toml:6:14: `commit_sha` in `[experiment]`: `main` is not 7 to 64 hex digits");
    for wrong in ["abcdef", "abcdefg", &"a".repeat(65)] {
        let told = eval_errors_with(&format!("commit_sha = '{wrong}'\n"));
        assert!(told.starts_with("eval.toml:6:14: "), "{told}");
        assert!(told.contains("is not 7 to 64 hex digits"), "{told}");
    }
    assert_eq!(
        eval("commit_sha = 'ABCDEF0'")
            .experiment
            .commit_sha
            .as_deref(),
        Some("abcdef0")
    );
}

#[test]
fn variables_have_names_and_text() {
    assert_snapshot!(eval_errors_with("[env]\nLEVEL = 1.50 # verbose\nlog-level = 'a'\n_OSMOSIS_ROLLOUT_PORT = '1'\nPORT = 80\nDEBUG = true\nLIST = []\n1A = ''\nZERO = \"\\u0000\"\n"), @r#"
    eval.toml:7:9: `LEVEL` in `[env]` must be a string, found a float
      hint: quote it: `LEVEL = "1.50"`
    eval.toml:8:1: `log-level` in `[env]`: a variable's name is capital letters, digits and `_`, and starts with no digit
      hint: write `LOG_LEVEL`
    eval.toml:9:1: `_OSMOSIS_ROLLOUT_PORT` in `[env]`: names that start with `_OSMOSIS_` are reserved
    eval.toml:10:8: `PORT` in `[env]` must be a string, found an integer
      hint: quote it: `PORT = "80"`
    eval.toml:11:9: `DEBUG` in `[env]` must be a string, found a boolean
      hint: quote it: `DEBUG = "true"`
    eval.toml:12:8: `LIST` in `[env]` must be a string, found an array
    eval.toml:13:1: `1A` in `[env]`: a variable's name is capital letters, digits and `_`, and starts with no digit
    eval.toml:14:8: `ZERO` in `[env]`: must not contain a zero byte
    "#);
}

#[test]
fn secrets_are_names_that_stand_nowhere_else() {
    assert_snapshot!(eval_errors_with("[env]\nA_KEY = 'x'\n[secrets]\nrequired = ['A_KEY', 'B_KEY', 'B_KEY', '_C', 'd', 3]\n"), @r"
    eval.toml:9:13: `required` in `[secrets]`: `A_KEY` is set in `[env]` too
      hint: a secret's value never stands in the config: remove it from `[env]`
    eval.toml:9:31: `required` in `[secrets]`: `B_KEY` is listed twice
    eval.toml:9:40: `required` in `[secrets]`: `_C` is no secret's name: capital letters, digits and `_`, a letter first
    eval.toml:9:46: `required` in `[secrets]`: `d` is no secret's name: capital letters, digits and `_`, a letter first
      hint: write `D`
    eval.toml:9:51: `required` in `[secrets]` must be an array of strings, found an integer
    ");
}

#[test]
fn optional_secrets_obey_the_same_rules_and_ours_are_never_passed() {
    let config = eval("[secrets]\nrequired = ['A_KEY']\noptional = ['OPENAI_API_KEY']\n");
    assert_eq!(config.secrets.optional, ["OPENAI_API_KEY"]);
    assert_snapshot!(eval_errors_with("[env]\nA_KEY = 'x'\n[secrets]\nrequired = ['B_KEY', 'OSMOSIS_CONTROL_KEY']\noptional = ['A_KEY', 'B_KEY', 'C_KEY', 'c']\n"), @r"
    eval.toml:9:22: `required` in `[secrets]`: `OSMOSIS_CONTROL_KEY` is never passed: names that start with `OSMOSIS_` are reserved
      hint: give your code its value under another name
    eval.toml:10:13: `optional` in `[secrets]`: `A_KEY` is set in `[env]` too
      hint: a secret's value never stands in the config: remove it from `[env]`
    eval.toml:10:22: `optional` in `[secrets]`: `B_KEY` is listed twice
    eval.toml:10:40: `optional` in `[secrets]`: `c` is no secret's name: capital letters, digits and `_`, a letter first
      hint: write `C`
    ");
}

#[test]
fn the_limits_of_the_log_have_defaults_and_are_not_pinned() {
    let config = eval("");
    assert_eq!(config.logs.max_bytes_per_rollout, 1024 * 1024);
    assert_eq!(config.logs.max_bytes_per_run, 1024 * 1024 * 1024);
    let config = train("[logs]\nmax_bytes_per_rollout = 10\nmax_bytes_per_run = 0\n");
    assert_eq!(config.logs.max_bytes_per_rollout, 10);
    assert_eq!(config.logs.max_bytes_per_run, 0);
    assert!(
        !serde_json::to_string(&config)
            .unwrap()
            .contains("max_bytes")
    );
    assert_snapshot!(eval_errors_with("[logs]\nmax_bytes_per_run = -1\nmax_bytes = 1\n"), @r"
    eval.toml:7:21: `max_bytes_per_run` in `[logs]` must be at least 0, not `-1`
    eval.toml:8:1: unknown key `max_bytes` in `[logs]`
      hint: did you mean `max_bytes_per_rollout`?
    ");
}

#[test]
fn what_json_can_not_say_is_refused_where_it_stands() {
    assert_snapshot!(eval_errors_with("[workflow]\na = [1.0, { b = inf }]\n[grader.x]\ny = nan\n"), @r"
    eval.toml:7:17: `a` in `[workflow]`: infinity and NaN have no place in JSON
      hint: write a string and convert it in your code
    eval.toml:9:5: `x` in `[grader]`: infinity and NaN have no place in JSON
      hint: write a string and convert it in your code
    ");
}

#[test]
fn columns_count_characters() {
    assert_snapshot!(eval_errors(&format!("evaluation = {{ 'é' = 1, n = 0 }}\n{EXPERIMENT}")), @r"
    eval.toml:1:16: unknown key `é` in `[evaluation]`
      hint: `[evaluation]` takes `limit`, `n`, `batch_size`, `pass_threshold`, `reward_range`, `agent_workflow_timeout_s`, `grader_timeout_s` and `model_errors`
    eval.toml:1:29: `n` in `[evaluation]` must be at least 1, not `0`
    ");
}

#[test]
fn problems_have_stable_names_for_programs() {
    let errors = EvalConfig::parse("a.toml".into(), "[experiment]\nrolout = 1\n").unwrap_err();
    let codes: Vec<_> = errors.0.iter().map(ConfigError::code).collect();
    assert_eq!(
        codes,
        [
            "missing_key",
            "missing_key",
            "missing_key",
            "missing_key",
            "unknown_key"
        ]
    );
}

#[test]
fn a_judge_is_a_model_and_no_field_of_the_graders_config() {
    let config = eval("[grader]\ntolerance = 0.5\njudge_model = \"ollama/llama3\"\n");
    assert_eq!(config.judge_model.unwrap().to_string(), "ollama/llama3");
    assert_eq!(config.grader.keys().collect::<Vec<_>>(), ["tolerance"]);
    let config = train("[grader]\njudge_model = \"script:judge.toml\"\n");
    assert_eq!(
        config.judge_model,
        Some(ModelPath::Script("judge.toml".into()))
    );
    assert_eq!(config.grader, Map::new());
    assert_snapshot!(eval_errors_with("[grader]\njudge_model = 7\n"), @r"
    eval.toml:7:15: `judge_model` in `[grader]` must be a string, found an integer
    ");
    assert_snapshot!(eval_errors_with("[grader]\njudge_model = \"two words\"\n"), @r"
    eval.toml:7:15: `judge_model` in `[grader]`: `two words` contains spaces or control characters
      hint: a model's name has none
    ");
    assert_snapshot!(eval_errors_with("[evaluation]\njudge_model = \"openai/gpt-5\"\n"), @r"
    eval.toml:7:1: unknown key `judge_model` in `[evaluation]`
      hint: `judge_model` belongs in `[grader]`
    ");
}

#[test]
fn a_config_names_the_columns_of_its_dataset() {
    let columns = "[dataset.columns]\nuser_prompt = 'question'\nground_truth = 'answer'\n";
    let config = eval(columns);
    assert_eq!(
        serde_json::to_value(&config.dataset).unwrap(),
        serde_json::json!({"columns": {"user_prompt": "question", "ground_truth": "answer"}})
    );
    assert_eq!(train(columns).dataset, config.dataset);
    let inline =
        eval("[dataset]\ncolumns = { user_prompt = 'question', ground_truth = 'answer' }\n");
    assert_eq!(inline.dataset, config.dataset);
    // Without it nothing is pinned that older runs don't have.
    let plain = serde_json::to_value(eval("")).unwrap();
    assert_eq!(plain.get("dataset"), None);
}

#[test]
fn columns_that_can_not_be_named_are_reported_where_they_stand() {
    assert_snapshot!(eval_errors_with(
        "[dataset.columns]\nprompt = 'q'\nuser_promt = 'q'\nground_truth = 7\nsystem_prompt = ''\n"
    ));
    assert_snapshot!(eval_errors_with(
        "[dataset.columns]\nuser_prompt = 'q'\nmetadata = 'q'\n"
    ));
    assert_snapshot!(eval_errors_with(
        "[dataset]\nuser_prompt = 'q'\ncolumn = { user_prompt = 'q' }\n"
    ));
    assert_snapshot!(eval_errors_with("[dataset]\ncolumns = 'q'\n"));
    assert_snapshot!(eval_errors_with("[\"dataset.columns\"]\nuser_prompt = 'q'\n"), @r#"
    eval.toml:6:1: unknown section `["dataset.columns"]`
      hint: write `[dataset.columns]`, without quotes
    "#);
}

fn overridden(text: &str, settings: &[&str]) -> ConfigSource {
    ConfigSource {
        file: Some("eval.toml".into()),
        text: text.to_owned(),
        overrides: settings
            .iter()
            .map(|text| Override::parse(text).unwrap())
            .collect(),
    }
}

#[test]
fn overrides_are_checked_like_the_file_and_errors_name_the_flag_or_the_line() {
    let text = format!(
        "{EXPERIMENT}[evaluation]\npass_threshold = \"high\"\n\n[secrets]\nrequired = [\"A\", \"b\"]\n"
    );
    let source = overridden(
        &text,
        &[
            "evaluation.n=0",
            "evaluation.limt=3",
            "experiment.model_path=run:",
            "workflow.style=short",
            "evalution.n=1",
        ],
    );
    assert_snapshot!(EvalConfig::of(&source).unwrap_err().render());
}

#[test]
fn overrides_are_written_into_the_text_that_is_in_effect() {
    let source = overridden(
        EXPERIMENT,
        &[
            "evaluation.n=4",
            "workflow.style=short",
            "experiment.dataset=other",
        ],
    );
    let config = EvalConfig::of(&source).unwrap();
    assert_eq!(config.evaluation.n, 4);
    assert_eq!(config.workflow["style"], "short");
    let text = source.effective_text().unwrap();
    assert_eq!(
        EvalConfig::parse("eval.toml".into(), &text).unwrap(),
        config
    );
    assert_snapshot!(text);
}

#[test]
fn a_key_that_is_set_twice_or_below_a_value_is_told_with_the_flag() {
    let source = overridden(
        EXPERIMENT,
        &["evaluation.n=4", "evaluation.n=5", "experiment.rollout.x=1"],
    );
    assert_snapshot!(EvalConfig::of(&source).unwrap_err().render());
}

#[test]
fn an_override_does_not_hide_that_the_config_is_of_the_other_kind() {
    let source = overridden("[training]\nlr = 1e-3\n", &["evaluation.n=4"]);
    let told = EvalConfig::of(&source).unwrap_err().render();
    assert!(told.contains("use `osmosis train submit`"), "{told}");
}

#[test]
fn without_a_file_every_missing_flag_is_named() {
    let none = ConfigSource::default();
    let some = ConfigSource {
        overrides: vec![
            Override::by_flag("--rollout", "hello", ("experiment", "rollout"), "hello"),
            Override::by_flag("--model", "run:", ("experiment", "model_path"), "run:"),
        ],
        ..ConfigSource::default()
    };
    let told = |source: &ConfigSource| EvalConfig::of(source).unwrap_err().render();
    assert_snapshot!(format!("{}\n\n{}", told(&none), told(&some)));
}

#[test]
fn adapters_have_the_defaults_that_others_use() {
    assert_eq!(train("").training.lora, None);
    let lora = train("[training.lora]\n").training.lora.unwrap();
    assert_eq!(lora, Lora::default());
    assert_snapshot!(serde_json::to_string(&lora).unwrap(), @r#"{"rank":16,"alpha":32.0,"target_modules":["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"],"base":"f32"}"#);
    let text = "[training]\nlr = 1e-4\n[training.lora]\nrank = 4\nalpha = 8\ntarget_modules = ['v_proj', 'q_proj', 'v_proj']\ndropout = 0.0\nbase = 'q8_0'\n";
    let lora = train(text).training.lora.unwrap();
    assert_eq!((lora.rank, lora.scale(), lora.base), (4, 2.0, LoraBase::Q8));
    assert_eq!(lora.target_modules, [LoraModule::QProj, LoraModule::VProj]);
}

#[test]
fn adapters_that_make_no_sense_are_refused() {
    let told = train_errors_with(
        "[training.lora]\nrank = 0\nalpha = 0\ntarget_modules = ['q_proj', 'lm_head']\ndropout = 2\nbase = 'q4'\nlr = 1\n",
    );
    for part in [
        "7:8: `rank` in `[training.lora]` must be at least 1, not `0`",
        "8:9: `alpha` in `[training.lora]` must be",
        "9:29: `target_modules` in `[training.lora]`: there is no module `lm_head`",
        "hint: choose from `q_proj`",
        "10:11: `dropout` in `[training.lora]` must be",
        "11:8: `base` in `[training.lora]`: unknown value `q4`",
        "12:1: unknown key `lr` in `[training.lora]`",
        "hint: `lr` belongs in `[training]`",
    ] {
        assert!(told.contains(part), "{part} is not in:\n{told}");
    }
    let told = train_errors_with("[training]\nlora = 4\nrank = 1\n");
    for part in [
        "section `[training.lora]` must be a table, found an integer",
        "hint: `rank` belongs in `[training.lora]`",
    ] {
        assert!(told.contains(part), "{part} is not in:\n{told}");
    }
    let told = train_errors_with("[training.lora]\ntarget_modules = []\n");
    assert!(told.contains("it names no module"), "{told}");
}

#[test]
fn checkpoints_are_all_kept_unless_numbers_say_otherwise() {
    let checkpoints = train("").checkpoints;
    assert_eq!((checkpoints.keep_last, checkpoints.keep_best), (None, None));
    let checkpoints = train("[checkpoints]\nkeep_last = 2\nkeep_best = 1\n").checkpoints;
    assert_eq!(
        (checkpoints.keep_last, checkpoints.keep_best),
        (Some(2), Some(1))
    );
    assert_snapshot!(train_errors_with("[checkpoints]\nkeep_last = 0\n"), @"train.toml:7:13: `keep_last` in `[checkpoints]` must be at least 1, not `0`");
}
