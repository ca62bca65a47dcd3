//! What a call was in tokens, told by the policy that answered it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use osmosis_dialect::Usage;

/// Knows what a call was in tokens.
pub trait TokenLedger: Send + Sync + fmt::Debug {
    /// Ends what is still sampled for the call, and tells what it was. ProbeOutcome once, when the call is
    /// recorded: nothing is sampled for it afterwards.
    fn close(&self) -> TokenAccount;
}

/// What a call was in tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenAccount {
    /// An encoded [`osmosis_tokens::TokenRecord`] for each choice.
    pub records: Vec<Bytes>,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

impl TokenAccount {
    /// The usage of a call whose reply reports none.
    pub(crate) fn usage(&self) -> Usage {
        // No prompt is empty: then nobody could tell.
        let is_known = self.prompt_tokens > 0;
        Usage {
            prompt_tokens: is_known.then_some(self.prompt_tokens),
            completion_tokens: is_known.then_some(self.completion_tokens),
            ..Usage::default()
        }
    }
}

/// A place for the ledger of one call. The gateway keeps the other end, and asks the ledger however the
/// call ends, also when its caller hangs up.
#[derive(Debug, Clone, Default)]
pub struct TokenSlot(Arc<OnceLock<Arc<dyn TokenLedger>>>);

impl TokenSlot {
    /// Says who knows the tokens of the call. The first ledger stays.
    pub fn fill(&self, ledger: Arc<dyn TokenLedger>) {
        let _ = self.0.set(ledger);
    }

    pub(crate) fn close(&self) -> Option<TokenAccount> {
        self.0.get().map(|ledger| ledger.close())
    }
}
