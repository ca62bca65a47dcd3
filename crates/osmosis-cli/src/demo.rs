//! `osmosis demo`: a small agent learns to use a calculator, in a workspace that is the user's to change.

mod workspace_files;

use std::fmt::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::ConfigSource;
use osmosis_run::life::Lived;
use osmosis_run::reports::{DemoReport, HeldOutPoint};
use osmosis_run::train::training::Training;
use osmosis_run::{RunError, RunErrorKind, io_error as io};
use osmosis_worker::environment;
use toml_edit::DocumentMut;

use crate::arguments::DemoArguments;
use crate::error::Exit;
use crate::figures::duration_text;
use crate::output::Output;
use crate::train::submit::{self, Start};
use crate::train::{Plan, Request, failed_text, pass_text, report, reward_text};
use crate::workspace::{WorkspaceChoice, absolute, current_dir};

/// The config of the training, in the demo's workspace.
const CONFIG: &str = "configs/training/calculator.toml";

pub(crate) async fn run(
    arguments: DemoArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let root = match &arguments.dir {
        Some(folder) => absolute(folder)?,
        None => default_folder()?,
    };
    let changed = workspace_files::write(&root)?;
    output.note(format_args!("The demo's workspace is {root}"));
    for file in changed {
        output.note(format_args!("  {file} is as you changed it"));
    }
    let config_path = root.join(CONFIG);
    let config_text =
        std::fs::read_to_string(&config_path).map_err(|error| io(&config_path, &error))?;
    let config_text = with_settings(&config_text, &config_path, &arguments)?;
    let request = Request {
        config: ConfigSource::of_file(config_path, config_text),
        secrets_file: None,
        rows_not_compared: false,
    };
    let notices = output.notices();
    let workspace = workspace.at(root.clone()).chosen();
    let plan: Plan = Plan::check(request, &workspace, &*notices).await?;
    // Each demo is a run of its own.
    let mut training = Training::new(plan, None)?;
    training.throughput.python = arguments.python;
    let start = Start {
        notices,
        fresh: false,
    };
    let trained = submit::run(&training, start, output).await?;
    output.line(report::render(&trained.report, &training.plan.workspace));
    output.line(tell(&trained, &root));
    let resource = DemoReport::of(trained.report.clone(), training.plan.seed());
    Ok(submit::conclude(&training, &trained, &resource, output))
}

/// The config with this run's seed and steps, so that the run's record says what was run.
fn with_settings(
    text: &str,
    path: &Utf8Path,
    arguments: &DemoArguments,
) -> Result<String, RunError> {
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        RunError::failed(RunErrorKind::ConfigInvalid, format!("`{path}`: {error}"))
    })?;
    let training = document
        .entry("training")
        .or_insert_with(toml_edit::table)
        .as_table_like_mut()
        .ok_or_else(|| {
            RunError::failed(
                RunErrorKind::ConfigInvalid,
                format!("`{path}`: `training` is no table"),
            )
        })?;
    let integer = |name: &str, value: u64| {
        i64::try_from(value).map_err(|_| {
            RunError::usage(
                RunErrorKind::Usage,
                format!("--{name}: {value} is too large"),
            )
        })
    };
    training.insert("seed", toml_edit::value(integer("seed", arguments.seed)?));
    if let Some(steps) = arguments.steps {
        training.insert("steps", toml_edit::value(integer("steps", steps)?));
    }
    Ok(document.to_string())
}

fn tell(trained: &Lived<Training>, root: &Utf8Path) -> String {
    let report = &trained.report;
    let time = report.duration.map_or_else(String::new, |duration| {
        format!(" in {}", duration_text(duration.as_secs_f64()))
    });
    let mut text = format!("\n  {} steps{time}. On held-out rows:\n", report.steps);
    text += &told_of(report.before.as_ref(), report.after.as_ref());
    let _ = write!(
        text,
        "  The agent and its grader: {root}/rollouts/calculator/main.py\n  \
         The settings of the training: {root}/{CONFIG}"
    );
    text
}

/// Before and after of each way in which the rows were run.
fn told_of(before: Option<&HeldOutPoint>, after: Option<&HeldOutPoint>) -> String {
    let sides = [before, after].map(|point| point.map(HeldOutPoint::all).unwrap_or_default());
    let [before, after] = &sides;
    let ways = if after.is_empty() { before } else { after };
    if ways.is_empty() {
        return "    not measured\n".to_owned();
    }
    let mut text = String::new();
    for way in ways {
        let _ = writeln!(text, "    {}", way.name);
        for (when, side) in ["before", "after"].into_iter().zip(&sides) {
            let numbers = side.iter().find(|one| one.name == way.name);
            let told = numbers.map_or_else(
                || "not measured".to_owned(),
                |one| {
                    format!(
                        "mean reward {}, pass rate {}, {}",
                        reward_text(&one.score),
                        pass_text(&one.score),
                        failed_text(&one.score)
                    )
                },
            );
            let _ = writeln!(text, "      {when:<6}  {told}");
        }
    }
    text
}

/// `demo` in the cache folder.
fn default_folder() -> Result<Utf8PathBuf, RunError> {
    let folder = |variable: &str| {
        std::env::var(variable)
            .ok()
            .filter(|value| !value.is_empty())
            .map(Utf8PathBuf::from)
    };
    let cache = folder(environment::CACHE_VARIABLE)
        .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("osmosis")))
        .or_else(|| Some(folder("HOME")?.join(".cache").join("osmosis")));
    match cache {
        Some(cache) => absolute(&cache.join("demo")),
        None => Ok(current_dir()?.join("osmosis-demo")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::point;

    #[test]
    fn before_and_after_are_told_sampled_and_greedy_with_what_failed() {
        let (before, after) = (point(0, 0.2, Some(0.1)), point(50, 0.9, Some(0.95)));
        insta::assert_snapshot!(told_of(Some(&before), Some(&after)));
        assert_eq!(told_of(None, None), "    not measured\n");
    }

    #[test]
    fn seed_and_steps_are_written_into_the_config_and_the_rest_stays() {
        let arguments = DemoArguments {
            seed: 7,
            steps: Some(2),
            dir: None,
            python: None,
        };
        let text = "# mine\n[training]\nlr = 1e-3 # fast\nsteps = 30\n";
        let changed = with_settings(text, Utf8Path::new("c.toml"), &arguments).unwrap();
        assert_eq!(
            changed,
            "# mine\n[training]\nlr = 1e-3 # fast\nsteps = 2\nseed = 7\n"
        );
        let broken = with_settings("training = 1", Utf8Path::new("c.toml"), &arguments);
        assert!(broken.unwrap_err().message().contains("c.toml"));
    }
}
