//! Every kind of error that a command about runs ends with: the stable codes of `--json`.

/// What callers branch on. The code is stable, the meaning is what `docs/errors.md` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunErrorKind {
    ClusterUnusable,
    CodeChanged,
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
    RunAltered,
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
    WorkerIntrusion,
    WorkerProtocol,
    WorkerSocket,
    WorkerStart,
    WorkspaceInvalid,
    WorkspaceNotFound,
}

impl RunErrorKind {
    /// In the order of their codes.
    pub const ALL: [Self; 66] = [
        Self::ClusterUnusable,
        Self::CodeChanged,
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
        Self::RunAltered,
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
        Self::WorkerIntrusion,
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
            Self::CodeChanged => "code_changed",
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
            Self::RunAltered => "run_altered",
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
            Self::WorkerIntrusion => "worker_intrusion",
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
            Self::CodeChanged => {
                "files that the run executes were changed while it was active; the message names them"
            }
            Self::ConfigInvalid => {
                "the config has errors; `details.problems` lists all of them with their positions"
            }
            Self::DatasetChanged => "the dataset was changed while it was read",
            Self::DatasetInvalid => {
                "rows of the dataset are invalid; the message names each of them with its line"
            }
            Self::DatasetsDiffer => {
                "the compared runs have different datasets; `--shared-rows` compares the rows that both have"
            }
            Self::Declined => "a confirmation prompt was answered with no",
            Self::Engine => {
                "the run could not continue; results so far are kept, and a resume runs the rest"
            }
            Self::EngineUnusable => "settings of the inference server contradict each other",
            Self::EntrypointInvalid => {
                "the project's code can't be used: no or several workflows or graders, or import errors; `details.problems` lists them"
            }
            Self::EntrypointNotFound => "the entrypoint's file does not exist",
            Self::Environment => "the project's Python environment can't be created",
            Self::FileExists => "the file exists already and is not overwritten",
            Self::FileNotFound => "a named file does not exist",
            Self::Gateway => "the gateway can't listen, or can't accept connections any more",
            Self::HeldOutOverlap => {
                "rows are both in the training data and held out; the message names the first ones with file and line of each"
            }
            Self::Internal => "a bug in this program; please report it",
            Self::Interrupted => "stopped by a signal before there was anything to resume",
            Self::Io => "a file or folder can't be read or written",
            Self::ModelInvalid => "the model can't be opened",
            Self::ModelKeyRefused => "the model server rejected the API key",
            Self::ModelNotFound => "the model server has no model of that name",
            Self::ModelNotTrainable => {
                "`train submit` can't train a model behind an endpoint; an external trainer can (`train serve`)"
            }
            Self::ModelUnconfigured => "`model_path` needs an environment variable that is not set",
            Self::ModelUnreachable => "no model server responds at the address",
            Self::NoGrader => {
                "the project has no grader of its own, so the run can't be graded again"
            }
            Self::NoRolloutServer => "the entrypoint creates no rollout server",
            Self::NoSharedRows => "the compared runs have no row in common",
            Self::NoTrainingRows => {
                "no rollout of the run has a reward and tokens to train on; `details.left_out` counts them by reason"
            }
            Self::NoWorkers => "no worker could be started",
            Self::NothingToGrade => "no rollout of the requested rows has a result",
            Self::RolloutExists => "a project of that name exists already",
            Self::RolloutNotFound => {
                "the workspace has no such project, or the run has no such rollout"
            }
            Self::RunAltered => {
                "records of the run are not what osmosis wrote; `osmosis run verify` lists them, and `osmosis run salvage` copies everything else into a new run"
            }
            Self::RunAmbiguous => {
                "runs of two kinds have that name; write `eval/NAME`, `train/NAME` or `serve/NAME`"
            }
            Self::RunDamaged => {
                "the files of the run are damaged; `osmosis run verify` lists the damage, and `osmosis run salvage` copies everything else into a new run"
            }
            Self::RunElsewhere => "the run is held by a process on another machine",
            Self::RunHeld => "another process holds the run",
            Self::RunNotFound => "there is no run of that name",
            Self::RunOver => "the run has ended (finished or interrupted), so nodes can't join it",
            Self::RunPinned => {
                "the run was started with another model, dataset, config or source; `details.differences` lists them"
            }
            Self::Runtime => "the program could not start its threads",
            Self::ScriptInvalid => "the scripted policy has errors",
            Self::SdkNotFound => "the Python SDK was not found",
            Self::SecretMissing => "a name in `[secrets]` has no value",
            Self::SecretsFile => "the secrets file can't be read",
            Self::Serve => "the rollout server can't run",
            Self::Signals => "signal handlers can't be installed",
            Self::SourceMismatch => {
                "the checked-out commit is not the `branch` or `commit_sha` of the config"
            }
            Self::StateKey => {
                "the key with which `osmosis serve` encrypts accepted rollouts can't be used"
            }
            Self::StopFailed => "the run could not be stopped",
            Self::Store => "the run's database can't be read or written",
            Self::StoreDenied => "the database rejects the role or the password",
            Self::StoreUnreachable => "no database responds at the address",
            Self::TokenInvalid => {
                "the token of `osmosis node --join` can't be read, or belongs to another run"
            }
            Self::TokenizerInvalid => "the tokenizer folder can't be used",
            Self::ToolsIgnored => {
                "the agent offers tools, and the model's chat template does not show them to the model"
            }
            Self::TrackerUnavailable => {
                "the package that `--log` needs is missing or can't be used"
            }
            Self::Training => "the training could not continue",
            Self::Usage => "the command line is invalid; the exit code is 2",
            Self::WorkerIntrusion => "a process connected with the token of a worker",
            Self::WorkerProtocol => "the worker uses another version of the protocol",
            Self::WorkerSocket => "the socket for workers can't be created",
            Self::WorkerStart => "a worker died or stopped responding during its start",
            Self::WorkspaceInvalid => "the folder is not a workspace",
            Self::WorkspaceNotFound => {
                "neither the folder nor any folder above it contains `rollouts/`"
            }
        }
    }
}

impl std::fmt::Display for RunErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.code())
    }
}
