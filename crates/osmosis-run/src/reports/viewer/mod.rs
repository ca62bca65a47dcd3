//! The documents that only the viewer shows: runs in a list, the grid, transcripts, tokens, groups, steps.

mod grid;
mod group;
mod overview;
mod rollout_page;
mod run_page;
mod steps;
mod tokens;
mod transcript;

pub use grid::{RolloutGrid, RolloutState};
pub use group::{GroupUse, GroupedRollout, RowGroup, RowVisit};
pub use overview::{MeasuredOn, RunKindWord, RunOverview};
pub use rollout_page::RolloutPage;
pub use run_page::{RolloutCommands, RunPage};
pub use steps::{StepGroup, StepRollouts, TrainingStep, TrainingSteps};
pub use tokens::{RolloutTokens, SampleTokens, TokenCall, TokenPath, VersionRun};
pub use transcript::{
    RolloutTranscript, SampleTranscript, ToolCallDetails, TranscriptPart, TranscriptPath,
    TranscriptTurn, TurnCall,
};
