//! Completions: a raw prompt that is gone on with, without messages and without a template.
//!
//! That cannot be said in chat. As the text of a user's message, a prompt would be wrapped in the
//! model's template and answered instead of continued, and what would be trained is not what was asked.
//! So a policy either speaks this dialect itself, or the call is refused.

use crate::rejection::RequestError;

pub(crate) fn refusal() -> RequestError {
    let message = "this policy speaks chat, and a raw prompt can't be continued there: \
         ask `/v1/chat/completions`, `/v1/responses` or `/v1/messages`";
    RequestError::UnsupportedEndpoint {
        message: message.to_owned(),
    }
}
