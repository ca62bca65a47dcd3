use std::time::Duration;

use serde::Serialize;

use super::ConfigKind;
use super::range::NumberRange;
use super::reader::Reader;
use super::section::Section;
use crate::RewardRange;

pub(super) const DEFAULT_AGENT_TIMEOUT_S: f64 = 450.0;
pub(super) const DEFAULT_GRADER_TIMEOUT_S: f64 = 150.0;

/// `[evaluation]`
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evaluation {
    /// At most this many rows.
    pub limit: Option<u64>,
    /// Rollouts per row.
    pub n: u32,
    /// How many rollouts are under way at once, unless `--max-in-flight` says so.
    pub batch_size: Option<u32>,
    /// What every kept sample of a rollout must reach for the rollout to pass.
    pub pass_threshold: f64,
    /// Where rewards lie; another reward is an error of the grader. Left out of what a run is pinned to when
    /// it is not stated: runs from before there was this resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_range: Option<RewardRange>,
    pub agent_workflow_timeout_s: f64,
    pub grader_timeout_s: f64,
    /// Left out of what a run is pinned to when it changes nothing: runs from before there was this resume.
    #[serde(skip_serializing_if = "ModelErrors::is_default")]
    pub model_errors: ModelErrors,
}

/// `model_errors`: whose failure it is when a rollout's model calls fail for reasons of the infrastructure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelErrors {
    /// The infrastructure's, whatever the agent made of it.
    #[default]
    Infrastructure,
    /// The agent handles them by design, so what it made of them counts.
    Agent,
}

impl ModelErrors {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "what serde calls it with"
    )]
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Evaluation {
    pub fn agent_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.agent_workflow_timeout_s)
    }

    pub fn grader_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.grader_timeout_s)
    }
}

impl Default for Evaluation {
    fn default() -> Self {
        Self {
            limit: None,
            n: 1,
            batch_size: None,
            pass_threshold: 1.0,
            reward_range: None,
            agent_workflow_timeout_s: DEFAULT_AGENT_TIMEOUT_S,
            grader_timeout_s: DEFAULT_GRADER_TIMEOUT_S,
            model_errors: ModelErrors::Infrastructure,
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Evaluation {
    let section = reader.section("evaluation");
    let default = Evaluation::default();
    let (agent, grader) = read_timeouts(reader, section);
    Evaluation {
        limit: reader.integer(section, "limit", 1..=u64::MAX),
        n: reader.small_integer(section, "n", 1).unwrap_or(default.n),
        batch_size: reader.small_integer(section, "batch_size", 1),
        pass_threshold: reader
            .number(section, "pass_threshold", NumberRange::ANY)
            .unwrap_or(default.pass_threshold),
        reward_range: reader.reward_range(section),
        agent_workflow_timeout_s: agent,
        grader_timeout_s: grader,
        model_errors: read_model_errors(reader, section),
    }
}

pub(super) fn read_model_errors<'d>(reader: &mut Reader<'d>, section: Section<'d>) -> ModelErrors {
    reader
        .parsed(
            section,
            "model_errors",
            |text| match text {
                "infrastructure" => Ok(ModelErrors::Infrastructure),
                "agent" => Ok(ModelErrors::Agent),
                other => Err(format!("unknown value `{}`", other.escape_debug())),
            },
            |_| Some("write `infrastructure` or `agent`".to_owned()),
        )
        .unwrap_or_default()
}

pub(super) fn read_timeouts<'d>(reader: &mut Reader<'d>, section: Section<'d>) -> (f64, f64) {
    let agent = reader.number(section, "agent_workflow_timeout_s", NumberRange::SECONDS);
    let grader = reader.number(section, "grader_timeout_s", NumberRange::SECONDS);
    (
        agent.unwrap_or(DEFAULT_AGENT_TIMEOUT_S),
        grader.unwrap_or(DEFAULT_GRADER_TIMEOUT_S),
    )
}

/// `[sampling]`: `None` where the file says nothing, so that callers can tell a wish from a default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sampling {
    pub rollout_temperature: Option<f64>,
    pub rollout_top_p: Option<f64>,
}

impl Sampling {
    pub const DEFAULT_TEMPERATURE: f64 = 1.0;
    pub const DEFAULT_TOP_P: f64 = 1.0;

    pub fn temperature(&self) -> f64 {
        self.rollout_temperature
            .unwrap_or(Self::DEFAULT_TEMPERATURE)
    }

    pub fn top_p(&self) -> f64 {
        self.rollout_top_p.unwrap_or(Self::DEFAULT_TOP_P)
    }
}

pub(super) fn read_sampling(reader: &mut Reader<'_>) -> Sampling {
    let section = reader.section("sampling");
    let temperature = match reader.kind() {
        ConfigKind::Evaluation => NumberRange::NOT_NEGATIVE,
        // Logprobs are those of logits / T, and greedy samples of one prompt are all alike.
        ConfigKind::Training | ConfigKind::Supervised => NumberRange::POSITIVE,
    };
    Sampling {
        rollout_temperature: reader.number(section, "rollout_temperature", temperature),
        rollout_top_p: reader.number(section, "rollout_top_p", NumberRange::SHARE),
    }
}
