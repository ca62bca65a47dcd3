use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use osmosis_core::frame::RunTask;
use osmosis_core::{JsonText, Sample, SampleId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::message_text::last_text;
use crate::sample::{WorkflowOutput, new_sample};
use crate::{Endpoint, Rollout, SdkError, output};

/// What `run` is given: the row's messages, never its label.
///
/// Cheap to clone; a tool may hold one of its own.
pub struct WorkflowContext<C = ()> {
    inner: Arc<Inner<C>>,
}

struct Inner<C> {
    prompt: Vec<Value>,
    config: Arc<C>,
    metadata: Option<Map<String, Value>>,
    artifacts_dir: Option<PathBuf>,
    rollout: Rollout,
    samples: Mutex<Vec<Sample>>,
}

impl<C> WorkflowContext<C> {
    pub(crate) fn new(task: RunTask, config: Arc<C>) -> Result<Self, SdkError> {
        let inner = Inner {
            prompt: parsed(&task.prompt, "the prompt")?,
            config,
            metadata: task
                .metadata
                .map(|text| parsed(&text, "the metadata"))
                .transpose()?,
            artifacts_dir: task.artifacts_dir.map(PathBuf::from),
            rollout: Rollout {
                chat_completions_url: task.chat_completions_url,
                api_key: task.api_key,
                id: task.rollout_id,
            },
            samples: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The row's messages, as chat completions takes them.
    pub fn prompt(&self) -> &[Value] {
        &self.inner.prompt
    }

    /// The row's messages in the types of a client: `ctx.prompt_as::<Message>()?`.
    pub fn prompt_as<T: DeserializeOwned>(&self) -> Result<Vec<T>, SdkError> {
        self.prompt()
            .iter()
            .map(|message| T::deserialize(message))
            .collect::<Result<_, _>>()
            .map_err(|source| SdkError::UnexpectedShape {
                what: "a message of the prompt",
                source,
            })
    }

    /// The text of the system message, when there is one.
    pub fn system_prompt(&self) -> Option<String> {
        last_text(self.prompt(), "system")
    }

    /// The text of the last user message.
    pub fn user_prompt(&self) -> Option<String> {
        last_text(self.prompt(), "user")
    }

    /// `[workflow]` of the run config.
    pub fn config(&self) -> &C {
        &self.inner.config
    }

    /// The row's metadata, when it has any.
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.inner.metadata.as_ref()
    }

    /// A folder for what this rollout leaves behind, made when it is first asked for.
    pub fn artifacts_dir(&self) -> Result<Option<&Path>, SdkError> {
        made_folder(self.inner.artifacts_dir.as_deref())
    }

    /// Who this rollout is, and where its model calls go.
    pub fn rollout(&self) -> &Rollout {
        &self.inner.rollout
    }

    /// What a client needs for the model calls of one sample.
    pub fn endpoint(&self, sample: &str) -> Result<Endpoint, SdkError> {
        self.inner.rollout.endpoint(sample)
    }

    /// Registers a conversation to be graded. A rollout may have several, each with its own name;
    /// what `run` returns as messages is not looked at any more.
    pub fn add_sample<T: Serialize>(&self, name: &str, messages: &[T]) -> Result<(), SdkError> {
        let id = SampleId::new(name)?;
        let sample = new_sample(id, &WorkflowOutput::messages(messages)?.messages)?;
        let mut samples = self.samples();
        if samples.iter().any(|known| known.id == sample.id) {
            return Err(SdkError::DuplicateSample {
                name: name.to_owned(),
                rollout: self.rollout().rollout_id().to_owned(),
            });
        }
        samples.push(sample);
        Ok(())
    }

    /// Writes to the run's log, in the name of this rollout. `println!` reaches the log too, but
    /// does not say which rollout it came from.
    pub fn log(&self, text: impl fmt::Display) {
        output::write_tagged(Some(self.rollout().rollout_id()), &text.to_string());
    }

    /// The samples of the rollout, given what `run` returned.
    pub(crate) fn finish(&self, returned: &[Value]) -> Result<Vec<Sample>, SdkError> {
        let registered = std::mem::take(&mut *self.samples());
        if !registered.is_empty() {
            return Ok(registered);
        }
        if returned.is_empty() {
            return Err(SdkError::NoSample);
        }
        Ok(vec![new_sample(SampleId::main(), returned)?])
    }

    fn samples(&self) -> std::sync::MutexGuard<'_, Vec<Sample>> {
        self.inner
            .samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn parsed<T: DeserializeOwned>(
    text: &JsonText,
    what: &'static str,
) -> Result<T, SdkError> {
    serde_json::from_str(text.as_str()).map_err(|source| SdkError::UnexpectedShape { what, source })
}

pub(crate) fn made_folder(path: Option<&Path>) -> Result<Option<&Path>, SdkError> {
    if let Some(path) = path {
        std::fs::create_dir_all(path).map_err(|source| SdkError::Artifacts {
            path: path.display().to_string(),
            source,
        })?;
    }
    Ok(path)
}

impl<C> Clone for WorkflowContext<C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<C> fmt::Debug for WorkflowContext<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowContext")
            .field("rollout", &self.inner.rollout)
            .field("prompt", &self.inner.prompt)
            .field("metadata", &self.inner.metadata)
            .finish_non_exhaustive()
    }
}
