//! Which rows are never trained on.

use std::collections::{BTreeSet, HashMap, HashSet};

use osmosis_core::config::{HeldOut, TrainConfig, Training};
use osmosis_data::ContentDigest;
use osmosis_store::{RunKind, RunRecord};
use sha2::{Digest, Sha256};

use crate::runs::Pinned;

/// Which dataset rows a training run never trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldOutRows {
    None,
    Rows(HashSet<u64>),
    /// Those of another dataset, which are numbered from here.
    From(u64),
    /// The run was made by a version that did not record it.
    Unknown,
}

impl HeldOutRows {
    /// Those of a training run that was begun with these settings.
    pub fn of(training: &Training, pinned: &Pinned) -> Self {
        let Some(held_out) = &training.held_out else {
            return Self::None;
        };
        let Some(rows) = pinned.remembered.dataset_rows else {
            return Self::Unknown;
        };
        match held_out {
            HeldOut::Dataset(_) => Self::From(rows),
            HeldOut::Fraction(fraction) => pinned
                .training_seed()
                .and_then(|seed| held_out_rows(rows, *fraction, seed))
                .and_then(|plain| match &pinned.held_out_rows_moved {
                    Some(moved) => with_moved_rows(plain, moved),
                    None => Some(plain),
                })
                .map_or(Self::Unknown, |rows| Self::Rows(rows.into_iter().collect())),
        }
    }

    pub fn has(&self, row: u64) -> bool {
        match self {
            Self::None | Self::Unknown => false,
            Self::Rows(rows) => rows.contains(&row),
            Self::From(first) => row >= *first,
        }
    }
}

/// The settings of a training run; `None` for other runs.
pub fn training_of(run: &RunRecord) -> Option<Training> {
    match run.kind {
        RunKind::Training => {
            let config = TrainConfig::parse("run.toml".into(), &run.config_toml).ok();
            config.map(|config| config.training)
        }
        RunKind::Evaluation | RunKind::Serving => None,
    }
}

/// Splits rows by a shuffle that depends on the seed alone: the indices of the held-out ones, in order.
/// At least one row is on either side. `None` when there are too few rows for that.
pub fn held_out_rows(rows: u64, fraction: f64, seed: u64) -> Option<Vec<u64>> {
    let mut chosen = shuffled(rows, seed);
    chosen.truncate(usize::try_from(wanted(rows, fraction)?).ok()?);
    chosen.sort_unstable();
    Some(chosen)
}

/// The same, but equal rows stay on one side; `None` also when all rows are equal. Where no two rows are
/// equal it is the same choice.
pub(crate) fn split_by_content(
    contents: &[ContentDigest],
    fraction: f64,
    seed: u64,
) -> Option<Vec<u64>> {
    let rows = contents.len() as u64;
    let wanted = usize::try_from(wanted(rows, fraction)?).ok()?;
    let mut equal: HashMap<ContentDigest, Vec<u64>> = HashMap::new();
    for (content, row) in contents.iter().zip(0..) {
        equal.entry(*content).or_default().push(row);
    }
    let mut chosen = vec![];
    // What is too large to be taken whole is left out whole; others take its place.
    let mut smallest: Option<Vec<u64>> = None;
    let everything = equal.len() == 1;
    for row in shuffled(rows, seed) {
        if chosen.len() == wanted {
            break;
        }
        let content = contents.get(usize::try_from(row).ok()?)?;
        let Some(group) = equal.remove(content) else {
            continue;
        };
        if chosen.len() + group.len() <= wanted {
            chosen.extend(group);
        } else if smallest
            .as_ref()
            .is_none_or(|other| group.len() < other.len())
        {
            smallest = Some(group);
        }
    }
    if chosen.is_empty() && !everything {
        chosen = smallest?;
    }
    chosen.sort_unstable();
    (!chosen.is_empty()).then_some(chosen)
}

/// `3,17`: rows that only one of two choices has; `None` when there are none.
pub(crate) fn moved_rows(plain: &[u64], chosen: &[u64]) -> Option<String> {
    let (one, other): (BTreeSet<u64>, BTreeSet<u64>) = (
        plain.iter().copied().collect(),
        chosen.iter().copied().collect(),
    );
    let moved: Vec<String> = one
        .symmetric_difference(&other)
        .map(u64::to_string)
        .collect();
    (!moved.is_empty()).then(|| moved.join(","))
}

/// The choice that [`moved_rows`] compared with a plain one.
pub fn with_moved_rows(plain: Vec<u64>, moved: &str) -> Option<Vec<u64>> {
    let mut chosen: BTreeSet<u64> = plain.into_iter().collect();
    for row in moved.split(',') {
        let row = row.parse().ok()?;
        if !chosen.remove(&row) {
            chosen.insert(row);
        }
    }
    Some(chosen.into_iter().collect())
}

/// How many rows to hold out.
fn wanted(rows: u64, fraction: f64) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count"
    )]
    (rows >= 2).then(|| ((rows as f64 * fraction).round() as u64).clamp(1, rows - 1))
}

fn shuffled(rows: u64, seed: u64) -> Vec<u64> {
    let mut shuffled: Vec<u64> = (0..rows).collect();
    // By a digest and not by a random number generator: the choice is the same with every version.
    shuffled.sort_by_cached_key(|row| place(seed, *row));
    shuffled
}

fn place(seed: u64, row: u64) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"osmosis held-out rows");
    hash.update(seed.to_le_bytes());
    hash.update(row.to_le_bytes());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use osmosis_core::JsonText;
    use osmosis_data::{ContentDigest, Row, Taking};
    use serde_json::json;

    use super::{held_out_rows, moved_rows, split_by_content, with_moved_rows};

    fn contents(prompts: impl IntoIterator<Item = usize>) -> Vec<ContentDigest> {
        let content = |prompt: usize| {
            let body = json!({"user_prompt": prompt.to_string(), "label": "x"});
            let row = Row::from_body(0, 1, &JsonText::of(&body).unwrap()).unwrap();
            row.content(Taking::Columns).all
        };
        prompts.into_iter().map(content).collect()
    }

    #[test]
    fn a_choice_is_found_again_without_the_rows() {
        let contents = contents((0..120).map(|n| n * n % 71));
        let plain = held_out_rows(120, 0.25, 1).unwrap();
        let chosen = split_by_content(&contents, 0.25, 1).unwrap();
        let moved = moved_rows(&plain, &chosen).unwrap();
        assert_eq!(with_moved_rows(plain.clone(), &moved), Some(chosen));
        assert_eq!(moved_rows(&plain, &plain), None);
        assert_eq!(with_moved_rows(plain, "x"), None);
    }

    #[test]
    fn rows_that_all_differ_are_split_as_ever() {
        for seed in 0..5 {
            let split = split_by_content(&contents(0..100), 0.2, seed);
            assert_eq!(split, held_out_rows(100, 0.2, seed));
        }
    }

    #[test]
    fn equal_rows_stay_on_one_side() {
        for seed in 0..20 {
            // Every prompt comes one to four times.
            let contents = contents((0..120).map(|n| n * n % 71));
            let chosen = split_by_content(&contents, 0.25, seed).unwrap();
            // Groups are not split to reach the number to the row.
            assert!(
                (27..=30).contains(&chosen.len()),
                "seed {seed}: {}",
                chosen.len()
            );
            let (held_out, trained): (Vec<_>, Vec<_>) = contents
                .iter()
                .zip(0..)
                .partition(|(_, row)| chosen.contains(row));
            let held_out: HashSet<_> = held_out.iter().map(|(content, _)| content).collect();
            for (content, row) in &trained {
                assert!(!held_out.contains(content), "row {row}, seed {seed}");
            }
        }
    }

    #[test]
    fn a_group_of_equal_rows_is_held_out_whole_when_there_is_no_smaller_one() {
        let contents = contents([1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(split_by_content(&contents, 0.1, 1), Some(vec![0, 1, 2]));
        assert_eq!(
            split_by_content(&contents[..3], 0.5, 1),
            None,
            "all are equal"
        );
    }

    #[test]
    fn a_seed_always_chooses_the_same_rows_and_another_seed_others() {
        let first = held_out_rows(100, 0.2, 1).unwrap();
        assert_eq!(first.len(), 20);
        assert!(first.is_sorted() && first.iter().all(|row| *row < 100));
        assert_eq!(first, held_out_rows(100, 0.2, 1).unwrap());
        assert_ne!(first, held_out_rows(100, 0.2, 2).unwrap());
    }

    #[test]
    fn a_row_is_left_on_either_side() {
        assert_eq!(held_out_rows(3, 0.01, 1).unwrap().len(), 1);
        assert_eq!(held_out_rows(3, 0.99, 1).unwrap().len(), 2);
        assert_eq!(held_out_rows(1, 0.5, 1), None);
    }
}
