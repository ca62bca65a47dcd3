//! The rules of single tables and keys.

use insta::assert_snapshot;

use super::*;

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
fn the_user_of_workers_is_a_word_a_name_or_a_number_and_never_pinned() {
    let user = |value: &str| eval(&format!("[workers]\nuser = {value}")).workers.user;
    assert_eq!(user("'auto'"), WorkerUser::Auto);
    assert_eq!(eval("").workers.user, WorkerUser::Auto);
    assert_eq!(user("'same'"), WorkerUser::Same);
    assert_eq!(user("'agents'"), WorkerUser::Named("agents".to_owned()));
    assert_eq!(user("1001"), WorkerUser::Uid(1001));
    assert_eq!(user("'1001'"), WorkerUser::Uid(1001));
    let same = eval("[workers]\nuser = 'same'");
    assert_eq!(
        serde_json::to_value(&same).unwrap(),
        serde_json::to_value(eval("")).unwrap()
    );
    for (value, problem) in [
        ("-1", "`-1` is no user name"),
        ("4294967295", "`4294967295` is no user id"),
        ("'a:b'", "`a:b` is no user name"),
        ("'a b'", "`a b` is no user name"),
    ] {
        let errors = eval_errors_with(&format!("[workers]\nuser = {value}\n"));
        assert!(errors.contains(problem), "{errors}");
        assert!(errors.contains("hint: write `auto`, `same`"), "{errors}");
    }
    assert!(eval_errors_with("[workers]\nuser = true\n").contains("`user` in `[workers]`"));
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
