//! Why a call gets no answer.

use osmosis_tokens::{TokensError, TokensErrorKind};

use super::checked_request::Refusal;
use crate::policy::{Fault, FaultKind};

/// Why a call gets no answer.
#[derive(Debug)]
pub(super) enum Refused {
    /// By the caller's fault.
    Refusal(Refusal),
    Fault(Fault),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

impl From<TokensError> for Refused {
    fn from(error: TokensError) -> Self {
        match error.kind() {
            TokensErrorKind::Messages => Refusal::of("messages", error.to_string()).into(),
            TokensErrorKind::Checkpoint | TokensErrorKind::DiskFull | TokensErrorKind::Records => {
                Self::Fault(Fault {
                    kind: FaultKind::Misconfigured,
                    status: 500,
                    message: error.to_string(),
                })
            }
        }
    }
}
