//! The keys of `[training]` that say what an update minimises, and which rows it is made of.

use serde::Serialize;

use super::ConfigProblem;
use super::range::NumberRange;
use super::reader::Reader;
use super::training::{Algorithm, FlatGroups, Training, choice};
use crate::learner::KlEstimator;

/// What an update is held near, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The policy that sampled, token by token.
    #[default]
    Clipped,
    /// The policy that the batch finds; what others sampled is weighed by how much likelier it has become.
    Decoupled {
        /// More than 1. Tokens with a larger weight are not trained on.
        behaviour_weight_cap: f64,
    },
    /// The policy that sampled, by the ratio of the whole sequence.
    Gspo,
    /// Nothing: every token keeps its gradient, and the ratio is a weight with an upper bound.
    Cispo,
}

/// AReaL's.
const DEFAULT_BEHAVIOUR_WEIGHT_CAP: f64 = 5.0;

/// The paper's. A mean over many tokens varies much less than the ratio of one.
pub(super) const GSPO_CLIP: (f64, f64) = (3e-4, 4e-4);

/// What the weights of tokens add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossNormalization {
    /// Every sample counts the same: 1 / (samples · tokens of the sample).
    Sample,
    /// Every token counts the same: 1 / tokens of the batch.
    Batch,
    /// Every token counts the same: 1 / (samples · `max_response_length`).
    Constant,
    /// The sum of each sample's tokens: 1 / samples.
    None,
}

/// Answers that come near `max_response_length` count as worse than they were.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Overlong {
    /// Tokens before `max_response_length` in which the penalty rises.
    pub buffer: u32,
    /// What an answer of `max_response_length` loses.
    pub penalty: f64,
}

impl Overlong {
    /// What an answer of so many tokens loses: 0 up to the buffer, and the whole penalty at its end.
    pub fn penalty(&self, tokens: u64, max_response_length: u32) -> f64 {
        let begins = u64::from(max_response_length.saturating_sub(self.buffer));
        let over = tokens.saturating_sub(begins).min(u64::from(self.buffer));
        self.penalty * over as f64 / f64::from(self.buffer.max(1))
    }
}

/// `[training.rows]`: which rows a step is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RowChoice {
    pub strategy: RowStrategy,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowStrategy {
    /// Each row once per epoch, in an order that follows from the seed.
    #[default]
    Uniform,
    /// Rows that are neither always solved nor never, as far as is known.
    Frontier,
}

impl Training {
    /// How tokens are weighed: as the config says, or as the algorithm has it.
    pub fn normalization(&self) -> LossNormalization {
        self.loss_normalization.unwrap_or(match self.algorithm {
            Algorithm::Grpo => LossNormalization::Sample,
            Algorithm::DrGrpo => LossNormalization::Constant,
            Algorithm::Rloo => LossNormalization::None,
            Algorithm::ReinforcePlusPlus | Algorithm::ReinforcePlusPlusBaseline => {
                LossNormalization::Batch
            }
        })
    }
}

/// How far a ratio may go: below 1, and above.
pub(super) fn read_clip(
    reader: &mut Reader<'_>,
    objective: Objective,
    default: &Training,
) -> (f64, Option<f64>) {
    let section = reader.section("training");
    let low = reader.number(section, "clip_ratio", NumberRange::POSITIVE);
    let high = reader.number(section, "clip_ratio_high", NumberRange::POSITIVE);
    let untouched =
        section.entry("clip_ratio").is_none() && section.entry("clip_ratio_high").is_none();
    // The bounds of a recipe stay, whatever the objective beside it.
    if objective == Objective::Gspo && untouched && section.entry("recipe").is_none() {
        return (GSPO_CLIP.0, Some(GSPO_CLIP.1));
    }
    (
        low.unwrap_or(default.clip_ratio),
        high.or(default.clip_ratio_high),
    )
}

/// `None` when it is left out, or was reported.
pub(super) fn read_objective(reader: &mut Reader<'_>) -> Option<Objective> {
    let section = reader.section("training");
    let decoupled = |behaviour_weight_cap| Objective::Decoupled {
        behaviour_weight_cap,
    };
    let objective = choice(
        reader,
        "objective",
        &[
            ("clipped", Objective::Clipped),
            ("decoupled", decoupled(DEFAULT_BEHAVIOUR_WEIGHT_CAP)),
            ("gspo", Objective::Gspo),
            ("cispo", Objective::Cispo),
        ],
    );
    let cap = reader.number(section, "behaviour_weight_cap", NumberRange::MORE_THAN_1);
    match objective {
        Some(Objective::Decoupled { .. }) => {
            Some(decoupled(cap.unwrap_or(DEFAULT_BEHAVIOUR_WEIGHT_CAP)))
        }
        // What is not understood is reported; nothing follows from it.
        None if section.entry("objective").is_some() => None,
        None | Some(Objective::Clipped | Objective::Gspo | Objective::Cispo) => {
            refuse(
                reader,
                "behaviour_weight_cap",
                "only the decoupled objective has such a cap",
                "write `objective = \"decoupled\"` too, or leave it out",
            );
            objective
        }
    }
}

pub(super) fn read_kl_estimator(reader: &mut Reader<'_>) -> Option<KlEstimator> {
    let section = reader.section("training");
    reader.parsed(
        section,
        "kl_estimator",
        |text| match text {
            "k2" => Ok(KlEstimator::K2),
            "k3" => Ok(KlEstimator::K3),
            "k1" => Err(
                "`k1` pulls nowhere: as a part of the loss its gradient is 0 on average".to_owned(),
            ),
            _ => Err(format!("unknown value `{}`", text.escape_debug())),
        },
        |_| Some("write `k2` or `k3`".to_owned()),
    )
}

pub(super) fn read_loss_normalization(reader: &mut Reader<'_>) -> Option<LossNormalization> {
    choice(
        reader,
        "loss_normalization",
        &[
            ("sample", LossNormalization::Sample),
            ("batch", LossNormalization::Batch),
            ("constant", LossNormalization::Constant),
            ("none", LossNormalization::None),
        ],
    )
}

pub(super) fn read_overlong(
    reader: &mut Reader<'_>,
    max_response_length: u32,
    default: Option<Overlong>,
) -> Option<Overlong> {
    let section = reader.section("training");
    let buffer = reader.small_integer(section, "overlong_buffer", 1);
    let penalty = reader.number(section, "overlong_penalty", NumberRange::POSITIVE);
    if section.entry("overlong_buffer").is_none() && default.is_none() {
        refuse(
            reader,
            "overlong_penalty",
            "there is no `overlong_buffer` in which it would rise",
            "write `overlong_buffer = TOKENS` too, or leave it out",
        );
    }
    let buffer = buffer.or(default.map(|default| default.buffer))?;
    if buffer > max_response_length {
        refuse(
            reader,
            "overlong_buffer",
            &format!("it is longer than an answer may be, which is {max_response_length} tokens"),
            "write a part of `max_response_length`, like a fifth of it",
        );
    }
    Some(Overlong {
        buffer,
        penalty: penalty
            .or(default.map(|default| default.penalty))
            .unwrap_or(1.0),
    })
}

pub(super) fn read_rows(reader: &mut Reader<'_>) -> RowChoice {
    let section = reader.section("training.rows");
    let strategy = super::training::choice_in(
        reader,
        section,
        "strategy",
        &[
            ("uniform", RowStrategy::Uniform),
            ("frontier", RowStrategy::Frontier),
        ],
    );
    RowChoice {
        strategy: strategy.unwrap_or_default(),
    }
}

/// Reports keys that exclude each other, or that would do nothing.
pub(super) fn refuse_combinations(reader: &mut Reader<'_>, training: &Training) {
    let asynchronous = training.max_staleness > 0;
    if training.algorithm == Algorithm::Rloo && training.updates_per_batch > 1 {
        // RLOO weighs the log-probability of a whole sample. After the first update of a batch the ratio to the
        // policy that sampled is no longer 1 and would be clipped token by token, which is another objective.
        refuse(
            reader,
            "updates_per_batch",
            "`rloo` makes one update per batch: further ones would be clipped token by token, while its objective \
             is of whole samples",
            "write `updates_per_batch = 1`, or `algorithm = \"grpo\"`",
        );
    }
    if matches!(training.objective, Objective::Gspo | Objective::Cispo) {
        refuse(
            reader,
            "dual_clip",
            "only the clipped and the decoupled objective have a second clip",
            "leave it out",
        );
    }
    if training.objective == Objective::Gspo
        && training.normalization() != LossNormalization::Sample
    {
        let key = ["loss_normalization", "algorithm"];
        let section = reader.section("training");
        let key = key.into_iter().find(|key| section.entry(key).is_some());
        refuse(
            reader,
            key.unwrap_or("objective"),
            "`gspo` is a mean over samples, each with one ratio: its tokens can't be weighed in another way",
            "write `loss_normalization = \"sample\"`",
        );
    }
    if training.kl_coef == 0.0 {
        refuse(
            reader,
            "kl_estimator",
            "nothing is estimated without `kl_coef`",
            "write `kl_coef` above 0 too, or leave it out",
        );
    }
    if training.max_extra_rows > 0
        && let Some((message, suggestion)) = why_no_extra_rows(training)
    {
        refuse(reader, "max_extra_rows", message, suggestion);
    }
    if asynchronous && training.rows.strategy == RowStrategy::Frontier {
        let section = reader.section("training.rows");
        if let Some(entry) = section.entry("strategy") {
            let problem = ConfigProblem::Unusable {
                section: section.name,
                key: "strategy".to_owned(),
                message: "asynchronous training begins rollouts before the results that `frontier` chooses by are there"
                    .to_owned(),
                suggestion: Some("write `max_staleness = 0`, or `strategy = \"uniform\"`".to_owned()),
            };
            reader.report(entry.key_offset, problem);
        }
    }
}

/// Why rows with equal rewards are not replaced by `max_extra_rows` others, and what to do; `None` when they are.
pub(super) fn why_no_extra_rows(training: &Training) -> Option<(&'static str, &'static str)> {
    if training.max_staleness > 0 {
        Some((
            "asynchronous training replaces groups with equal rewards without a bound",
            "leave it out: `flat_groups = \"replace\"` is the default there",
        ))
    } else if training.flat_groups == FlatGroups::Keep {
        Some((
            "`flat_groups = \"keep\"` keeps the groups that further rows would replace",
            "leave one of the two out",
        ))
    } else if training.algorithm == Algorithm::ReinforcePlusPlus {
        Some((
            "`reinforce_plus_plus` compares with the whole batch, so that it learns from groups with equal \
             rewards too",
            "leave it out, or write `algorithm = \"reinforce_plus_plus_baseline\"`",
        ))
    } else {
        None
    }
}

/// Reports a key of `[training]`, where it stands; nothing when it is not there.
fn refuse(reader: &mut Reader<'_>, key: &'static str, message: &str, suggestion: &str) {
    let section = reader.section("training");
    if let Some(entry) = section.entry(key) {
        let problem = ConfigProblem::Unusable {
            section: section.name,
            key: key.to_owned(),
            message: message.to_owned(),
            suggestion: Some(suggestion.to_owned()),
        };
        reader.report(entry.key_offset, problem);
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::super::TrainConfig;
    use super::*;

    const EXPERIMENT: &str = "[experiment]\nrollout = 'multiply'\nentrypoint = 'main.py'\n\
                              model_path = 'builtin/tiny'\ndataset = 'multiply'\n[training]\n";

    fn train(rest: &str) -> Training {
        TrainConfig::parse("train.toml".into(), &format!("{EXPERIMENT}{rest}"))
            .unwrap()
            .training
    }

    /// Below six lines.
    fn errors(rest: &str) -> String {
        TrainConfig::parse("train.toml".into(), &format!("{EXPERIMENT}{rest}"))
            .expect_err("the config was accepted")
            .render()
    }

    #[test]
    fn the_penalty_rises_through_the_buffer() {
        let overlong = Overlong {
            buffer: 4,
            penalty: 2.0,
        };
        for (tokens, expected) in [(0, 0.0), (6, 0.0), (7, 0.5), (8, 1.0), (10, 2.0), (99, 2.0)] {
            let penalty = overlong.penalty(tokens, 10);
            assert!((penalty - expected).abs() < 1e-12, "{tokens}: {penalty}");
        }
    }

    #[test]
    fn what_changes_nothing_is_no_part_of_what_a_run_is_pinned_to() {
        let pinned = serde_json::to_value(train("")).unwrap();
        for key in [
            "clip_ratio_high",
            "dual_clip",
            "kl_estimator",
            "entropy_coef",
            "loss_normalization",
            "overlong",
            "max_extra_rows",
            "rows",
        ] {
            assert_eq!(pinned.get(key), None, "{key}");
        }
        let text = "clip_ratio_high = 0.28\ndual_clip = 3\nkl_coef = 0.1\nkl_estimator = 'k2'\n\
                    entropy_coef = 0.01\nloss_normalization = 'batch'\noverlong_buffer = 100\n\
                    max_extra_rows = 64\n[training.rows]\nstrategy = 'frontier'\n";
        let all = train(text);
        assert_eq!(all.normalization(), LossNormalization::Batch);
        let pinned = serde_json::to_value(&all).unwrap();
        assert_eq!(pinned["clip_ratio_high"], 0.28);
        assert_eq!(pinned["kl_estimator"], "k2");
        let overlong = serde_json::json!({"buffer": 100, "penalty": 1.0});
        assert_eq!(pinned["overlong"], overlong);
        assert_eq!(pinned["rows"]["strategy"], "frontier");
        assert_eq!(train("[training.rows]\nstrategy = 'uniform'\n"), train(""));
    }

    #[test]
    fn gspo_has_a_clip_of_its_own_unless_one_is_set() {
        let clip = |rest: &str| {
            let training = train(&format!("objective = 'gspo'\n{rest}"));
            (training.clip_ratio, training.clip_ratio_high)
        };
        assert_eq!(clip(""), (3e-4, Some(4e-4)));
        assert_eq!(clip("clip_ratio = 0.01\n"), (0.01, None));
        let cispo = train("objective = 'cispo'\nclip_ratio_high = 4\n");
        assert_eq!((cispo.clip_ratio, cispo.clip_ratio_high), (0.2, Some(4.0)));
    }

    #[test]
    fn one_attempt_per_row_is_enough_for_an_algorithm_that_compares_with_the_batch() {
        let one = train("algorithm = 'reinforce_plus_plus'\nn_samples_per_prompt = 1\n");
        assert_eq!(one.normalization(), LossNormalization::Batch);
        assert_snapshot!(errors("algorithm = 'reinforce_plus_plus_baseline'\nn_samples_per_prompt = 1\n"), @"train.toml:8:24: `n_samples_per_prompt` in `[training]` must be at least 2, not `1`");
    }

    #[test]
    fn keys_that_do_nothing_or_exclude_each_other_are_told_with_a_way_out() {
        assert_snapshot!(errors("objective = 'gspo'\ndual_clip = 3\nalgorithm = 'dr_grpo'\n"), @r#"
        train.toml:8:1: `dual_clip` in `[training]`: only the clipped and the decoupled objective have a second clip
          hint: leave it out
        train.toml:9:1: `algorithm` in `[training]`: `gspo` is a mean over samples, each with one ratio: its tokens can't be weighed in another way
          hint: write `loss_normalization = "sample"`
        "#);
        assert_snapshot!(errors("kl_estimator = 'k2'\noverlong_penalty = 1\n"), @r"
        train.toml:7:1: `kl_estimator` in `[training]`: nothing is estimated without `kl_coef`
          hint: write `kl_coef` above 0 too, or leave it out
        train.toml:8:1: `overlong_penalty` in `[training]`: there is no `overlong_buffer` in which it would rise
          hint: write `overlong_buffer = TOKENS` too, or leave it out
        ");
        assert_snapshot!(errors("kl_coef = 0.1\nkl_estimator = 'k1'\nmax_response_length = 10\noverlong_buffer = 11\n"), @r"
        train.toml:8:16: `kl_estimator` in `[training]`: `k1` pulls nowhere: as a part of the loss its gradient is 0 on average
          hint: write `k2` or `k3`
        train.toml:10:1: `overlong_buffer` in `[training]`: it is longer than an answer may be, which is 10 tokens
          hint: write a part of `max_response_length`, like a fifth of it
        ");
        assert_snapshot!(errors("max_staleness = 1\nmax_extra_rows = 4\n[training.rows]\nstrategy = 'frontier'\n"), @r#"
        train.toml:8:1: `max_extra_rows` in `[training]`: asynchronous training replaces groups with equal rewards without a bound
          hint: leave it out: `flat_groups = "replace"` is the default there
        train.toml:10:1: `strategy` in `[training.rows]`: asynchronous training begins rollouts before the results that `frontier` chooses by are there
          hint: write `max_staleness = 0`, or `strategy = "uniform"`
        "#);
        assert_snapshot!(errors("max_extra_rows = 4\nflat_groups = 'keep'\n"), @r#"
        train.toml:7:1: `max_extra_rows` in `[training]`: `flat_groups = "keep"` keeps the groups that further rows would replace
          hint: leave one of the two out
        "#);
        assert_snapshot!(errors("max_extra_rows = 4\nalgorithm = 'reinforce_plus_plus'\n"), @r#"
        train.toml:7:1: `max_extra_rows` in `[training]`: `reinforce_plus_plus` compares with the whole batch, so that it learns from groups with equal rewards too
          hint: leave it out, or write `algorithm = "reinforce_plus_plus_baseline"`
        "#);
    }

    #[test]
    fn the_section_within_the_section_is_checked_as_others_are() {
        assert_snapshot!(errors("rows = 3\n"), @"train.toml:7:1: section `[training.rows]` must be a table, found an integer");
        assert_snapshot!(errors("[training.rows]\nstrategie = 'frontier'\n"), @r"
        train.toml:8:1: unknown key `strategie` in `[training.rows]`
          hint: did you mean `strategy`?
        ");
        assert_snapshot!(errors("rows.strategy = 'best'\n"), @r"
        train.toml:7:17: `strategy` in `[training.rows]`: unknown value `best`
          hint: write `uniform` or `frontier`
        ");
    }
}
