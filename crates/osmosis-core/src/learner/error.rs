/// Why a learner or a sink could not do what it was asked to; it is as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LearnerError {
    pub kind: LearnerErrorKind,
    pub message: String,
    pub hint: Option<String>,
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LearnerErrorKind {
    /// Files or weights can't be used: missing, damaged, of another model.
    Unreadable,
    /// The caller asked for something that makes no sense.
    Invalid,
    /// Numbers are not finite: the training has diverged.
    NotFinite,
    /// The disk has no room.
    DiskFull,
    /// The state can't be written there.
    Unwritable,
    /// There is nothing to compute with any more.
    Ended,
    /// A fault of the implementation.
    Fault,
}
