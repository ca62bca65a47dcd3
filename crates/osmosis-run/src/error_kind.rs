//! Every kind of error that a command about runs ends with: the stable codes of `--json`.

/// What callers branch on. The code is stable, the meaning is what `docs/errors.md` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunErrorKind {
    ClusterUnusable,
    ConfigInvalid,
    DatasetChanged,
    DatasetInvalid,
    DatasetsDiffer,
    Declined,
    Engine,
    EngineUnusable,
    EntrypointInvalid,
    EntrypointNotFound,
    Environment,
    FileExists,
    FileNotFound,
    Gateway,
    HeldOutOverlap,
    Internal,
    Interrupted,
    Io,
    ModelInvalid,
    ModelKeyRefused,
    ModelNotFound,
    ModelNotTrainable,
    ModelUnconfigured,
    ModelUnreachable,
    NoGrader,
    NoRolloutServer,
    NoSharedRows,
    NoTrainingRows,
    NoWorkers,
    NothingToGrade,
    RolloutExists,
    RolloutNotFound,
    RunAmbiguous,
    RunDamaged,
    RunElsewhere,
    RunHeld,
    RunNotFound,
    RunOver,
    RunPinned,
    Runtime,
    ScriptInvalid,
    SdkNotFound,
    SecretMissing,
    SecretsFile,
    Serve,
    Signals,
    SourceMismatch,
    StateKey,
    StopFailed,
    Store,
    StoreDenied,
    StoreUnreachable,
    TokenInvalid,
    TokenizerInvalid,
    ToolsIgnored,
    TrackerUnavailable,
    Training,
    Usage,
    WorkerProtocol,
    WorkerSocket,
    WorkerStart,
    WorkspaceInvalid,
    WorkspaceNotFound,
}

impl RunErrorKind {
    /// In the order of their codes.
    pub const ALL: [Self; 63] = [
        Self::ClusterUnusable,
        Self::ConfigInvalid,
        Self::DatasetChanged,
        Self::DatasetInvalid,
        Self::DatasetsDiffer,
        Self::Declined,
        Self::Engine,
        Self::EngineUnusable,
        Self::EntrypointInvalid,
        Self::EntrypointNotFound,
        Self::Environment,
        Self::FileExists,
        Self::FileNotFound,
        Self::Gateway,
        Self::HeldOutOverlap,
        Self::Internal,
        Self::Interrupted,
        Self::Io,
        Self::ModelInvalid,
        Self::ModelKeyRefused,
        Self::ModelNotFound,
        Self::ModelNotTrainable,
        Self::ModelUnconfigured,
        Self::ModelUnreachable,
        Self::NoGrader,
        Self::NoRolloutServer,
        Self::NoSharedRows,
        Self::NoTrainingRows,
        Self::NoWorkers,
        Self::NothingToGrade,
        Self::RolloutExists,
        Self::RolloutNotFound,
        Self::RunAmbiguous,
        Self::RunDamaged,
        Self::RunElsewhere,
        Self::RunHeld,
        Self::RunNotFound,
        Self::RunOver,
        Self::RunPinned,
        Self::Runtime,
        Self::ScriptInvalid,
        Self::SdkNotFound,
        Self::SecretMissing,
        Self::SecretsFile,
        Self::Serve,
        Self::Signals,
        Self::SourceMismatch,
        Self::StateKey,
        Self::StopFailed,
        Self::Store,
        Self::StoreDenied,
        Self::StoreUnreachable,
        Self::TokenInvalid,
        Self::TokenizerInvalid,
        Self::ToolsIgnored,
        Self::TrackerUnavailable,
        Self::Training,
        Self::Usage,
        Self::WorkerProtocol,
        Self::WorkerSocket,
        Self::WorkerStart,
        Self::WorkspaceInvalid,
        Self::WorkspaceNotFound,
    ];

    /// The `error.code` of `--json`.
    pub fn code(self) -> &'static str {
        match self {
            Self::ClusterUnusable => "cluster_unusable",
            Self::ConfigInvalid => "config_invalid",
            Self::DatasetChanged => "dataset_changed",
            Self::DatasetInvalid => "dataset_invalid",
            Self::DatasetsDiffer => "datasets_differ",
            Self::Declined => "declined",
            Self::Engine => "engine",
            Self::EngineUnusable => "engine_unusable",
            Self::EntrypointInvalid => "entrypoint_invalid",
            Self::EntrypointNotFound => "entrypoint_not_found",
            Self::Environment => "environment",
            Self::FileExists => "file_exists",
            Self::FileNotFound => "file_not_found",
            Self::Gateway => "gateway",
            Self::HeldOutOverlap => "held_out_overlap",
            Self::Internal => "internal",
            Self::Interrupted => "interrupted",
            Self::Io => "io",
            Self::ModelInvalid => "model_invalid",
            Self::ModelKeyRefused => "model_key_refused",
            Self::ModelNotFound => "model_not_found",
            Self::ModelNotTrainable => "model_not_trainable",
            Self::ModelUnconfigured => "model_unconfigured",
            Self::ModelUnreachable => "model_unreachable",
            Self::NoGrader => "no_grader",
            Self::NoRolloutServer => "no_rollout_server",
            Self::NoSharedRows => "no_shared_rows",
            Self::NoTrainingRows => "no_training_rows",
            Self::NoWorkers => "no_workers",
            Self::NothingToGrade => "nothing_to_grade",
            Self::RolloutExists => "rollout_exists",
            Self::RolloutNotFound => "rollout_not_found",
            Self::RunAmbiguous => "run_ambiguous",
            Self::RunDamaged => "run_damaged",
            Self::RunElsewhere => "run_elsewhere",
            Self::RunHeld => "run_held",
            Self::RunNotFound => "run_not_found",
            Self::RunOver => "run_over",
            Self::RunPinned => "run_pinned",
            Self::Runtime => "runtime",
            Self::ScriptInvalid => "script_invalid",
            Self::SdkNotFound => "sdk_not_found",
            Self::SecretMissing => "secret_missing",
            Self::SecretsFile => "secrets_file",
            Self::Serve => "serve",
            Self::Signals => "signals",
            Self::SourceMismatch => "source_mismatch",
            Self::StateKey => "state_key",
            Self::StopFailed => "stop_failed",
            Self::Store => "store",
            Self::StoreDenied => "store_denied",
            Self::StoreUnreachable => "store_unreachable",
            Self::TokenInvalid => "token_invalid",
            Self::TokenizerInvalid => "tokenizer_invalid",
            Self::ToolsIgnored => "tools_ignored",
            Self::TrackerUnavailable => "tracker_unavailable",
            Self::Training => "training",
            Self::Usage => "usage",
            Self::WorkerProtocol => "worker_protocol",
            Self::WorkerSocket => "worker_socket",
            Self::WorkerStart => "worker_start",
            Self::WorkspaceInvalid => "workspace_invalid",
            Self::WorkspaceNotFound => "workspace_not_found",
        }
    }

    /// What it means, for the page of codes.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::ClusterUnusable => {
                "the Ray cluster can't be reached, or no Python with Ray was found"
            }
            Self::ConfigInvalid => {
                "the config has problems; `details.problems` lists all of them with their places"
            }
            Self::DatasetChanged => "the dataset was changed while it was read",
            Self::DatasetInvalid => {
                "rows of the dataset can't be used; every one is named with its line"
            }
            Self::DatasetsDiffer => {
                "runs that are to be compared have different datasets; `--shared-rows` compares what they share"
            }
            Self::Declined => "you answered no",
            Self::Engine => {
                "the run could not go on; what has a result keeps it, and a resume goes on"
            }
            Self::EngineUnusable => "the settings of the inference engine do not go together",
            Self::EntrypointInvalid => {
                "the rollout's code can't be used: no or several workflows or graders, import errors; `details.problems`"
            }
            Self::EntrypointNotFound => "the entrypoint's file is not there",
            Self::Environment => "the rollout's Python environment can't be made",
            Self::FileExists => "a file is there already and is not overwritten",
            Self::FileNotFound => "a file that was named is not there",
            Self::Gateway => "the gateway can't listen",
            Self::HeldOutOverlap => {
                "rows are trained on and held out at once; the first ones are named with both places"
            }
            Self::Internal => "a fault of this program; please report it",
            Self::Interrupted => "stopped by a signal before there was anything to resume",
            Self::Io => "a file or folder can't be read or written",
            Self::ModelInvalid => "the model can't be opened",
            Self::ModelKeyRefused => "the model server turned the key away",
            Self::ModelNotFound => "the model server has no model of that name",
            Self::ModelNotTrainable => "a model behind an endpoint is trained by its own trainer",
            Self::ModelUnconfigured => "`model_path` needs an environment variable that is not set",
            Self::ModelUnreachable => "no model server answers at the address",
            Self::NoGrader => {
                "the rollout grades itself, so there is nothing to grade a run again with"
            }
            Self::NoRolloutServer => "the entrypoint makes no rollout server",
            Self::NoSharedRows => "runs that are to be compared have no row in common",
            Self::NoTrainingRows => {
                "no rollout of the run has a reward and tokens to train on; `details.left_out`"
            }
            Self::NoWorkers => "no worker could be started",
            Self::NothingToGrade => "no rollout of the run, among the rows asked for, has a result",
            Self::RolloutExists => "a rollout of that name is there already",
            Self::RolloutNotFound => "there is no such rollout, in the workspace or in the run",
            Self::RunAmbiguous => {
                "runs of two kinds have that name; write `eval/NAME`, `train/NAME` or `serve/NAME`"
            }
            Self::RunDamaged => {
                "the files of the run are damaged; `osmosis run verify` lists what is, `osmosis run salvage` saves the rest"
            }
            Self::RunElsewhere => "the run is held by a process on another machine",
            Self::RunHeld => "another process has the run",
            Self::RunNotFound => "there is no run of that name",
            Self::RunOver => "the run is finished or was interrupted, and takes no nodes",
            Self::RunPinned => {
                "the run was made with another model, dataset, config or source; `details.differences`"
            }
            Self::Runtime => "the program could not start its threads",
            Self::ScriptInvalid => "the scripted policy has problems",
            Self::SdkNotFound => "the Python SDK is not where it should be",
            Self::SecretMissing => "a name in `[secrets]` has no value",
            Self::SecretsFile => "the secrets file can't be read",
            Self::Serve => "the rollout server can't run",
            Self::Signals => "signals can't be listened to",
            Self::SourceMismatch => "`branch` or `commit_sha` is not what is checked out",
            Self::StateKey => {
                "the key that `osmosis serve` keeps accepted rollouts with can't be used"
            }
            Self::StopFailed => "the run could not be stopped",
            Self::Store => "the run's database can't be read or written",
            Self::StoreDenied => "the database refuses the role or the password",
            Self::StoreUnreachable => "no database answers at the address",
            Self::TokenInvalid => {
                "the token of `osmosis node --join` can't be read, or is of another run"
            }
            Self::TokenizerInvalid => "the tokenizer folder can't be used",
            Self::ToolsIgnored => {
                "the agent offers tools, and the model's chat template does not show them to the model"
            }
            Self::TrackerUnavailable => {
                "the package that `--log` needs is not there, or can't be used"
            }
            Self::Training => "the training could not go on",
            Self::Usage => "the command line makes no sense; the exit code is 2",
            Self::WorkerProtocol => "the worker speaks another version of the protocol",
            Self::WorkerSocket => "the socket for workers can't be made",
            Self::WorkerStart => "a worker died or fell silent as it started",
            Self::WorkspaceInvalid => "the folder is no workspace",
            Self::WorkspaceNotFound => "no folder above holds `rollouts/`",
        }
    }
}

impl std::fmt::Display for RunErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.code())
    }
}
