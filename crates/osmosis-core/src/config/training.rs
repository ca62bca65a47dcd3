use std::time::Duration;

use serde::Serialize;

use super::evaluation::{
    DEFAULT_AGENT_TIMEOUT_S, DEFAULT_GRADER_TIMEOUT_S, ModelErrors, read_model_errors,
    read_timeouts,
};
use super::objective::{self, LossNormalization, Objective, Overlong, RowChoice};
use super::range::NumberRange;
use super::reader::Reader;
use super::recipe::{self, Recipe};
use super::section::Section;
use super::{DatasetRef, DatasetRefError, Lora, error::listed};
use crate::RewardRange;
use crate::learner::KlEstimator;
use crate::staleness::{StaleRows, Straggler};

/// `[training]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Training {
    pub lr: f64,
    pub total_epochs: u32,
    /// At least 2 where rollouts of one prompt are compared with each other.
    pub n_samples_per_prompt: u32,
    /// Prompts per step.
    pub rollout_batch_size: u32,
    /// In tokens.
    pub max_prompt_length: u32,
    /// In tokens.
    pub max_response_length: u32,
    pub agent_workflow_timeout_s: f64,
    pub grader_timeout_s: f64,
    pub algorithm: Algorithm,
    /// How many versions old a token may be when it is trained on.
    pub max_staleness: u32,
    pub clip_ratio: f64,
    pub kl_coef: f64,
    pub updates_per_batch: u32,
    pub seed: Option<u64>,
    /// Train this many steps, whatever `total_epochs` says: fewer than its epochs have, or more.
    pub steps: Option<u64>,
    /// What the policy is evaluated on while it trains.
    pub held_out: Option<HeldOut>,
    /// Rows may be trained on and held out at once.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_overlap: bool,
    pub incomplete_groups: IncompleteGroups,
    /// What a call is worth of what the calls that continue it are worth, from 0 to 1. Left out of what a
    /// run is pinned to when it changes nothing, like the next: runs from before there were these resume.
    #[serde(skip_serializing_if = "changes_nothing")]
    pub turn_discount: f64,
    #[serde(skip_serializing_if = "is_default")]
    pub export_style: ExportStyle,
    #[serde(skip_serializing_if = "is_default")]
    pub objective: Objective,
    /// What becomes of rollouts that are too old to be trained on. Like the next two it matters only when
    /// `max_staleness` is not 0.
    #[serde(skip_serializing_if = "is_default")]
    pub stale_rows: StaleRows,
    #[serde(skip_serializing_if = "is_default")]
    pub stragglers: Straggler,
    /// A rollout straggles when it takes so many times as long as the median of those of its group that
    /// have ended.
    #[serde(skip_serializing_if = "is_default")]
    pub straggler_factor: StragglerFactor,
    /// Where rewards lie; another reward is an error of the grader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_range: Option<RewardRange>,
    #[serde(skip_serializing_if = "is_default")]
    pub model_errors: ModelErrors,
    /// What becomes of groups whose rewards are all equal when `max_staleness` is not 0.
    #[serde(skip_serializing_if = "is_default")]
    pub flat_groups: FlatGroups,
    /// How far a ratio may rise above 1; as far as below it when unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_ratio_high: Option<f64>,
    /// More than 1: bounds what a token with a negative advantage costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
    #[serde(skip_serializing_if = "is_default")]
    pub kl_estimator: KlEstimator,
    #[serde(skip_serializing_if = "is_default")]
    pub entropy_coef: f64,
    /// The algorithm's own when unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_normalization: Option<LossNormalization>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong: Option<Overlong>,
    /// Further rows that a step may run in place of those whose rewards are all equal, when `max_staleness` is 0.
    #[serde(skip_serializing_if = "is_default")]
    pub max_extra_rows: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub rows: RowChoice,
    /// `[training.lora]`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// What the keys that the config leaves out are, where they are not the defaults: the other fields have it already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Recipe>,
}

/// What becomes of a group whose rewards are all equal, so that it teaches nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlatGroups {
    /// Another group takes its place in the batch. Only where rollouts go on during updates.
    #[default]
    Replace,
    /// It keeps its place, and the batch trains on fewer, as in the synchronous schedule.
    Keep,
}

/// `straggler_factor`, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(transparent)]
pub struct StragglerFactor(pub f64);

impl Default for StragglerFactor {
    fn default() -> Self {
        Self(3.0)
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "what serde calls it with"
)]
fn changes_nothing(turn_discount: &f64) -> bool {
    turn_discount.to_bits() == 1f64.to_bits()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How rewards become advantages, and how tokens are weighed. `r` is the reward of one sample, a group
/// is one dataset row times one sample name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// `(r - mean) / (std + 1e-6)`; every sample counts the same, however long it is.
    #[default]
    Grpo,
    /// `r - mean`; every token counts the same, divided by the constant `max_response_length`.
    DrGrpo,
    /// `r - mean of the others`; the log-probability of the whole sample, so longer ones count more.
    Rloo,
    /// `(r - mean) / (std + 1e-6)`, both over the batch; every token counts the same.
    ReinforcePlusPlus,
    /// `r - mean` of the group, then divided by `std + 1e-6` of these differences over the batch; every token
    /// counts the same.
    ReinforcePlusPlusBaseline,
}

/// What becomes of a group of which not every rollout was scored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IncompleteGroups {
    #[default]
    Drop,
    Keep,
}

/// What is compared when the calls of a sample have rewards of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportStyle {
    /// Each call, with its own reward.
    #[default]
    Individual,
    /// Each conversation from its first call to its last, with the reward of the last.
    Concat,
}

/// Rows that are never trained on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldOut {
    /// `eval_dataset`
    Dataset(DatasetRef),
    /// `eval_fraction` of the dataset's rows.
    Fraction(f64),
}

impl HeldOut {
    /// `eval_dataset` or `eval_fraction` of a section.
    pub(super) fn read<'d>(reader: &mut Reader<'d>, section: Section<'d>) -> Option<Self> {
        reader.exclude(section, "eval_dataset", "eval_fraction");
        let dataset = reader.parsed(
            section,
            "eval_dataset",
            str::parse::<DatasetRef>,
            DatasetRefError::hint,
        );
        let fraction = reader.number(section, "eval_fraction", NumberRange::TRUE_SHARE);
        dataset.map(Self::Dataset).or(fraction.map(Self::Fraction))
    }
}

impl Training {
    pub fn agent_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.agent_workflow_timeout_s)
    }

    pub fn grader_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.grader_timeout_s)
    }
}

impl Default for Training {
    fn default() -> Self {
        Self {
            lr: 1e-6,
            total_epochs: 1,
            n_samples_per_prompt: 8,
            rollout_batch_size: 32,
            max_prompt_length: 8192,
            max_response_length: 8192,
            agent_workflow_timeout_s: DEFAULT_AGENT_TIMEOUT_S,
            grader_timeout_s: DEFAULT_GRADER_TIMEOUT_S,
            algorithm: Algorithm::Grpo,
            max_staleness: 0,
            clip_ratio: 0.2,
            kl_coef: 0.0,
            updates_per_batch: 1,
            seed: None,
            steps: None,
            held_out: None,
            allow_overlap: false,
            incomplete_groups: IncompleteGroups::Drop,
            turn_discount: 1.0,
            export_style: ExportStyle::Individual,
            stale_rows: StaleRows::Drop,
            stragglers: Straggler::Wait,
            straggler_factor: StragglerFactor::default(),
            flat_groups: FlatGroups::Replace,
            objective: Objective::Clipped,
            reward_range: None,
            model_errors: ModelErrors::Infrastructure,
            clip_ratio_high: None,
            dual_clip: None,
            kl_estimator: KlEstimator::K3,
            entropy_coef: 0.0,
            loss_normalization: None,
            overlong: None,
            max_extra_rows: 0,
            rows: RowChoice::default(),
            lora: None,
            recipe: None,
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Training {
    let section = reader.section("training");
    let default = Training::default();
    let max_response_length = reader
        .small_integer(section, "max_response_length", 1)
        .unwrap_or(default.max_response_length);
    let rollout_batch_size = reader
        .small_integer(section, "rollout_batch_size", 1)
        .unwrap_or(default.rollout_batch_size);
    let max_staleness = reader
        .small_integer(section, "max_staleness", 0)
        .unwrap_or(default.max_staleness);
    let recipe = recipe::read(reader);
    let default = recipe.map_or(default, |recipe| {
        recipe.defaults(max_response_length, rollout_batch_size, max_staleness)
    });
    let (agent, grader) = read_timeouts(reader, section);
    let objective = objective::read_objective(reader).unwrap_or(default.objective);
    let (clip_ratio, clip_ratio_high) = objective::read_clip(reader, objective, &default);
    let algorithm = choice(
        reader,
        "algorithm",
        &[
            ("grpo", Algorithm::Grpo),
            ("dr_grpo", Algorithm::DrGrpo),
            ("rloo", Algorithm::Rloo),
            ("reinforce_plus_plus", Algorithm::ReinforcePlusPlus),
            (
                "reinforce_plus_plus_baseline",
                Algorithm::ReinforcePlusPlusBaseline,
            ),
        ],
    )
    .unwrap_or(default.algorithm);
    let fewest_samples = match algorithm {
        Algorithm::ReinforcePlusPlus => 1,
        Algorithm::Grpo
        | Algorithm::DrGrpo
        | Algorithm::Rloo
        | Algorithm::ReinforcePlusPlusBaseline => 2,
    };
    let mut training = Training {
        lr: reader
            .number(section, "lr", NumberRange::POSITIVE)
            .unwrap_or(default.lr),
        total_epochs: reader
            .small_integer(section, "total_epochs", 1)
            .unwrap_or(default.total_epochs),
        n_samples_per_prompt: reader
            .small_integer(section, "n_samples_per_prompt", fewest_samples)
            .unwrap_or(default.n_samples_per_prompt),
        rollout_batch_size,
        max_prompt_length: reader
            .small_integer(section, "max_prompt_length", 1)
            .unwrap_or(default.max_prompt_length),
        max_response_length,
        agent_workflow_timeout_s: agent,
        grader_timeout_s: grader,
        algorithm,
        max_staleness,
        clip_ratio,
        kl_coef: reader
            .number(section, "kl_coef", NumberRange::NOT_NEGATIVE)
            .unwrap_or(default.kl_coef),
        updates_per_batch: reader
            .small_integer(section, "updates_per_batch", 1)
            .unwrap_or(default.updates_per_batch),
        seed: reader.integer(section, "seed", 0..=u64::MAX),
        steps: reader.integer(section, "steps", 1..=u64::MAX),
        held_out: HeldOut::read(reader, section),
        allow_overlap: reader
            .boolean(section, "allow_overlap")
            .unwrap_or(default.allow_overlap),
        incomplete_groups: choice(
            reader,
            "incomplete_groups",
            &[
                ("drop", IncompleteGroups::Drop),
                ("keep", IncompleteGroups::Keep),
            ],
        )
        .unwrap_or(default.incomplete_groups),
        turn_discount: reader
            .number(section, "turn_discount", NumberRange::FROM_0_TO_1)
            .unwrap_or(default.turn_discount),
        export_style: choice(
            reader,
            "export_style",
            &[
                ("individual", ExportStyle::Individual),
                ("concat", ExportStyle::Concat),
            ],
        )
        .unwrap_or(default.export_style),
        stale_rows: choice(
            reader,
            "stale_rows",
            &[("drop", StaleRows::Drop), ("mask", StaleRows::Mask)],
        )
        .unwrap_or(default.stale_rows),
        stragglers: choice(
            reader,
            "stragglers",
            &[
                ("wait", Straggler::Wait),
                ("top_up", Straggler::TopUp),
                ("drop", Straggler::Drop),
            ],
        )
        .unwrap_or(default.stragglers),
        straggler_factor: reader
            .number(section, "straggler_factor", NumberRange::AT_LEAST_1)
            .map_or(default.straggler_factor, StragglerFactor),
        flat_groups: choice(
            reader,
            "flat_groups",
            &[("replace", FlatGroups::Replace), ("keep", FlatGroups::Keep)],
        )
        .unwrap_or(default.flat_groups),
        objective,
        reward_range: reader.reward_range(section),
        model_errors: read_model_errors(reader, section),
        clip_ratio_high,
        dual_clip: reader.number(section, "dual_clip", NumberRange::MORE_THAN_1),
        kl_estimator: objective::read_kl_estimator(reader).unwrap_or(default.kl_estimator),
        entropy_coef: reader
            .number(section, "entropy_coef", NumberRange::NOT_NEGATIVE)
            .unwrap_or(default.entropy_coef),
        loss_normalization: objective::read_loss_normalization(reader)
            .or(default.loss_normalization),
        overlong: objective::read_overlong(reader, max_response_length, default.overlong),
        max_extra_rows: reader
            .small_integer(section, "max_extra_rows", 0)
            .unwrap_or(default.max_extra_rows),
        rows: objective::read_rows(reader),
        lora: super::lora::read(reader, "training.lora"),
        recipe,
    };
    if section.entry("max_extra_rows").is_none()
        && objective::why_no_extra_rows(&training).is_some()
    {
        training.max_extra_rows = 0;
    }
    objective::refuse_combinations(reader, &training);
    training
}

/// One of a few words.
pub(super) fn choice<T: Copy>(
    reader: &mut Reader<'_>,
    key: &'static str,
    choices: &[(&'static str, T)],
) -> Option<T> {
    let section = reader.section("training");
    choice_in(reader, section, key, choices)
}

pub(super) fn choice_in<'d, T: Copy>(
    reader: &mut Reader<'d>,
    section: Section<'d>,
    key: &'static str,
    choices: &[(&'static str, T)],
) -> Option<T> {
    reader.parsed(
        section,
        key,
        |text| {
            choices
                .iter()
                .find(|(word, _)| *word == text)
                .map(|(_, value)| *value)
                .ok_or_else(|| format!("unknown value `{}`", text.escape_debug()))
        },
        |_| {
            let words = choices.iter().map(|(word, _)| *word);
            Some(format!("write {}", listed(words, "or")))
        },
    )
}

/// `[checkpoints]`, in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Checkpoints {
    pub eval_interval: u64,
    pub checkpoint_save_freq: u64,
    /// Keep so many of the newest checkpoints. Without this and the next, all are kept. Neither is part of what
    /// a run is pinned to: a resume may change them.
    #[serde(skip)]
    pub keep_last: Option<u64>,
    /// Keep so many of the best by the evaluation on held-out rows.
    #[serde(skip)]
    pub keep_best: Option<u64>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            eval_interval: 10,
            checkpoint_save_freq: 20,
            keep_last: None,
            keep_best: None,
        }
    }
}

pub(super) fn read_checkpoints(reader: &mut Reader<'_>) -> Checkpoints {
    let section = reader.section("checkpoints");
    let default = Checkpoints::default();
    Checkpoints {
        eval_interval: reader
            .integer(section, "eval_interval", 1..=u64::MAX)
            .unwrap_or(default.eval_interval),
        checkpoint_save_freq: reader
            .integer(section, "checkpoint_save_freq", 1..=u64::MAX)
            .unwrap_or(default.checkpoint_save_freq),
        keep_last: reader.integer(section, "keep_last", 1..=u64::MAX),
        keep_best: reader.integer(section, "keep_best", 1..=u64::MAX),
    }
}
