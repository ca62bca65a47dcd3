//! Rows into pieces of about equal work. What rows of a piece have in common at their beginning is computed once: the
//! rollouts of a group share their prompt, which is often most of their tokens.

use std::ops::Range;
use std::sync::Arc;

use super::LossRow;

/// A batch is cut into at least about this many pieces if it has the rows for it, so that all cores have work
/// to the end. A constant: the cut must not depend on the machine, or the rounding would.
const PIECES_AT_LEAST: usize = 8;

/// Some rows, and the tokens whose logprobs are wanted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    /// Input ids of all segments, one segment after the other.
    pub(super) ids: Vec<u32>,
    pub(super) segments: Arc<[Segment]>,
    pub(super) wanted: Vec<Wanted>,
}

/// Tokens that follow each other, and those that came before them. Rows with the same beginning continue the same
/// segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// Places among the ids of the piece.
    pub(super) tokens: Range<usize>,
    /// The segments from the beginning of the row to this one.
    pub(super) before: Vec<Range<usize>>,
}

/// A token whose logprob is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) row: usize,
    pub(super) token: usize,
    /// Where in the piece its logits are: the place of the token before it.
    pub(super) position: u32,
}

impl Segment {
    /// The position of its first token in a row.
    pub(super) fn position(&self) -> usize {
        self.before.iter().map(Range::len).sum()
    }
}

impl Piece {
    /// Tokens of the longest row.
    pub(super) fn longest(&self) -> usize {
        let ends = self.segments.iter();
        let ends = ends.map(|segment| segment.position() + segment.tokens.len());
        ends.max().unwrap_or(0)
    }
}

/// What of a row goes through the model.
struct Input<'a> {
    row: usize,
    ids: &'a [u32],
    /// The tokens whose logprobs are wanted.
    wanted: Vec<usize>,
}

/// Cuts the rows that have tokens wanted by `wants(row, token)` into pieces of at most `most_tokens`
/// tokens, and as many wanted ones; a longer row is a piece of its own.
pub(super) fn cut(
    rows: &[LossRow],
    most_tokens: usize,
    wants: impl Fn(&LossRow, usize) -> bool,
) -> Vec<Piece> {
    cut_at_least(PIECES_AT_LEAST, rows, most_tokens, wants)
}

/// The same, into at least about so many pieces.
pub(super) fn cut_at_least(
    count: usize,
    rows: &[LossRow],
    most_tokens: usize,
    wants: impl Fn(&LossRow, usize) -> bool,
) -> Vec<Piece> {
    let input = |(index, row): (usize, &'_ LossRow)| {
        let tokens = 1..row.ids.len();
        let wanted: Vec<usize> = tokens.filter(|token| wants(row, *token)).collect();
        wanted.last().copied().map(|last| (index, last, wanted))
    };
    let mut inputs: Vec<Input<'_>> = rows
        .iter()
        .enumerate()
        .filter_map(input)
        .map(|(row, last, wanted)| Input {
            row,
            // Nothing after the last wanted token matters, and that token itself is not an input.
            ids: &rows[row].ids[..last],
            wanted,
        })
        .collect();
    // Rows that begin alike stand together.
    inputs.sort_by(|a, b| a.ids.cmp(b.ids).then(a.row.cmp(&b.row)));
    let mut pieces = Vec::new();
    let mut rest = inputs.as_slice();
    let target = tokens(rest).div_ceil(count);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(first_piece(rest, target, most_tokens));
        pieces.push(piece(now));
        rest = later;
    }
    pieces
}

/// Tokens of all rows, what neighbours have in common counted once.
fn tokens(inputs: &[Input<'_>]) -> usize {
    let first = inputs.first().map_or(0, |input| input.ids.len());
    let later = inputs
        .windows(2)
        .map(|pair| pair[1].ids.len() - common(pair[0].ids, pair[1].ids));
    first + later.sum::<usize>()
}

/// How many rows the next piece has. It may be half as large again as `target`, and is cut where it costs least: a row
/// that begins like the one before a cut computes that beginning again.
fn first_piece(inputs: &[Input<'_>], target: usize, most_tokens: usize) -> usize {
    let most = most_tokens.min(target + target / 2);
    let (mut tokens, mut wanted) = (0, 0);
    let mut best: Option<(usize, usize)> = None;
    let mut before: &[u32] = &[];
    for (index, input) in inputs.iter().enumerate() {
        let shared = common(before, input.ids);
        before = input.ids;
        let new = input.ids.len() - shared;
        // A row that is another's beginning takes no more room.
        let is_full = (new > 0 && tokens + new > most) || wanted + input.wanted.len() > most_tokens;
        if index > 0
            && (is_full || 2 * tokens >= target)
            && best.is_none_or(|(least, _)| shared <= least)
        {
            best = Some((shared, index));
        }
        if index > 0 && is_full {
            return best.map_or(index, |(_, index)| index);
        }
        tokens += new;
        wanted += input.wanted.len();
    }
    inputs.len()
}

/// How many ids two rows have in common at their beginning.
fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

fn piece(inputs: &[Input<'_>]) -> Piece {
    let mut growing = Growing::default();
    growing.grow(inputs, 0, &mut Vec::new());
    Piece {
        ids: growing.ids,
        segments: growing.segments.into(),
        wanted: growing.wanted,
    }
}

/// A piece while rows are added.
#[derive(Default)]
struct Growing {
    ids: Vec<u32>,
    segments: Vec<Segment>,
    wanted: Vec<Wanted>,
}

impl Growing {
    /// Adds rows whose first `depth` ids are those of `before`. The rows are in order.
    fn grow(&mut self, inputs: &[Input<'_>], depth: usize, before: &mut Vec<Range<usize>>) {
        let ended = inputs.partition_point(|input| input.ids.len() == depth);
        let (ended, mut rest) = inputs.split_at(ended);
        for input in ended {
            self.place(input, before);
        }
        while let Some(first) = rest.first() {
            let next = first.ids[depth];
            let (alike, later) =
                rest.split_at(rest.partition_point(|input| input.ids[depth] == next));
            rest = later;
            // In this order, what the first and the last have in common is common to all.
            let last = alike.last().unwrap_or(first);
            let end = common(first.ids, last.ids);
            let start = self.ids.len();
            self.ids.extend_from_slice(&first.ids[depth..end]);
            let tokens = start..self.ids.len();
            self.segments.push(Segment {
                tokens: tokens.clone(),
                before: before.clone(),
            });
            before.push(tokens);
            self.grow(alike, end, before);
            before.pop();
        }
    }

    /// Finds the places of a row's wanted tokens in its segments.
    fn place(&mut self, input: &Input<'_>, segments: &[Range<usize>]) {
        let mut position = 0;
        let mut wanted = input.wanted.iter().peekable();
        for segment in segments {
            let end = position + segment.len();
            while let Some(token) = wanted.next_if(|token| **token - 1 < end) {
                let place = segment.start + *token - 1 - position;
                self.wanted.push(Wanted {
                    row: input.row,
                    token: *token,
                    position: u32::try_from(place).unwrap_or(u32::MAX),
                });
            }
            position = end;
        }
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
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].ids, [1, 2], "both begin alike");
        let at = |row, token, position| Wanted {
            row,
            token,
            position,
        };
        assert_eq!(pieces[0].wanted, [at(0, 2, 1), at(2, 1, 0), at(2, 2, 1)]);
    }

    #[test]
    fn what_rows_have_in_common_is_there_once() {
        let ids = |ids: &[u32]| LossRow {
            ids: ids.to_vec(),
            ..row(vec![1.0; ids.len()])
        };
        // The last id of a row is no input.
        let rows = [
            ids(&[1, 2, 3, 4, 9]),
            ids(&[1, 2, 5, 9]),
            ids(&[7, 9]),
            ids(&[1, 2, 3, 6, 9]),
        ];
        let pieces = [piece(&inputs(&rows))];
        assert_eq!(pieces[0].ids, [1, 2, 3, 4, 6, 5, 7]);
        let segment = |tokens, before: &[(usize, usize)]| Segment {
            tokens,
            before: before.iter().map(|(start, end)| *start..*end).collect(),
        };
        assert_eq!(
            *pieces[0].segments,
            [
                segment(0..2, &[]),
                segment(2..3, &[(0, 2)]),
                segment(3..4, &[(0, 2), (2, 3)]),
                segment(4..5, &[(0, 2), (2, 3)]),
                segment(5..6, &[(0, 2)]),
                segment(6..7, &[]),
            ]
        );
        assert_eq!(pieces[0].longest(), 4);
    }

    #[test]
    fn a_cut_falls_between_groups_rather_than_within_one() {
        // Eight groups of four rows: a prompt of 20 ids and answers of 1 to 4.
        let rows: Vec<LossRow> = (0..32_u32)
            .map(|index| {
                let prompt = (0..20).map(|place| 100 + index / 4 + place);
                let answer = (0..=index % 4).map(|place| 1000 + index + place);
                let ids: Vec<u32> = prompt.chain(answer).chain([1]).collect();
                LossRow {
                    weights: vec![1.0; ids.len()],
                    ..LossRow {
                        ids,
                        ..row(vec![0.0; 1])
                    }
                }
            })
            .collect();
        let pieces = cut(&rows, 10_000, |_, token| token >= 20);
        assert_eq!(pieces.len(), 8);
        for piece in &pieces {
            assert_eq!(piece.ids.len(), 20 + 1 + 2 + 3 + 4);
        }
    }

    fn inputs(rows: &[LossRow]) -> Vec<Input<'_>> {
        let mut inputs: Vec<Input<'_>> = rows
            .iter()
            .enumerate()
            .map(|(row, found)| Input {
                row,
                ids: &found.ids[..found.ids.len() - 1],
                wanted: (1..found.ids.len()).collect(),
            })
            .collect();
        inputs.sort_by(|a, b| a.ids.cmp(b.ids));
        inputs
    }

    /// The ids that a place of a piece sees, its own last.
    fn seen(piece: &Piece, place: usize) -> Vec<u32> {
        let segment = piece
            .segments
            .iter()
            .find(|segment| segment.tokens.contains(&place))
            .unwrap();
        let own = segment.tokens.start..place + 1;
        let ranges = segment.before.iter().cloned().chain([own]);
        ranges.flat_map(|range| piece.ids[range].to_vec()).collect()
    }

    proptest! {
        #[test]
        fn every_wanted_token_is_in_one_piece_and_pieces_are_small(
            // Few different ids, so that rows begin alike.
            ids in prop::collection::vec(prop::collection::vec(0_u32..2, 1..12), 0..40),
            most in 1_usize..200,
        ) {
            let rows = ids
                .iter()
                .map(|ids| LossRow {
                    ids: ids.clone(),
                    ..row((0..ids.len()).map(|i| if i % 3 == 1 { 0.5 } else { 0.0 }).collect())
                })
                .collect::<Vec<_>>();
            let pieces = cut(&rows, most, has_weight);
            let mut wanted = Vec::new();
            for piece in &pieces {
                prop_assert!(piece.ids.len() <= most.max(piece.longest()));
                let of_segments = piece.segments.iter().flat_map(|segment| segment.tokens.clone());
                prop_assert!(of_segments.eq(0..piece.ids.len()));
                for at in &piece.wanted {
                    prop_assert_eq!(seen(piece, at.position as usize), &rows[at.row].ids[..at.token]);
                    wanted.push((at.row, at.token));
                }
                let by_row = piece.wanted.chunk_by(|a, b| a.row == b.row).count();
                let different: std::collections::BTreeSet<usize> = piece.wanted.iter().map(|at| at.row).collect();
                prop_assert_eq!(by_row, different.len(), "the tokens of a row stand together");
            }
            wanted.sort_unstable();
            let expected = rows.iter().enumerate().flat_map(|(index, row)| {
                (1..row.ids.len()).filter(|token| has_weight(row, *token)).map(move |token| (index, token))
            });
            prop_assert_eq!(wanted, expected.collect::<Vec<_>>());
        }
    }
}
