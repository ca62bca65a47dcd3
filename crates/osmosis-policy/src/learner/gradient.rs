//! The loss of a piece and its gradient by every parameter.

use std::sync::Arc;

use osmosis_tokens::TokenGrammars;

use super::constrained;
use super::graph::Graph;
use super::matrix::Matrix;
use super::objective::{ScoredToken, Tally, Token};
use super::ops::{Real, RopeTable, TokenLogprob};
use super::pieces::Piece;
use super::tape::{Tape, Value};
use super::{LossFunction, LossRow};
use crate::lora::FrozenModel;
use crate::{ModelConfig, PolicyError};

/// What a piece adds to the loss and to the gradient of each parameter.
pub(super) struct PieceLoss<T> {
    pub(super) tally: Tally,
    pub(super) gradients: Vec<Matrix<T>>,
    /// Of the wanted tokens.
    pub(super) logprobs: Vec<T>,
}

/// A model, the rows it is given, and what goes with them.
pub(super) struct Batch<'a, T> {
    pub(super) config: &'a ModelConfig,
    pub(super) parameters: Vec<(&'a str, &'a Arc<Matrix<T>>)>,
    /// The weights that are no parameters.
    pub(super) frozen: Option<&'a FrozenModel>,
    pub(super) rope: Arc<RopeTable>,
    pub(super) rows: &'a [LossRow],
    /// For rows that were sampled under grammars.
    pub(super) grammars: Option<Arc<TokenGrammars>>,
}

impl<T: Real> Batch<'_, T> {
    /// Logprobs of the wanted tokens of a piece, without gradients.
    pub(super) fn logprobs(&self, piece: &Piece) -> Result<Vec<T>, PolicyError> {
        let outcome = self.outcome(&Tape::without_gradients(), piece)?;
        Ok(outcome.data().values()?[..piece.wanted.len()].to_vec())
    }

    /// Forward and backward over one piece.
    pub(super) fn loss(
        &self,
        piece: &Piece,
        objective: LossFunction,
    ) -> Result<PieceLoss<T>, PolicyError> {
        let tape = Tape::recording();
        let outcome = self.outcome(&tape, piece)?;
        let (tally, slopes) = self.tally(outcome.data(), piece, objective)?;
        let logprobs = outcome.data().values()?[..piece.wanted.len()].to_vec();
        let gradients = tape.backward(&outcome, slopes, self.parameters.len())?;
        let gradients = gradients
            .into_iter()
            .zip(&self.parameters)
            .map(|(gradient, (name, _))| {
                // An operation on the way has no gradient, and the parameter would never learn.
                gradient.ok_or_else(|| PolicyError::MissingGradient {
                    parameter: (*name).to_owned(),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(PieceLoss {
            tally,
            gradients,
            logprobs,
        })
    }

    /// Logprobs and entropies of the wanted tokens: two rows.
    fn outcome(&self, tape: &Tape<T>, piece: &Piece) -> Result<Value<T>, PolicyError> {
        let graph = Graph::new(self.config, tape, &self.parameters, self.frozen)?;
        let positions = piece.wanted.iter().map(|wanted| wanted.position).collect();
        let logits = graph.logits(piece, positions, &self.rope)?;
        let row = |index: usize| &self.rows[index];
        let score = TokenLogprob {
            targets: piece
                .wanted
                .iter()
                .map(|at| row(at.row).ids[at.token])
                .collect(),
            temperatures: piece
                .wanted
                .iter()
                .map(|at| row(at.row).temperatures[at.token])
                .collect(),
            allowed: constrained::allowed(self.grammars.as_deref(), self.rows, piece, self.config)?,
        };
        Ok(tape.apply(score, [&logits])?)
    }

    /// The sums of a piece, and the derivatives of the loss by logprobs and entropies.
    fn tally(
        &self,
        outcome: &Matrix<T>,
        piece: &Piece,
        objective: LossFunction,
    ) -> Result<(Tally, Matrix<T>), PolicyError> {
        let count = piece.wanted.len();
        let (logprobs, entropies) = outcome.values()?.split_at(count);
        let mut tally = Tally::default();
        let mut slopes = vec![T::ZERO; 2 * count];
        let mut at = 0;
        // The tokens of a row stand together, and all of them are in one piece.
        for row in piece.wanted.chunk_by(|one, other| one.row == other.row) {
            let places = at..at + row.len();
            at = places.end;
            let tokens: Vec<_> = places
                .clone()
                .zip(row)
                .map(|(index, wanted)| ScoredToken {
                    token: Token::of(&self.rows[wanted.row], wanted.token),
                    logprob: logprobs[index].to_f64(),
                    entropy: entropies[index].to_f64(),
                })
                .collect();
            for (index, slope) in places.zip(tally.add_row(objective, &tokens)) {
                slopes[index] = T::from_f64(slope.logprob);
                slopes[count + index] = T::from_f64(slope.entropy);
            }
        }
        Ok((tally, Matrix::new(slopes, count)))
    }
}
