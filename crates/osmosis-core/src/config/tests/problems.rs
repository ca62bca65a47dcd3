//! What is said of files that can't be read: syntax, names, types and ranges.

use insta::assert_snapshot;

use super::*;

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
