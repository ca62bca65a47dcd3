//! The worker protocol: what the engine and a worker process say to each other.
//!
//! Every frame is a big-endian `u32` length followed by that many bytes of msgpack: a map with one
//! key, the frame's type, whose value is a map of its fields. Workers dial in, say `hello` with the token they were given, and are told what to do.
//! User data (prompts, messages, metadata) crosses as JSON text inside the msgpack, so that neither
//! side re-encodes it. Golden frames in `fixtures/frames/` are read by the Rust and Python tests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Failure, JsonText, Reward, RolloutId, Sample, SampleId};

/// Both sides must speak exactly this.
pub const PROTOCOL_VERSION: u32 = 1;

/// A frame beyond this is a protocol violation.
pub const MAX_FRAME_BYTES: usize = 64 * 1024 * 1024;

/// Maps and arrays within each other. Frames of ours have seven; the library's own limit of 1,024 is more
/// than the stack of a thread holds.
const MAX_FRAME_DEPTH: usize = 32;

/// Where to dial in: `unix:PATH` or `tcp:HOST:PORT`.
pub const ADDRESS_VARIABLE: &str = "OSMOSIS_WORKER_ADDR";

/// The unguessable text by which the engine recognises the worker.
pub const TOKEN_VARIABLE: &str = "OSMOSIS_WORKER_TOKEN";

/// The value of [`TOKEN_VARIABLE`] that says that the token is to be read from standard input, to its end. A
/// worker of this machine gets it so: other processes can read an environment.
pub const TOKEN_ON_STDIN: &str = "stdin";

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromWorker {
    /// The first frame of a connection.
    Hello(Hello),
    /// The entrypoint was imported and is fit to run.
    Loaded { manifest: Manifest },
    /// The entrypoint can't be used. All problems at once.
    LoadFailed { problems: Vec<Problem> },
    /// A template process forked a worker, which will dial in on its own.
    Forked { token: String, pid: u32 },
    /// A template process could not fork.
    ForkFailed { token: String, message: String },
    /// A process forked by the template ended: its exit code, or the signal that ended it.
    ChildExited {
        pid: u32,
        code: Option<i32>,
        signal: Option<i32>,
    },
    /// User code of the task starts executing now; its deadline starts here.
    Started { task: u64 },
    /// The workflow returned.
    RunDone {
        task: u64,
        samples: Vec<Sample>,
        metrics: Option<JsonText>,
        /// From a workflow that is its own grader and rewards single model calls instead of samples.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        interactions: Vec<InteractionReward>,
    },
    /// The grader returned; the samples carry rewards.
    GradeDone {
        task: u64,
        samples: Vec<Sample>,
        /// Rewards of the single turns of samples, where the grader gave some.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        turn_rewards: TurnRewards,
    },
    /// The workflow declined to be scored.
    Rejected { task: u64, reason: String },
    /// User code raised.
    TaskFailed { task: u64, failure: Failure },
    /// The task was cancelled on request and is over.
    TaskCancelled { task: u64 },
    /// The event loop has not turned for a while: where it hangs.
    LoopBlocked {
        blocked_ms: u64,
        stack: String,
        /// Whose code blocks it, when that is known.
        task: Option<u64>,
    },
    /// The event loop turns: again after a `LoopBlocked`, or to answer a `Cancel`.
    LoopUnblocked {},
}

/// What the engine says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToWorker {
    /// The hello was accepted.
    Welcome { worker: u64 },
    /// The hello was not accepted; the connection closes.
    Refused { reason: String },
    /// Import the entrypoint and check it.
    Load(Load),
    /// To a template: fork a worker that dials in with this token.
    Fork { token: String },
    /// Run the workflow on one row. The label is not here, on purpose.
    Run(RunTask),
    /// Grade the samples of one rollout.
    Grade(GradeTask),
    /// Cancel one task.
    Cancel { task: u64 },
    /// Finish nothing, take nothing, leave.
    Shutdown {},
}

/// How a connection introduces itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    /// Name, version and runtime of the SDK, for people: `osmosis_ai 0.1.0 (python 3.11.7)`.
    pub sdk: String,
    /// What this worker can do beyond the minimum; `fork` for a template.
    pub features: Vec<String>,
    pub token: String,
    pub pid: u32,
    pub channel: Channel,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// Frames in both directions.
    Control,
    /// After the hello, raw bytes of standard output and error, one tagged line at a time.
    Output,
}

/// What to import and how to configure it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The rollout's folder; it is the working directory and on the import path.
    pub project_path: String,
    /// `main.py` or `main.py:Name`, inside the project.
    pub entrypoint: String,
    /// `[workflow]` of the config, a JSON object.
    pub workflow: JsonText,
    /// `[grader]` of the config, a JSON object.
    pub grader: JsonText,
}

/// What was found in the entrypoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub workflow: Found,
    /// Absent for workflows whose return value is the grade.
    pub grader: Option<Found>,
    /// Things that work here but deserve a word.
    pub warnings: Vec<String>,
    /// Whether processes forked from this one are sound; the reason when they are not.
    pub not_forkable: Option<String>,
    /// The workflow takes rows as they are and what it returns is the grade: `RunTask::row` is set, and the
    /// samples of `RunDone` carry rewards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub self_graded: bool,
    /// Warnings that matter only to whoever serves the project.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub serve_warnings: Vec<String>,
}

/// What a workflow says one model call was worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InteractionReward {
    /// The id of the completion, as the caller was given it.
    pub completion: String,
    pub reward: Reward,
}

/// A class of the user's, and how many executions of it may run at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Found {
    pub name: String,
    pub file: String,
    pub line: u32,
    /// The name of its config, when it has one.
    pub config: Option<String>,
    pub max_concurrent: Option<u32>,
}

/// One reason why an entrypoint can't be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// A stable name: `import_failed`, `no_workflow`, `several_workflows`, ...
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
    pub traceback: Option<String>,
}

/// One execution of the workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunTask {
    pub task: u64,
    pub rollout_id: RolloutId,
    /// A JSON array of messages.
    pub prompt: JsonText,
    /// A JSON object, or nothing.
    pub metadata: Option<JsonText>,
    /// The base URL of the policy gateway.
    pub chat_completions_url: String,
    pub api_key: String,
    pub artifacts_dir: Option<String>,
    /// The whole row, a JSON object: for a workflow that is its own grader, and for no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<JsonText>,
    /// The rollout measures; nothing is learned from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_eval: bool,
    /// Opens the gateway for clients that the workflow gives no address, when it is its own grader: what
    /// they ask is recorded, and never trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_api_key: Option<String>,
}

/// One execution of the grader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GradeTask {
    pub task: u64,
    pub rollout_id: RolloutId,
    pub label: Option<String>,
    pub samples: Vec<Sample>,
    pub metadata: Option<JsonText>,
    pub artifacts_dir: Option<String>,
    pub project_path: String,
    /// The judge that the grader may ask, when the config names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeAccess>,
    /// How many turns each of the samples has; empty when that is not known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub turns: BTreeMap<SampleId, u32>,
}

/// What a grader says the turns of samples were worth, one reward for each answer of the policy, in order.
pub type TurnRewards = BTreeMap<SampleId, Vec<Reward>>;

/// A model that a grader may ask while it grades one rollout.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeAccess {
    /// What OpenAI clients append `/chat/completions` to.
    pub base_url: String,
    /// Opens the judge of this rollout, until its grade is done.
    pub api_key: String,
    pub model: String,
}

impl std::fmt::Debug for JudgeAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JudgeAccess")
            .field("base_url", &self.base_url)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// A frame that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {bytes} bytes is over the limit of {MAX_FRAME_BYTES}")]
    TooLarge { bytes: usize },
    #[error("not a frame: {0}")]
    Garbage(#[from] rmp_serde::decode::Error),
    #[error("a frame could not be written: {0}")]
    Unwritable(#[from] rmp_serde::encode::Error),
}

/// The msgpack body of a frame, without its length.
pub fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, FrameError> {
    let bytes = rmp_serde::to_vec_named(frame)?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(FrameError::TooLarge { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// Reads the msgpack body of a frame.
pub fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, FrameError> {
    if body.len() > MAX_FRAME_BYTES {
        return Err(FrameError::TooLarge { bytes: body.len() });
    }
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(body);
    deserializer.set_max_depth(MAX_FRAME_DEPTH);
    Ok(T::deserialize(&mut deserializer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_crosses_as_the_very_text_it_was() {
        let text = r#"[{"role":"user","content":"a \u00e9  b","n":1.50}]"#;
        let frame = ToWorker::Run(RunTask {
            task: 7,
            rollout_id: RolloutId::of(3, 1),
            prompt: JsonText::parse(text).unwrap(),
            metadata: None,
            chat_completions_url: "http://127.0.0.1:1/v1".to_owned(),
            api_key: "k".to_owned(),
            artifacts_dir: None,
            row: None,
            is_eval: false,
            other_api_key: None,
        });
        let back: ToWorker = decode(&encode(&frame).unwrap()).unwrap();
        assert_eq!(back, frame);
        let ToWorker::Run(task) = back else { panic!() };
        assert_eq!(task.prompt.as_str(), text);
    }

    #[test]
    fn garbage_is_an_error_and_not_a_panic() {
        for body in [&b""[..], b"\xc1", b"\x81\xa3run\x01", b"\x81\xa5nope!\x80"] {
            assert!(decode::<ToWorker>(body).is_err(), "{body:?}");
        }
    }

    #[test]
    fn frames_that_are_nested_without_end_are_garbage_and_overflow_no_stack() {
        // A field that nobody knows is skipped, however deep it is.
        for levels in [10, 1000, 100_000, 10_000_000] {
            let mut body = b"\x81\xa7started\x82\xa4task\x01\xa1x".to_vec();
            body.resize(body.len() + levels, 0x91);
            body.push(0xc0);
            let read = std::thread::Builder::new()
                .stack_size(2 << 20)
                .spawn(move || decode::<FromWorker>(&body).map(drop))
                .unwrap();
            let result = read.join().unwrap();
            assert_eq!(result.is_ok(), levels == 10, "{levels} levels");
        }
    }

    #[test]
    fn frames_over_the_limit_are_neither_written_nor_read() {
        // A string of this length has a head of five bytes.
        let largest = "a".repeat(MAX_FRAME_BYTES - 5);
        let body = encode(&largest).unwrap();
        assert_eq!(body.len(), MAX_FRAME_BYTES);
        assert_eq!(MAX_FRAME_BYTES, 67_108_864, "the Python side has the same");
        assert_eq!(decode::<&str>(&body).unwrap(), largest);
        for excess in [1, 4096] {
            let bytes = MAX_FRAME_BYTES + excess;
            let text = "a".repeat(bytes - 5);
            let refused = [
                encode(&text).map(drop),
                decode::<&str>(&vec![0; bytes]).map(drop),
            ];
            for result in refused {
                let error = result.unwrap_err();
                assert!(
                    matches!(error, FrameError::TooLarge { bytes: told } if told == bytes),
                    "{error}"
                );
            }
        }
    }
}
