//! Which checkpoints stay.

use std::collections::BTreeSet;
use std::fs;

use camino::Utf8Path;
use osmosis_core::config::Checkpoints;

use super::{FOLDER, evaluated_steps, list, ranked_steps};
use crate::{TrainError, durable_file};

/// A checkpoint that is being deleted has another name, so that nobody finds half of one.
const REMOVED: &str = ".removed";

/// Deletes the checkpoints of a run that `keep_last` and `keep_best` don't keep, and returns their steps.
/// `newest` is the one that a resume goes on from: it stays, the best one stays, and what has a higher number
/// is left alone, because that is a damaged one that the run went back behind.
pub fn retain(
    run_folder: &Utf8Path,
    settings: &Checkpoints,
    newest: u64,
) -> Result<Vec<u64>, TrainError> {
    if settings.keep_last.is_none() && settings.keep_best.is_none() {
        return Ok(vec![]);
    }
    let folder = run_folder.join(FOLDER);
    remove_leftovers(&folder)?;
    let mut saved = list(run_folder)?;
    saved.retain(|checkpoint| checkpoint.step <= newest);
    let steps: Vec<u64> = saved.iter().map(|checkpoint| checkpoint.step).collect();
    let best_first = ranked_steps(&evaluated_steps(run_folder)?, |step| steps.contains(&step));
    let kept = kept(&steps, &best_first, settings);
    let mut deleted = Vec::new();
    for checkpoint in saved.iter().filter(|saved| !kept.contains(&saved.step)) {
        let aside = folder.join(format!(".step_{}{REMOVED}", checkpoint.step));
        fs::rename(&checkpoint.folder, &aside)
            .and_then(|()| fs::remove_dir_all(&aside))
            .map_err(|error| TrainError::file(&checkpoint.folder, &error))?;
        deleted.push(checkpoint.step);
    }
    if !deleted.is_empty() {
        durable_file::sync(&folder)?;
    }
    Ok(deleted)
}

/// The same for a training, which does not depend on it: what could not be deleted is logged, and tried again after
/// the next step. `newest` is `None` before the first checkpoint.
pub(crate) fn retain_or_log(run_folder: &Utf8Path, settings: &Checkpoints, newest: Option<u64>) {
    let Some(newest) = newest else {
        return;
    };
    match retain(run_folder, settings, newest) {
        Ok(deleted) if deleted.is_empty() => {}
        Ok(deleted) => tracing::info!(steps = ?deleted, "checkpoints deleted"),
        Err(error) => tracing::warn!("old checkpoints could not be deleted: {error}"),
    }
}

/// The newest and the best always count as one to keep.
fn kept(steps: &[u64], best_first: &[u64], settings: &Checkpoints) -> BTreeSet<u64> {
    let count =
        |setting: Option<u64>| usize::try_from(setting.unwrap_or(1).max(1)).unwrap_or(usize::MAX);
    let last = steps.iter().rev().take(count(settings.keep_last));
    let best = best_first.iter().take(count(settings.keep_best));
    last.chain(best).copied().collect()
}

/// What a killed process had begun to delete.
fn remove_leftovers(folder: &Utf8Path) -> Result<(), TrainError> {
    let failed = |error: std::io::Error| TrainError::file(folder, &error);
    for entry in folder.read_dir_utf8().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().starts_with(".step_") && entry.file_name().ends_with(REMOVED) {
            fs::remove_dir_all(entry.path()).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use super::*;

    /// A run with these checkpoints, and pass rates of evaluated steps.
    fn check(
        saved: &[u64],
        evaluated: &[(u64, f64)],
        (keep_last, keep_best): (Option<u64>, Option<u64>),
        newest: u64,
        expected: &[u64],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let run = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        for step in saved {
            let model = run.join(FOLDER).join(format!("step_{step}/trainer"));
            fs::create_dir_all(&model).unwrap();
            fs::write(model.join("state.json"), "{}").unwrap();
        }
        fs::create_dir_all(run.join(FOLDER).join(".step_1.removed/trainer")).unwrap();
        let metrics: Vec<String> = evaluated
            .iter()
            .map(|(step, rate)| {
                format!(
                    "{{\"step\":{step},\"eval/rollouts\":8,\"eval/pass_rate\":{rate},\"eval/reward_mean\":{rate}}}\n"
                )
            })
            .collect();
        fs::write(run.join("metrics.jsonl"), metrics.concat()).unwrap();
        let settings = Checkpoints {
            keep_last,
            keep_best,
            ..Checkpoints::default()
        };
        let deleted = retain(&run, &settings, newest).unwrap();
        let left: Vec<u64> = list(&run).unwrap().iter().map(|c| c.step).collect();
        assert_eq!(left, expected);
        let mut all: Vec<u64> = left.into_iter().chain(deleted).collect();
        all.sort_unstable();
        assert_eq!(all, saved);
        let leftover = run.join(FOLDER).join(".step_1.removed");
        let keeps_all = keep_last.is_none() && keep_best.is_none();
        assert_eq!(leftover.exists(), keeps_all);
    }

    const RATES: [(u64, f64); 4] = [(2, 0.3), (4, 0.9), (6, 0.5), (8, 0.9)];

    #[test]
    fn all_are_kept_unless_a_number_is_given() {
        check(&[2, 4, 6], &RATES, (None, None), 6, &[2, 4, 6]);
    }

    #[test]
    fn the_newest_ones_and_the_best_one_stay() {
        check(&[2, 4, 6, 8, 10], &RATES, (Some(2), None), 10, &[4, 8, 10]);
        // Nothing was evaluated.
        check(&[2, 4, 6, 8, 10], &[], (Some(1), None), 10, &[10]);
    }

    #[test]
    fn the_best_ones_and_the_newest_one_stay() {
        // Of equals the earlier one is the better one.
        check(&[2, 4, 6, 8, 10], &RATES, (None, Some(1)), 10, &[4, 10]);
        check(
            &[2, 4, 6, 8, 10],
            &RATES,
            (None, Some(3)),
            10,
            &[4, 6, 8, 10],
        );
        check(&[2, 4, 6, 8, 10], &RATES, (Some(1), Some(1)), 10, &[4, 10]);
    }

    #[test]
    fn a_damaged_one_that_the_run_went_back_behind_does_not_count_as_the_newest() {
        check(&[2, 4, 5, 8], &[(2, 0.5)], (Some(1), None), 5, &[2, 5, 8]);
    }
}
