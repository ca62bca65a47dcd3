//! What runs came to, as types.
//!
//! Every document that a command prints with `--json`, and every result file of a run, is one of these,
//! serialised: their JSON schemas are in `docs/schema/`, and `docs/reports.md` describes them. They are
//! computed from stores and folders. Front ends render them; nothing here prints.

mod call_survey;
mod commands;
mod comparison;
mod copied_run;
mod cost;
mod dataset_preview;
mod doctor_report;
mod dry_run;
mod error_details;
mod exported;
mod exported_model;
mod failures;
mod flips;
mod gates;
mod kept_runs;
mod made_files;
mod model_runs;
mod node_report;
mod ordered_map;
mod progress_line;
mod rollout_details;
mod rollout_line;
mod row_run;
mod run_report;
mod run_state;
mod run_summary;
mod salvaged;
mod schema;
mod served;
mod shared;
mod stopped_run;
mod supervised_training;
mod training;
mod verified;
mod viewer;
mod worst_rows;

pub use call_survey::{ParameterReport, SamplingReport, TruncationReport};
pub use commands::suggested_command;
pub use comparison::{
    ChangedRow, ChangedRows, ComparedRun, ComparedWith, Comparison, ComparisonDefinitions,
    Difference, FoundBy, LostRollouts, PairedRows, RowSide, UsageDifference, failed_counts, p_text,
    points, signed, signed_one,
};
pub use copied_run::CopiedRunReport;
pub use cost::CostReport;
pub use dataset_preview::{DatasetPreview, PreviewColumn, PreviewRow};
pub use doctor_report::{DoctorFinding, DoctorReport, ReadyModel, ReadyModelKind};
pub use dry_run::{
    CheckedCode, CheckedServer, CheckedUserSide, EvalDryRun, ModelDryRuns, RegradeDryRun,
    TrainDryRun,
};
pub use error_details::{BadRow, ConfigProblem, ErrorDetails, OverlappingRow};
pub use exported::{ExportReport, LeftOutReport};
pub use exported_model::ExportedModelReport;
pub use failures::FailureReport;
pub use flips::{FactChange, FactChanges, Flip, FlipsReport, Grade, GradeChange, MOST_OF_A_KIND};
pub use gates::{Gate, GateResult};
pub use kept_runs::{
    ArchivalReport, KeptRun, MovedRun, RemovalReport, RemovedRun, RunSizeReport, TaggedRun,
};
pub use made_files::{MadeProject, WrittenPages};
pub use model_runs::{ModelComparison, ModelRun, ModelRunsReport};
pub use node_report::{NodeEndWord, NodeReport, NodeState, NodeStateWord, NodesWelcome};
pub use ordered_map::OrderedMap;
pub use progress_line::{OldRollout, ProgressEvent, ProgressLine, ProgressStatus, WatchedServers};
pub(crate) use rollout_details::log_source;
pub use rollout_details::{
    Artifact, ArtifactKind, Artifacts, CallDetails, CallExchange, EarlierAttempt, Entry,
    GroundTruth, OfferedTool, RolloutDetails, SampleContext, SampleDetails, SampledTokens, Speaker,
    Transcriber, Versions, Wanted, each_log_line, raw_call,
};
pub use rollout_line::{RolloutEffort, RolloutLine, RolloutResult};
pub use row_run::RowRunReport;
pub use run_report::{RunDefinitions, RunInfo, RunRecordReport, RunReport};
pub use run_state::RunState;
pub use run_summary::RunSummary;
pub use salvaged::{KeptCounts, LostReport, SalvagedRun};
pub use schema::{SchemaFile, schema_files};
pub use served::{ServedBatches, ServedGateway, ServedRollouts};
pub use shared::{HistogramBar, ReportedRollout, SharedReport, WrittenReport};
pub use stopped_run::StoppedRun;
pub use supervised_training::{LossPoint, SupervisedDryRun, SupervisedTrainingReport};
pub use training::{
    BestCheckpoint, Curve, DemoReport, EndCauseWord, FinalEvaluationWord, GroupCounts,
    HeldOutPoint, HeldOutScore, HeldOutScores, NamedScore, NoUpdateCause, PhaseSeconds,
    RolloutCounts, SavedCheckpoint, SecondsWaiting, StalenessReport, StepNumbers, TokenCounts,
    TrainedStep, TrainingConclusion, TrainingEnd, TrainingInfo, TrainingReport, TrainingRollouts,
    begun_on,
};
pub use verified::{CheckedCounts, DamageReport, VerifiedRun};
pub use viewer::{
    GroupUse, GroupedRollout, MeasuredOn, RolloutCommands, RolloutGrid, RolloutPage, RolloutState,
    RolloutTokens, RolloutTranscript, RowGroup, RowVisit, RunKindWord, RunOverview, RunPage,
    SampleTokens, SampleTranscript, StepGroup, StepRollouts, TokenCall, TokenPath, ToolCallDetails,
    TrainingStep, TrainingSteps, TranscriptPart, TranscriptPath, TranscriptTurn, TurnCall,
    VersionRun,
};
pub use worst_rows::WorstRow;
