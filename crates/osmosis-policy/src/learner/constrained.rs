//! The tokens that were allowed where a row was sampled under a grammar, found again.

use osmosis_core::learner::ConstrainedTokens;
use osmosis_tokens::TokenGrammars;

use super::LossRow;
use super::pieces::Piece;
use crate::{ModelConfig, PolicyError};

/// The places of a piece's wanted tokens that were sampled under a grammar, with the allowed ids of each. Made anew for
/// every piece: the sets of a whole batch would take more memory than its logits.
pub(super) fn allowed(
    grammars: Option<&TokenGrammars>,
    rows: &[LossRow],
    piece: &Piece,
    config: &ModelConfig,
) -> Result<Vec<(usize, Vec<u32>)>, PolicyError> {
    let mut found = Vec::new();
    let places: Vec<_> = piece.wanted.iter().enumerate().collect();
    // The wanted tokens of one row follow each other.
    for of_row in places.chunk_by(|a, b| a.1.row == b.1.row) {
        let Some(index) = of_row.first().map(|(_, at)| at.row) else {
            continue;
        };
        let row = &rows[index];
        for tokens in &row.constrained {
            let within = tokens.first..tokens.first + tokens.allowed.len();
            let Some(last) = of_row.iter().rfind(|(_, at)| within.contains(&at.token)) else {
                continue;
            };
            let sets = replayed(grammars, row, tokens, last.1.token, config)
                .map_err(|message| PolicyError::Rows(format!("row {index} {message}")))?;
            for (place, at) in of_row.iter().filter(|(_, at)| within.contains(&at.token)) {
                found.push((*place, sets[at.token - tokens.first].clone()));
            }
        }
    }
    found.sort_unstable_by_key(|(place, _)| *place);
    Ok(found)
}

/// The allowed ids of each token up to `last`. The grammar sees the row's tokens as the sampler showed them to it.
fn replayed(
    grammars: Option<&TokenGrammars>,
    row: &LossRow,
    tokens: &ConstrainedTokens,
    last: usize,
    config: &ModelConfig,
) -> Result<Vec<Vec<u32>>, String> {
    let grammars =
        grammars.ok_or("was sampled under a grammar, for which the learner has no tokenizer")?;
    let failed = |error: osmosis_tokens::TokensError| format!("has a bad grammar: {error}");
    let mut matcher = grammars.compile(&tokens.constraint).map_err(failed)?;
    let mut sets = Vec::with_capacity(tokens.allowed.len());
    for (place, count) in (tokens.first..=last).zip(&tokens.allowed) {
        let id = row.ids[place];
        let mut allowed = matcher.allowed().map_err(failed)?;
        allowed.truncate(allowed.partition_point(|id| (*id as usize) < config.vocabulary));
        if allowed.len() != *count as usize {
            return Err(format!(
                "had {count} tokens allowed at {place} when it was sampled, and now {}: the tokenizer or the grammar \
                 library is another one",
                allowed.len()
            ));
        }
        if allowed.binary_search(&id).is_err() {
            return Err(format!(
                "has token `{id}` at {place}, which its grammar does not allow"
            ));
        }
        matcher.take(id).map_err(failed)?;
        sets.push(allowed);
    }
    Ok(sets)
}
