//! Settings of the command line, over a file and without one.

use insta::assert_snapshot;

use super::*;

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
