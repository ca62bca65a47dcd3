//! Grammars over the tokens of one tokenizer: which token may come next.
//!
//! The grammars are those of `llguidance`, which walks the vocabulary as a trie of bytes. What it allows is a function
//! of the grammar, the tokenizer and the tokens so far, so the sampler and the learner find the same sets.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use osmosis_core::generation::Constraint;
use osmosis_core::panics::guarded;
use tokenizers::Tokenizer;

use crate::TokensError;
use crate::token_bytes::token_bytes;

/// A longer grammar is refused before it is read.
const MAX_GRAMMAR_BYTES: usize = 256 << 10;
/// Compiled grammars that are kept. The calls of a run have few.
const KEPT_GRAMMARS: usize = 16;
/// States of a grammar's lexer, of 1 to 2 kB each: together with `KEPT_GRAMMARS`, the most memory that grammars take.
const MAX_LEXER_STATES: usize = 10_000;
/// As much of the library's reason as is told.
const MAX_REASON_CHARS: usize = 400;

/// Compiles grammars for one tokenizer.
pub struct TokenGrammars {
    factory: ParserFactory,
    /// The one used last stands last. Clones share the lexer's states.
    compiled: Mutex<Vec<(Constraint, Matcher)>>,
}

impl fmt::Debug for TokenGrammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenGrammars").finish_non_exhaustive()
    }
}

impl TokenGrammars {
    /// `end` is the token that ends a turn, and with it a grammar.
    pub(crate) fn new(tokenizer: &Tokenizer, end: u32) -> Result<Self, TokensError> {
        let words = token_bytes(tokenizer)?;
        let size =
            u32::try_from(words.len()).map_err(|_| refused("the vocabulary is too large"))?;
        if end >= size {
            return Err(refused(
                "the token that ends a turn is not in the vocabulary",
            ));
        }
        let trie = TokTrie::from(&TokRxInfo::new(size, end), &words);
        let mut vocabulary = Vocabulary {
            trie,
            tokenizer: tokenizer.clone(),
            canonical: false,
        };
        vocabulary.canonical = vocabulary.encodes_piece_by_piece();
        let environment: TokEnv = Arc::new(vocabulary);
        let mut factory = ParserFactory::new_simple(&environment)
            .map_err(|error| refused(reason(&error.to_string())))?;
        factory.quiet();
        let limits = factory.limits_mut();
        *limits = ParserLimits {
            max_lexer_states: MAX_LEXER_STATES,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self {
            factory,
            compiled: Mutex::default(),
        })
    }

    /// A matcher at the beginning of the grammar. The error says what is wrong with the grammar.
    pub fn compile(&self, constraint: &Constraint) -> Result<TokenMatcher, TokensError> {
        if let Some(known) = self.known(constraint) {
            return Ok(TokenMatcher::new(known));
        }
        if constraint.grammar.len() > MAX_GRAMMAR_BYTES {
            return Err(refused(format!(
                "the grammar has {} bytes, {MAX_GRAMMAR_BYTES} are the most",
                constraint.grammar.len()
            )));
        }
        let grammar = TopLevelGrammar::from_lark(constraint.grammar.to_string());
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        // An error in the grammar is told by whatever is done first.
        let first = matcher.compute_mask_or_eos();
        first.map_err(|error| refused(reason(&error.to_string())))?;
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if compiled.len() >= KEPT_GRAMMARS {
            compiled.remove(0);
        }
        compiled.push((constraint.clone(), matcher.clone()));
        Ok(TokenMatcher::new(matcher))
    }

    fn known(&self, constraint: &Constraint) -> Option<Matcher> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let place = compiled.iter().position(|(known, _)| known == constraint)?;
        let entry = compiled.remove(place);
        // Something went wrong in a clone while it had the lexer: that one is of no use any more.
        let usable = !entry.1.is_error();
        let matcher = usable.then(|| entry.1.clone());
        if usable {
            compiled.push(entry);
        }
        matcher
    }
}

/// A grammar with the tokens that were taken so far.
pub struct TokenMatcher {
    matcher: Matcher,
    /// Tokens that come next without an alternative, as far as they are known. Finding them takes the tokenizer, so
    /// that is done once for all of them.
    forced: VecDeque<u32>,
}

impl fmt::Debug for TokenMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenMatcher").finish_non_exhaustive()
    }
}

impl TokenMatcher {
    fn new(matcher: Matcher) -> Self {
        Self {
            matcher,
            forced: VecDeque::new(),
        }
    }

    /// The ids that may come next, ascending and never none. After the end of the grammar it is the token that ends
    /// the turn.
    pub fn allowed(&mut self) -> Result<Vec<u32>, TokensError> {
        if self.forced.is_empty() && !self.matcher.is_stopped() {
            self.forced = self.matcher.compute_ff_tokens().into();
        }
        if let Some(id) = self.forced.front() {
            return Ok(vec![*id]);
        }
        // An error of the line above comes here, too.
        let mask = self.matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| refused(reason(&error.to_string())))?;
        let mut ids = Vec::with_capacity(mask.num_set());
        mask.iter_set_entries(|id| ids.push(u32::try_from(id).unwrap_or(u32::MAX)));
        Ok(ids)
    }

    /// Goes on with a token, which must be one of the allowed ones.
    pub fn take(&mut self, id: u32) -> Result<(), TokensError> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            // The token that ends the turn: nothing follows that the grammar knows of.
            return Ok(());
        }
        if self.forced.pop_front() != Some(id) {
            self.forced.clear();
        }
        let taken = self.matcher.consume_token(id);
        taken.map_err(|error| refused(reason(&error.to_string())))
    }
}

/// The tokenizer as the library sees it.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Tokenizer,
    /// Text that must come is forced in the tokenizer's own tokens.
    canonical: bool,
}

impl Vocabulary {
    /// Whether the tokens of a text are the text, nothing added: then what is forced can be encoded alone.
    fn encodes_piece_by_piece(&self) -> bool {
        [
            "{\"a\": [1, \"b c\"]}",
            " x",
            "\n<tool_call>\n{\"name\": \"",
        ]
        .into_iter()
        .all(|text| {
            let ids = guarded(|| self.tokenizer.encode_fast(text, false));
            matches!(ids, Ok(Ok(ids)) if self.trie.decode_raw(ids.get_ids()) == text.as_bytes())
        })
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            match guarded(|| self.tokenizer.encode_fast(text, false)) {
                Ok(Ok(ids)) if self.trie.decode_raw(ids.get_ids()) == text.as_bytes() => {
                    ids.get_ids().to_vec()
                }
                // Special tokens are recognised in texts, and some vocabularies have not all characters.
                Ok(Ok(_) | Err(_)) | Err(_) => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}

fn refused(message: impl Into<String>) -> TokensError {
    TokensError::Constraint {
        message: message.into(),
    }
}

/// The library's words, on one line and not too long.
fn reason(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_REASON_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
