use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("a {what} must not be empty")]
    Empty { what: &'static str },
    #[error("{what} `{text}` is longer than {limit} bytes")]
    TooLong {
        what: &'static str,
        text: String,
        limit: usize,
    },
    #[error("{what} `{text}` must be one path segment of letters, digits, `.`, `_` and `-`")]
    NotASegment { what: &'static str, text: String },
    #[error("{what} `{text}` must not contain control characters")]
    ControlCharacter { what: &'static str, text: String },
}

/// Longest id that is accepted; ids become file names, headers and URL segments.
const MAX_ID_BYTES: usize = 200;

/// `true` for a text that is safe as one segment of a path or URL.
pub(crate) fn is_path_segment(text: &str) -> bool {
    !text.is_empty()
        && text != "."
        && text != ".."
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn check_length(what: &'static str, text: &str) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty { what });
    }
    if text.len() > MAX_ID_BYTES {
        return Err(IdError::TooLong {
            what,
            text: text.chars().take(40).collect(),
            limit: MAX_ID_BYTES,
        });
    }
    Ok(())
}

fn check_segment(what: &'static str, text: &str) -> Result<(), IdError> {
    check_length(what, text)?;
    if is_path_segment(text) {
        Ok(())
    } else {
        Err(IdError::NotASegment {
            what,
            text: text.to_owned(),
        })
    }
}

fn check_name(what: &'static str, text: &str) -> Result<(), IdError> {
    check_length(what, text)?;
    if text.chars().any(char::is_control) {
        return Err(IdError::ControlCharacter {
            what,
            text: text.escape_debug().to_string(),
        });
    }
    Ok(())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn new(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                $check($what, &text)?;
                Ok(Self(text))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// One execution of a workflow on one dataset row: one path segment.
    RolloutId, "rollout id", check_segment
);
text_id!(
    /// The name of a run, which is also its folder: one path segment.
    RunName, "run name", check_segment
);
text_id!(
    /// A word that people mark runs with.
    RunTag, "tag", check_segment
);
text_id!(
    /// The name of a rollout project, which is its folder below `rollouts/`: one path segment.
    RolloutName, "rollout name", check_segment
);
text_id!(
    /// What a sample source registered itself as. Any printable text, because users choose it.
    SampleId, "sample id", check_name
);

/// Between row and run in the id of a greedy rollout.
const GREEDY: &str = "-greedy-";

impl RolloutId {
    /// The id of the `run_index`-th rollout of dataset row `row_index`.
    pub fn of(row_index: u64, run_index: u32) -> Self {
        Self(format!("r{row_index}-{run_index}"))
    }

    /// The same for a rollout of training's evaluations that is decoded greedily, which its id says:
    /// whoever reads it in a store, an index or an export knows.
    pub fn greedy(row_index: u64, run_index: u32) -> Self {
        Self(format!("r{row_index}{GREEDY}{run_index}"))
    }

    /// Whether this is an id of [`RolloutId::greedy`]. Where users choose ids it means nothing.
    pub fn is_greedy(&self) -> bool {
        self.0.contains(GREEDY)
    }
}

impl SampleId {
    /// The sample that calls without a sample id belong to.
    pub fn main() -> Self {
        Self(Self::MAIN.to_owned())
    }

    /// The name of [`SampleId::main`].
    pub const MAIN: &'static str = "main";
}

/// How many times a rollout has been claimed; the fence that makes a late result harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Attempt(pub u32);

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which weights of the policy produced something; grows with every update.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_id_is_one_path_segment() {
        for bad in ["", ".", "..", "a/b", "a b", "ä", "a\n"] {
            assert!(RolloutId::new(bad).is_err(), "{bad:?}");
        }
        assert!(RolloutId::new("r12-0").is_ok());
        assert!(RolloutId::new(RolloutId::greedy(12, 3).as_str()).is_ok());
    }

    #[test]
    fn the_id_of_a_greedy_rollout_says_so() {
        assert_eq!(RolloutId::greedy(12, 3).as_str(), "r12-greedy-3");
        assert!(RolloutId::greedy(12, 3).is_greedy());
        assert!(!RolloutId::of(12, 3).is_greedy());
    }

    #[test]
    fn a_sample_id_may_be_any_printable_text() {
        assert!(SampleId::new("multiply agent ✓").is_ok());
        assert!(SampleId::new("two\nlines").is_err());
        assert!(SampleId::new("").is_err());
    }

    #[test]
    fn an_id_is_checked_when_it_is_read() {
        assert!(serde_json::from_str::<RolloutId>("\"../x\"").is_err());
    }
}
