/// The two names of the longest answer in a chat call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutputLimit {
    /// What every server knows.
    #[default]
    MaxTokens,
    /// What `OpenAI` has in its place; its reasoning models refuse the other.
    MaxCompletionTokens,
}

impl OutputLimit {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}
