use std::fmt;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_tokens::TokensError;

/// What can go wrong with an embedded model.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The operating system refused to read or write.
    #[error("`{path}`: {message}")]
    Io {
        path: Utf8PathBuf,
        message: String,
        full: bool,
    },
    /// Nothing that looks like a model is there.
    #[error("`{path}` is not a model: {message}")]
    NotAModel { path: Utf8PathBuf, message: String },
    /// A file is there but its content can't be read.
    #[error("`{path}` is damaged: {message}")]
    Damaged { path: Utf8PathBuf, message: String },
    /// `config.json` lacks something or contradicts itself.
    #[error("model config: {0}")]
    Config(String),
    /// `config.json` asks for something this decoder does not have.
    #[error("model config: {what} is not supported")]
    Unsupported { what: String },
    /// The tensors do not fit the config.
    #[error("the weights do not fit the model's config: {0}")]
    Tensors(TensorProblems),
    #[error(transparent)]
    Tokens(#[from] TokensError),
    #[error("there is no built-in model `{name}`; there are: {known}")]
    UnknownBuiltin { name: String, known: String },
    /// A checkpoint must not be mixed with other files.
    #[error("`{path}` is not an empty folder")]
    NotEmpty { path: Utf8PathBuf },
    /// Adapters are of no use without what they belong to.
    #[error("`{adapter}` holds adapters of `{base}`, which is not there")]
    NoBase {
        adapter: Utf8PathBuf,
        base: Utf8PathBuf,
    },
    /// Adapters of other weights would give another model.
    #[error(
        "`{adapter}` holds adapters of `{base}`, whose weights have changed since they were trained"
    )]
    OtherBase {
        adapter: Utf8PathBuf,
        base: Utf8PathBuf,
    },
    /// New weights for a sampler must have the shape of the old ones.
    #[error("the new weights belong to a model of another shape")]
    OtherShape,
    #[error("the sampler has been shut down")]
    SamplerEnded,
    #[error("no threads to compute with: {0}")]
    Threads(String),
    /// Settings that no optimizer can work with.
    #[error("learner setting `{setting}`: {message}")]
    LearnerSetting {
        setting: &'static str,
        message: String,
    },
    /// Rows that can't be learned from; nothing has changed.
    #[error("these rows can't be learned from: {0}")]
    Rows(String),
    /// The gradient of a parameter was lost on the way; nothing has changed.
    #[error("parameter `{parameter}` got no gradient, the update was not made")]
    MissingGradient { parameter: String },
    /// The numbers ran away; nothing has changed.
    #[error("{what} is not finite, the update was not made")]
    NotFinite { what: String },
    /// An optimizer's state that does not belong to this model.
    #[error("the optimizer's state does not fit the model: {0}")]
    OptimizerState(String),
    /// An operation on tensors failed.
    #[error("computing: {0}")]
    Compute(String),
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyErrorKind {
    /// The model can't be had: no such file, damaged, wrong tensors.
    Unreadable,
    /// The model is whole, but this program does not know how to run it.
    Unsupported,
    /// The disk has no room.
    DiskFull,
    /// The model can't be written there.
    Unwritable,
    /// The caller asked for something that makes no sense.
    Invalid,
    /// There is nothing to compute with: the sampler is gone, or threads could not be started.
    Ended,
    /// The numbers of an update are not finite: the training has diverged.
    NotFinite,
    /// A fault of this program.
    Fault,
}

/// Which tensors are missing or have the wrong shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorProblems(pub Vec<TensorProblem>);

/// One tensor that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorProblem {
    pub name: String,
    pub expected: Vec<usize>,
    /// `None` when there is no such tensor.
    pub found: Option<Vec<usize>>,
}

/// Problems told by name; the rest is counted.
const PROBLEMS_NAMED: usize = 5;

impl fmt::Display for TensorProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.0.iter().filter(|p| p.found.is_none()).count();
        let wrong = self.0.len() - missing;
        match (missing, wrong) {
            (_, 0) => write!(f, "{missing} missing: ")?,
            (0, _) => write!(f, "{wrong} of the wrong shape: ")?,
            (_, _) => write!(f, "{missing} missing, {wrong} of the wrong shape: ")?,
        }
        for (index, problem) in self.0.iter().take(PROBLEMS_NAMED).enumerate() {
            let TensorProblem {
                name,
                expected,
                found,
            } = problem;
            let comma = if index == 0 { "" } else { ", " };
            match found {
                None => write!(f, "{comma}`{name}` (expected {expected:?}, missing)")?,
                Some(found) => write!(
                    f,
                    "{comma}`{name}` (expected {expected:?}, found {found:?})"
                )?,
            }
        }
        match self.0.len().saturating_sub(PROBLEMS_NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl PolicyError {
    pub fn kind(&self) -> PolicyErrorKind {
        match self {
            Self::Io { full: true, .. } => PolicyErrorKind::DiskFull,
            Self::Io { .. }
            | Self::NotAModel { .. }
            | Self::Damaged { .. }
            | Self::Config(_)
            | Self::Tensors(_)
            | Self::Tokens(_)
            | Self::NoBase { .. }
            | Self::OtherBase { .. }
            | Self::OptimizerState(_) => PolicyErrorKind::Unreadable,
            Self::Unsupported { .. } => PolicyErrorKind::Unsupported,
            Self::NotEmpty { .. } => PolicyErrorKind::Unwritable,
            Self::UnknownBuiltin { .. }
            | Self::OtherShape
            | Self::LearnerSetting { .. }
            | Self::Rows(_) => PolicyErrorKind::Invalid,
            Self::SamplerEnded | Self::Threads(_) => PolicyErrorKind::Ended,
            Self::NotFinite { .. } => PolicyErrorKind::NotFinite,
            Self::MissingGradient { .. } | Self::Compute(_) => PolicyErrorKind::Fault,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Io { full: true, .. } => Some("free some disk space and try again".to_owned()),
            Self::NotAModel { .. } => Some(
                "give a folder with config.json, tokenizer.json and *.safetensors, or a .gguf file"
                    .to_owned(),
            ),
            Self::Damaged { .. } => Some("download or copy the file again".to_owned()),
            Self::Unsupported { .. } => Some(
                "Llama, Qwen2 and Qwen3 decoders with plain, linear or llama3 positions can be used"
                    .to_owned(),
            ),
            Self::NoBase { .. } => Some(
                "put the model back, or write where it is into `base_model_name_or_path` of \
                 adapter_config.json and remove trainer/base.json"
                    .to_owned(),
            ),
            Self::OtherBase { .. } => {
                Some("put back the model that the adapters were trained with".to_owned())
            }
            Self::NotEmpty { .. } => Some("choose another folder, or remove it".to_owned()),
            Self::NotFinite { .. } => Some(
                "the weights are as they were; lower the learning rate or look at the rewards"
                    .to_owned(),
            ),
            Self::Io { .. }
            | Self::Config(_)
            | Self::Tensors(_)
            | Self::Tokens(_)
            | Self::UnknownBuiltin { .. }
            | Self::OtherShape
            | Self::SamplerEnded
            | Self::Threads(_)
            | Self::LearnerSetting { .. }
            | Self::Rows(_)
            | Self::MissingGradient { .. }
            | Self::OptimizerState(_)
            | Self::Compute(_) => None,
        }
    }

    /// What the operating system said about a file.
    pub(crate) fn io(path: &Utf8Path, error: &io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            message: error.to_string(),
            full: matches!(
                error.kind(),
                io::ErrorKind::StorageFull
                    | io::ErrorKind::QuotaExceeded
                    | io::ErrorKind::FileTooLarge
            ),
        }
    }

    pub(crate) fn damaged(path: &Utf8Path, message: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            message: message.into(),
        }
    }
}

impl From<candle_core::Error> for PolicyError {
    fn from(error: candle_core::Error) -> Self {
        Self::Compute(error.to_string())
    }
}
