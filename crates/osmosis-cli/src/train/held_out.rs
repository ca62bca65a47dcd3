//! Which rows are never trained on.

use sha2::{Digest, Sha256};

/// Splits rows by a shuffle that depends on the seed alone: the indices of the held-out ones, in order.
/// At least one row is on either side. `None` when there are too few rows for that.
pub(crate) fn held_out_rows(rows: u64, fraction: f64, seed: u64) -> Option<Vec<u64>> {
    if rows < 2 {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count"
    )]
    let count = ((rows as f64 * fraction).round() as u64).clamp(1, rows - 1);
    let mut shuffled: Vec<u64> = (0..rows).collect();
    // By a digest and not by a random number generator: the choice is the same with every version.
    shuffled.sort_by_cached_key(|row| place(seed, *row));
    let mut chosen: Vec<u64> = shuffled
        .into_iter()
        .take(usize::try_from(count).ok()?)
        .collect();
    chosen.sort_unstable();
    Some(chosen)
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
    use super::held_out_rows;

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
