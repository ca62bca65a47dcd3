//! Tokens that follow a grammar.

use osmosis_core::generation::GenerationError;
use osmosis_tokens::{TokenMatcher, TokensError};

/// A grammar with the tokens of one generation so far.
pub(super) struct GrammarState {
    matcher: Box<TokenMatcher>,
    /// The ids that may come next, where they are known already.
    next: Option<Vec<u32>>,
}

impl GrammarState {
    pub(super) fn new(matcher: Box<TokenMatcher>) -> Self {
        Self {
            matcher,
            next: None,
        }
    }

    /// The ids that may come next, ascending and never none. The tokenizer may have ids that the model has no logits
    /// for: they are left out.
    pub(super) fn allowed(&mut self, vocabulary: usize) -> Result<Vec<u32>, GenerationError> {
        if let Some(next) = self.next.take() {
            return Ok(next);
        }
        let mut allowed = self.matcher.allowed().map_err(|error| failed(&error))?;
        allowed.truncate(allowed.partition_point(|id| (*id as usize) < vocabulary));
        if allowed.is_empty() {
            return Err(GenerationError::Constraint {
                message: "the grammar allows no token of the model's vocabulary".to_owned(),
            });
        }
        Ok(allowed)
    }

    /// Goes on with a token. Returns those that follow it without an alternative, at most `most`, and none after one of
    /// `ends`: nobody needs logits to know them, so they can be run together.
    pub(super) fn take(
        &mut self,
        id: u32,
        vocabulary: usize,
        most: usize,
        ends: &[u32],
    ) -> Result<Vec<u32>, GenerationError> {
        let mut forced = Vec::new();
        let mut last = id;
        loop {
            self.matcher.take(last).map_err(|error| failed(&error))?;
            if forced.len() >= most || ends.contains(&last) {
                return Ok(forced);
            }
            let allowed = self.allowed(vocabulary)?;
            let [only] = allowed[..] else {
                self.next = Some(allowed);
                return Ok(forced);
            };
            forced.push(only);
            last = only;
        }
    }
}

/// A grammar that was begun can still turn out to be too complex.
fn failed(error: &TokensError) -> GenerationError {
    GenerationError::Constraint {
        message: error.to_string(),
    }
}
