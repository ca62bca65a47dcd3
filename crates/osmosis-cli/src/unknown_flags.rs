//! A flag that does not exist, or is missing: what a person who typed the command probably meant.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use osmosis_core::config::{ConfigKind, section_of_key};

/// The error with a tip that helps: a key of the config is set with `--set`, and no config is needed. That a flag could be passed as a
/// value, which is what clap says of every unknown one, helps nobody.
pub(crate) fn with_tip(mut error: clap::Error, typed: &[String]) -> clap::Error {
    let lacks_config = matches!(
        error.get(ContextKind::InvalidArg),
        Some(ContextValue::Strings(missing)) if missing.iter().any(|name| name == "<CFG>")
    );
    if lacks_config && submitted_kind(typed).is_some() {
        let tip = "without a config, give '--rollout NAME --dataset FILE --model MODEL'";
        let tips = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
        error.insert(ContextKind::Suggested, tips);
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    error.remove(ContextKind::Suggested);
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let Some((kind, key)) = submitted_kind(typed).zip(flag.strip_prefix("--")) else {
        return error;
    };
    let key = key.split('=').next().unwrap_or(key).replace('-', "_");
    if let Some(section) = section_of_key(kind, &key) {
        error.remove(ContextKind::SuggestedArg);
        let tip = format!("it is a key of the config: '--set {section}.{key}=VALUE'");
        let tips = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

/// The kind of config that the command takes, when it takes `--set`.
fn submitted_kind(typed: &[String]) -> Option<ConfigKind> {
    let submit = typed.iter().position(|word| word == "submit")?;
    let command = typed[..submit]
        .iter()
        .rev()
        .find(|word| !word.starts_with('-'));
    match command.map(String::as_str) {
        Some("eval") => Some(ConfigKind::Evaluation),
        Some("train") => Some(ConfigKind::Training),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::Arguments;

    fn tip(arguments: &[&str]) -> String {
        let typed: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let error = Arguments::try_parse_from(&typed).unwrap_err();
        let told = with_tip(error, &typed).to_string();
        let lines = told.lines().filter(|line| !line.trim().is_empty());
        lines.take(2).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_near_miss_a_key_of_the_config_and_nonsense_are_told_apart() {
        let submit = |flag| tip(&["osmosis", "eval", "submit", "c.toml", flag, "1"]);
        let train = |flag| tip(&["osmosis", "train", "submit", "c.toml", flag, "1"]);
        insta::assert_snapshot!(
            [
                submit("--modle"),
                submit("--nmae"),
                submit("--limt"),
                submit("--pass-threshold"),
                submit("--lr"),
                submit("--xyzzy"),
                train("--lr"),
                train("--setp"),
                tip(&["osmosis", "eval", "info", "r", "--pass-threshold", "1"]),
            ]
            .join("\n\n")
        );
    }
}
