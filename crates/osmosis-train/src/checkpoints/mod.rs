//! `checkpoints/step_N/` of a run: each is a model folder with the state of its training beside it.
//!
//! ```text
//! step_20/
//!   config.json, tokenizer.json, …, model.safetensors   a model folder, which others load as it is
//!   trainer/optimizer.safetensors                        the optimizer's state, which only the learner reads
//!   trainer/state.json                                   step, version, seed, updates, digests
//! ```
//!
//! A checkpoint is written under another name, made durable and renamed, so a folder `step_N` is whole or
//! not there. Which of them stay is `[checkpoints] keep_last` and `keep_best` ([`retain`]). Random numbers need no state of their own: they are keyed by seed, row and call.

mod retention;
mod state;

pub use retention::retain;
pub(crate) use retention::retain_or_log;
pub use state::CheckpointState;

use std::fmt;
use std::fs;
use std::str::FromStr;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value};

use crate::supervised::HELD_OUT_LOSS;
use crate::{EvaluationReport, HeldOutNumbers, TrainError, metrics_file};

/// Below a run's folder.
pub const FOLDER: &str = "checkpoints";

/// Below a run's folder: the weights that adapters belong to, when they come from no model folder.
pub const BASE_FOLDER: &str = "checkpoints/base";

/// A checkpoint of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    pub step: u64,
    pub folder: Utf8PathBuf,
}

/// Which checkpoint of a run: what stands after `@` in `run:NAME@…`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Which {
    #[default]
    Latest,
    /// The highest pass rate on held-out rows, or the lowest loss where a run measures that. It is chosen on these
    /// rows, so that its score there is optimistic: rows of their own tell how good it is.
    Best,
    Step(u64),
}

/// A text that names no checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no checkpoint: write `latest`, `best` or a step")]
pub struct WhichError(pub String);

impl FromStr for Which {
    type Err = WhichError;

    fn from_str(text: &str) -> Result<Self, WhichError> {
        match text {
            "latest" => Ok(Self::Latest),
            "best" => Ok(Self::Best),
            _ => step_number(text.strip_prefix("step_").unwrap_or(text))
                .map(Self::Step)
                .ok_or_else(|| WhichError(text.escape_debug().to_string())),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Best => f.write_str("best"),
            Self::Step(step) => write!(f, "{step}"),
        }
    }
}

/// Digits only, without a leading zero: one name for one step.
fn step_number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

/// The checkpoints below a run's folder, in order of their steps.
pub fn list(run_folder: &Utf8Path) -> Result<Vec<Checkpoint>, TrainError> {
    let folder = run_folder.join(FOLDER);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(TrainError::file(&folder, &error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| TrainError::file(&folder, &error))?;
        let name = entry.file_name();
        let step = name
            .to_str()
            .and_then(|name| name.strip_prefix("step_"))
            .and_then(step_number);
        if let Some(step) = step
            && entry.path().is_dir()
        {
            found.push(Checkpoint {
                step,
                folder: folder.join(format!("step_{step}")),
            });
        }
    }
    found.sort();
    Ok(found)
}

/// The checkpoint that is meant, below a run's folder.
pub fn resolve(run_folder: &Utf8Path, which: Which) -> Result<Checkpoint, TrainError> {
    let all = list(run_folder)?;
    let chosen = match which {
        Which::Latest => all.last(),
        Which::Step(step) => all.iter().find(|checkpoint| checkpoint.step == step),
        Which::Best => {
            let evaluated = evaluated_steps(run_folder)?;
            let best = ranked_steps(&evaluated, |step| {
                all.iter().any(|checkpoint| checkpoint.step == step)
            });
            all.iter()
                .find(|checkpoint| Some(&checkpoint.step) == best.first())
        }
    };
    chosen.cloned().ok_or_else(|| {
        let steps: Vec<String> = all.iter().map(|c| c.step.to_string()).collect();
        TrainError::NoCheckpoint {
            folder: run_folder.to_owned(),
            which,
            known: if steps.is_empty() {
                "none".to_owned()
            } else {
                format!("steps {}", steps.join(", "))
            },
        }
    })
}

/// The saved steps, the best first: the highest pass rate, which counts all rollouts that ran; of equals the
/// highest reward, then the earliest, which trained the least. Where a loss is measured, the lowest comes first, then
/// the earliest. Those that were not evaluated are not among them.
///
/// A reward is only known of what was scored. So that a step is not better for losing what would have
/// scored low, a rollout without a score counts for the lowest reward that the run has seen.
fn ranked_steps(evaluated: &[EvaluatedStep], saved: impl Fn(u64) -> bool) -> Vec<u64> {
    let lowest = evaluated
        .iter()
        .filter_map(|step| match &step.result {
            HeldOutResult::Scores(numbers) => numbers.reward_min,
            HeldOutResult::Loss(_) => None,
        })
        .min_by(f64::total_cmp);
    let mut ranked: Vec<(u64, (f64, f64))> = evaluated
        .iter()
        .filter(|evaluated| saved(evaluated.step))
        .filter_map(|evaluated| Some((evaluated.step, rank(&evaluated.result, lowest)?)))
        .collect();
    // Equal ones stay in their order, which is that of the steps.
    ranked.sort_by(|(_, a), (_, b)| b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal));
    ranked.into_iter().map(|(step, _)| step).collect()
}

/// Higher is better: pass rate, then reward; or the loss below 0. `None` when nothing ran.
fn rank(result: &HeldOutResult, lowest: Option<f64>) -> Option<(f64, f64)> {
    let numbers = match result {
        HeldOutResult::Scores(numbers) => numbers,
        HeldOutResult::Loss(loss) => return Some((-loss, 0.0)),
    };
    let pass_rate = numbers.pass_rate?;
    let reward = match (numbers.reward_mean, lowest) {
        (Some(mean), Some(lowest)) if numbers.failed > 0 && numbers.ran > 0 => {
            let (scored, failed) = (numbers.scored as f64, numbers.failed as f64);
            (mean * scored + lowest * failed) / numbers.ran as f64
        }
        (Some(mean), _) => mean,
        (None, _) => f64::NEG_INFINITY,
    };
    Some((pass_rate, reward))
}

struct EvaluatedStep {
    step: u64,
    result: HeldOutResult,
}

/// What held-out rows showed. A run has one kind of it.
enum HeldOutResult {
    /// Of rollouts that were sampled as in training.
    Scores(HeldOutNumbers),
    /// Of a supervised training.
    Loss(f64),
}

impl HeldOutResult {
    /// Of the numbers of a step, if it was evaluated.
    fn read(line: &Map<String, Value>) -> Option<Self> {
        if let Some(report) = EvaluationReport::read(line) {
            return Some(Self::Scores(report.all.sampled));
        }
        line.get(HELD_OUT_LOSS)?.as_f64().map(Self::Loss)
    }
}

fn evaluated_steps(run_folder: &Utf8Path) -> Result<Vec<EvaluatedStep>, TrainError> {
    let path = run_folder.join(metrics_file::FILE_NAME);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(TrainError::file(&path, &error)),
    };
    // The last line may be in the making.
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Map<String, Value>>(line).ok());
    Ok(lines
        .filter_map(|line| {
            Some(EvaluatedStep {
                step: line.get("step")?.as_u64()?,
                result: HeldOutResult::read(&line)?,
            })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with(steps: &[&str], metrics: &str) -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        for step in steps {
            fs::create_dir_all(path.join(FOLDER).join(step)).unwrap();
        }
        fs::write(path.join("metrics.jsonl"), metrics).unwrap();
        (folder, path)
    }

    fn steps(run: &Utf8Path) -> Vec<u64> {
        list(run).unwrap().iter().map(|c| c.step).collect()
    }

    #[test]
    fn checkpoints_are_listed_by_number_and_leftovers_are_not() {
        let names = [
            "step_10",
            "step_9",
            ".step_11.partial",
            "step_x",
            "step_012",
        ];
        let (_keep, run) = run_with(&names, "");
        assert_eq!(steps(&run), [9, 10]);
        assert_eq!(resolve(&run, Which::Latest).unwrap().step, 10);
        assert_eq!(resolve(&run, Which::Step(9)).unwrap().step, 9);
    }

    /// The best of steps with these numbers, all of them saved.
    #[track_caller]
    fn check_best(evaluated: &[&str], expected: u64) {
        let mut metrics = String::new();
        for (numbers, step) in evaluated.iter().zip(1..) {
            let line = format!("{{\"step\":{step},\"eval/rollouts\":8,{numbers}}}\n");
            metrics.push_str(&line);
        }
        let steps: Vec<String> = (1..=evaluated.len()).map(|n| format!("step_{n}")).collect();
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        let (_keep, run) = run_with(&steps, &metrics);
        assert_eq!(
            resolve(&run, Which::Best).unwrap().step,
            expected,
            "{metrics}"
        );
    }

    #[test]
    fn the_best_is_the_highest_pass_rate_among_the_saved() {
        let metrics = "{\"step\":0,\"eval/rollouts\":8,\"eval/pass_rate\":0.9,\"eval/reward_mean\":0.9}\n\
            {\"step\":2,\"eval/rollouts\":8,\"eval/pass_rate\":0.5,\"eval/reward_mean\":0.5}\n\
            {\"step\":3}\n\
            {\"step\":4,\"eval/rollouts\":8,\"eval/pass_rate\":0.7,\"eval/reward_mean\":0.7}\n\
            {\"step\":6,\"eval/rollouts\":8,\"eval/pass_rate\":0.7,\"eval/reward_mean\":0.7}\n\
            {\"step\":8,\"eval/rew";
        let (_keep, run) = run_with(&["step_2", "step_3", "step_4", "step_6"], metrics);
        assert_eq!(resolve(&run, Which::Best).unwrap().step, 4);
    }

    #[test]
    fn a_higher_reward_of_fewer_scored_rollouts_is_not_better() {
        // Half of the rollouts of step 2 crashed, those that would have scored low.
        check_best(
            &[
                r#""eval/pass_rate":0.5,"eval/reward_mean":0.5,"eval/ran":8,"eval/scored":8"#,
                r#""eval/pass_rate":0.4,"eval/reward_mean":0.9,"eval/ran":8,"eval/scored":4,"eval/failed":4"#,
            ],
            1,
        );
    }

    #[test]
    fn equal_pass_rates_are_told_apart_by_the_reward() {
        check_best(
            &[
                r#""eval/pass_rate":0.5,"eval/reward_mean":0.5"#,
                r#""eval/pass_rate":0.5,"eval/reward_mean":0.6"#,
                r#""eval/pass_rate":0.5,"eval/reward_mean":0.6"#,
            ],
            2,
        );
        // Nothing passes, and what scored low is lost in step 2.
        check_best(
            &[
                r#""eval/pass_rate":0.0,"eval/reward_mean":0.5,"eval/reward_min":0.1,"eval/ran":8,"eval/scored":8"#,
                r#""eval/pass_rate":0.0,"eval/reward_mean":0.7,"eval/reward_min":0.6,"eval/ran":8,"eval/scored":4,"eval/failed":4"#,
            ],
            1,
        );
    }

    #[test]
    fn what_was_lost_counts_for_the_lowest_reward_and_no_less() {
        check_best(
            &[
                r#""eval/pass_rate":0.0,"eval/reward_mean":0.42,"eval/reward_min":0.4,"eval/ran":8,"eval/scored":8"#,
                r#""eval/pass_rate":0.0,"eval/reward_mean":0.5,"eval/reward_min":0.4,"eval/ran":8,"eval/scored":4,"eval/failed":4"#,
            ],
            2,
        );
    }

    #[test]
    fn the_lowest_loss_is_the_best_and_of_equals_the_earliest() {
        let of = |losses: &[&str], expected: u64| {
            let mut metrics = String::from("{\"step\":0,\"eval/loss\":0.1}\n");
            for (loss, step) in losses.iter().zip(1..) {
                let line = format!("{{\"step\":{step},\"loss\":0.0,\"eval/loss\":{loss}}}\n");
                metrics.push_str(&line);
            }
            let steps: Vec<String> = (1..=losses.len()).map(|n| format!("step_{n}")).collect();
            let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
            let (_keep, run) = run_with(&steps, &metrics);
            assert_eq!(
                resolve(&run, Which::Best).unwrap().step,
                expected,
                "{metrics}"
            );
        };
        of(&["3.5", "1.25", "2.0"], 2);
        of(&["3.5", "1.25", "1.25"], 2);
        of(&["0.5", "0.25", "0.0"], 3);
        // A loss that is no number is none.
        of(&["null", "7.0", "null"], 2);
    }

    #[test]
    fn before_the_first_metrics_no_checkpoint_is_the_best() {
        let (_keep, run) = run_with(&["step_2"], "");
        fs::remove_file(run.join("metrics.jsonl")).unwrap();
        let error = resolve(&run, Which::Best).unwrap_err();
        let told = "has no checkpoint that was evaluated on held-out rows; it has steps 2";
        assert!(error.to_string().ends_with(told), "{error}");
        assert!(error.hint().unwrap().contains("`eval_fraction`"));
    }

    #[test]
    fn a_missing_checkpoint_is_told_with_those_there_are() {
        let (_keep, run) = run_with(&["step_2", "step_4"], "");
        let error = resolve(&run, Which::Step(3)).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("has no checkpoint of step 3; it has steps 2, 4")
        );
        assert!(resolve(&run, Which::Best).is_err());
        let (_keep, run) = run_with(&[], "");
        let error = resolve(&run, Which::Latest).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("has no checkpoint at all; it has none")
        );
    }

    #[test]
    fn a_checkpoint_is_named_in_one_way() {
        let check = |text: &str, expected: Option<Which>| {
            assert_eq!(text.parse::<Which>().ok(), expected, "{text}");
        };
        check("latest", Some(Which::Latest));
        check("best", Some(Which::Best));
        check("12", Some(Which::Step(12)));
        check("step_12", Some(Which::Step(12)));
        check("012", None);
        check("", None);
        check("-1", None);
        check("last", None);
    }
}
