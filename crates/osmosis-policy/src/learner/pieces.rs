//! Rows into pieces of about equal work.

use super::LossRow;

/// A batch is cut into at least this many pieces if it has the rows for it, so that all cores have work
/// to the end. A constant: the cut must not depend on the machine, or the rounding would.
const PIECES_AT_LEAST: usize = 8;

/// Some rows, padded to one length, and the tokens whose logprobs are wanted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    /// Input ids, `length` per row. Padding comes after a row, where causal attention does not see it.
    pub(super) ids: Vec<u32>,
    pub(super) length: usize,
    pub(super) wanted: Vec<Wanted>,
}

/// A token whose logprob is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) row: usize,
    pub(super) token: usize,
    /// Where in the piece its logits are: the place of the token before it.
    pub(super) position: u32,
}

/// Cuts the rows that have tokens wanted by `wants(row, token)` into pieces of at most `most_tokens`
/// tokens, padding included; a longer row is a piece of its own.
pub(super) fn cut(
    rows: &[LossRow],
    most_tokens: usize,
    wants: impl Fn(&LossRow, usize) -> bool,
) -> Vec<Piece> {
    // Nothing after the last wanted token matters, and that token itself is not an input.
    let mut lengths = rows
        .iter()
        .enumerate()
        .filter_map(|(index, row)| {
            let last = (1..row.ids.len()).rev().find(|token| wants(row, *token))?;
            Some((last, index))
        })
        .collect::<Vec<_>>();
    lengths.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let total: usize = lengths.iter().map(|(length, _)| length).sum();
    let most_tokens = most_tokens.min(total.div_ceil(PIECES_AT_LEAST));
    let mut pieces = Vec::new();
    let mut rest = lengths.as_slice();
    while let Some((length, _)) = rest.first() {
        let (now, later) = rest.split_at((most_tokens / length).clamp(1, rest.len()));
        pieces.push(piece(rows, now, *length, &wants));
        rest = later;
    }
    pieces
}

fn piece(
    rows: &[LossRow],
    chosen: &[(usize, usize)],
    length: usize,
    wants: impl Fn(&LossRow, usize) -> bool,
) -> Piece {
    let mut ids = Vec::with_capacity(chosen.len() * length);
    let mut wanted = Vec::new();
    for (own_length, row) in chosen {
        let start = ids.len();
        let source = &rows[*row];
        ids.extend_from_slice(&source.ids[..*own_length]);
        ids.resize(start + length, 0);
        wanted.extend(
            (1..=*own_length)
                .filter(|token| wants(source, *token))
                .map(|token| Wanted {
                    row: *row,
                    token,
                    position: u32::try_from(start + token - 1).unwrap_or(u32::MAX),
                }),
        );
    }
    Piece {
        ids,
        length,
        wanted,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(weights: Vec<f32>) -> LossRow {
        let length = weights.len();
        LossRow {
            ids: (1..).take(length).collect(),
            advantages: vec![0.0; length],
            sampled_logprobs: vec![0.0; length],
            proximal_logprobs: None,
            reference_logprobs: None,
            temperatures: vec![1.0; length],
            weights,
            constrained: vec![],
        }
    }

    fn has_weight(row: &LossRow, token: usize) -> bool {
        row.weights[token] != 0.0
    }

    #[test]
    fn a_row_ends_before_its_last_trained_token_and_rows_without_any_are_left_out() {
        let rows = [
            row(vec![0.0, 0.0, 1.0, 0.0]),
            row(vec![0.0, 0.0]),
            row(vec![0.0, 1.0, 1.0]),
        ];
        let pieces = cut(&rows, 1000, has_weight);
        let inputs = pieces
            .iter()
            .map(|piece| piece.ids.as_slice())
            .collect::<Vec<_>>();
        assert_eq!(inputs, [[1, 2], [1, 2]]);
        assert_eq!(
            pieces[0].wanted,
            [Wanted {
                row: 0,
                token: 2,
                position: 1
            }]
        );
    }

    proptest! {
        #[test]
        fn every_wanted_token_is_in_one_piece_and_pieces_are_small(
            lengths in prop::collection::vec(0_usize..30, 0..40),
            most in 1_usize..200,
        ) {
            let rows = lengths
                .iter()
                .map(|length| row((0..*length).map(|i| if i % 3 == 1 { 0.5 } else { 0.0 }).collect()))
                .collect::<Vec<_>>();
            let pieces = cut(&rows, most, has_weight);
            let mut wanted = Vec::new();
            for piece in &pieces {
                prop_assert!(piece.ids.len() <= most.max(piece.length));
                for at in &piece.wanted {
                    prop_assert_eq!(piece.ids[at.position as usize], rows[at.row].ids[at.token - 1]);
                    wanted.push((at.row, at.token));
                }
            }
            wanted.sort_unstable();
            let expected = rows.iter().enumerate().flat_map(|(index, row)| {
                (1..row.ids.len()).filter(|token| has_weight(row, *token)).map(move |token| (index, token))
            });
            prop_assert_eq!(wanted, expected.collect::<Vec<_>>());
        }
    }
}
