//! Which row of one run is which row of the other: by what the rows hold, not by where they stand.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};

use sha2::{Digest, Sha256};

use super::run_rows::{RowResult, RunRows};
use crate::reports::ErrorDetails;
use crate::{RunError, RunErrorKind};

/// The rows that both runs have.
#[derive(Debug, Default)]
pub(super) struct Paired {
    /// Where each stands in the two runs.
    places: Vec<(usize, usize)>,
    pub(super) only_first: u64,
    pub(super) only_second: u64,
    /// Whether the files differ, and rows were found by their content.
    pub(super) by_content: bool,
}

impl Paired {
    pub(super) async fn of(
        first: &RunRows,
        second: &RunRows,
        shared_rows: bool,
    ) -> Result<Self, RunError> {
        let digest = |run: &RunRows| run.pinned.dataset_sha256.clone();
        // The same file: a row with the same index has the same content.
        if digest(first).is_some() && digest(first) == digest(second) {
            let paired = by_index(&first.rows, &second.rows);
            if paired.places.is_empty() {
                return Err(no_shared_rows(first, second));
            }
            return Ok(paired);
        }
        let paired = by_content(first, second).await?;
        if paired.places.is_empty() || !shared_rows {
            return Err(other_dataset(first, second, paired.places.len()));
        }
        Ok(paired)
    }

    /// How many rows both have.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The rows of the two runs that were paired, beside each other.
    pub(super) fn rows<'r>(
        &'r self,
        first: &'r RunRows,
        second: &'r RunRows,
    ) -> impl Iterator<Item = (&'r RowResult, &'r RowResult)> {
        let places = self.places.iter();
        places.map(|(here, there)| (&first.rows[*here], &second.rows[*there]))
    }
}

fn by_index(first: &[RowResult], second: &[RowResult]) -> Paired {
    let mut paired = Paired::default();
    let (mut here, mut there) = (0, 0);
    while let (Some(one), Some(other)) = (first.get(here), second.get(there)) {
        match one.row_index.cmp(&other.row_index) {
            Ordering::Equal => {
                paired.places.push((here, there));
                here += 1;
                there += 1;
            }
            Ordering::Less => here += 1,
            Ordering::Greater => there += 1,
        }
    }
    paired.only_first = (first.len() - paired.places.len()) as u64;
    paired.only_second = (second.len() - paired.places.len()) as u64;
    paired
}

/// The n-th row with a content in one run is the n-th with that content in the other.
async fn by_content(first: &RunRows, second: &RunRows) -> Result<Paired, RunError> {
    let mut places: HashMap<[u8; 16], VecDeque<usize>> = HashMap::new();
    for (place, row) in second.rows.iter().enumerate() {
        let key = content(second, row.row_index).await?;
        places.entry(key).or_default().push_back(place);
    }
    let mut paired = Paired {
        by_content: true,
        ..Paired::default()
    };
    for (place, row) in first.rows.iter().enumerate() {
        let key = content(first, row.row_index).await?;
        if let Some(other) = places.get_mut(&key).and_then(VecDeque::pop_front) {
            paired.places.push((place, other));
        }
    }
    paired.only_first = (first.rows.len() - paired.places.len()) as u64;
    paired.only_second = (second.rows.len() - paired.places.len()) as u64;
    Ok(paired)
}

/// Half of the digest of a row, enough to tell millions apart.
async fn content(run: &RunRows, row_index: u64) -> Result<[u8; 16], RunError> {
    let row = run.store.row(row_index).await?.ok_or_else(|| {
        let message = format!(
            "run `{}` has rollouts of row {row_index}, but no such row",
            run.name
        );
        RunError::failed(RunErrorKind::RunDamaged, message)
    })?;
    let digest = Sha256::digest(row.body.as_str().as_bytes());
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    Ok(half)
}

fn no_shared_rows(first: &RunRows, second: &RunRows) -> RunError {
    let rows = |run: &RunRows| match (run.rows.first(), run.rows.last()) {
        (Some(from), Some(to)) => format!("{} to {}", from.row_index, to.row_index),
        _ => "none".to_owned(),
    };
    RunError::failed(
        RunErrorKind::NoSharedRows,
        format!(
            "runs `{}` and `{}` have no row in common: rows {} and rows {}",
            first.name,
            second.name,
            rows(first),
            rows(second)
        ),
    )
    .hint("run both on the same rows: the same `--rows` and `--limit`")
}

fn other_dataset(first: &RunRows, second: &RunRows, shared: usize) -> RunError {
    let dataset = |run: &RunRows| {
        let name = run.pinned.dataset().unwrap_or_default();
        let digest = run.pinned.dataset_sha256.as_deref().unwrap_or_default();
        format!("`{name}` ({})", digest.get(..12).unwrap_or("no digest"))
    };
    let hint = if shared == 0 {
        "no row is the same in both; compare runs of one dataset, `osmosis eval list` lists them"
            .to_owned()
    } else {
        format!(
            "{shared} rows are the same in both (of {} and {}); `--shared-rows` compares those",
            first.rows.len(),
            second.rows.len()
        )
    };
    RunError::failed(
        RunErrorKind::DatasetsDiffer,
        format!(
            "runs `{}` and `{}` are of different datasets: {} and {}",
            first.name,
            second.name,
            dataset(first),
            dataset(second)
        ),
    )
    .hint(hint)
    .details(ErrorDetails::Datasets {
        shared_rows: shared,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_dataset_meet_by_their_index() {
        let rows = |indices: &[u64]| -> Vec<RowResult> {
            indices
                .iter()
                .map(|index| RowResult {
                    row_index: *index,
                    ..RowResult::default()
                })
                .collect()
        };
        let (first, second) = (rows(&[0, 1, 4, 5, 9]), rows(&[1, 2, 3, 5, 9, 10]));
        let paired = by_index(&first, &second);
        let shared: Vec<(u64, u64)> = paired
            .places
            .iter()
            .map(|(here, there)| (first[*here].row_index, second[*there].row_index))
            .collect();
        assert_eq!(shared, [(1, 1), (5, 5), (9, 9)]);
        assert_eq!((paired.only_first, paired.only_second), (2, 3));
    }
}
