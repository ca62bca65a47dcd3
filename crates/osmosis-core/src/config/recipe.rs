//! `[training] recipe`: the algorithm of a paper by its name, as values for the keys that the config leaves out.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::objective::{GSPO_CLIP, LossNormalization, Objective, Overlong};
use super::reader::Reader;
use super::training::{Algorithm, Training, choice};
use crate::learner::KlEstimator;

/// A published algorithm. Each is what its paper trains with, as far as this program has an option for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Recipe {
    Grpo,
    DrGrpo,
    Dapo,
    Gspo,
    Cispo,
    ReinforcePlusPlusBaseline,
}

/// The recipe of a training, and what its config has otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecipeReport {
    pub name: Recipe,
    /// Keys of `[training]` that the config sets to other values than the recipe's.
    pub set_beside: Vec<SetBeside>,
}

/// A key that the config sets beside its recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SetBeside {
    pub key: String,
    /// The recipe's value; `null` when it leaves the key out.
    pub recipe: Value,
    /// The value that is in effect.
    pub config: Value,
}

impl Recipe {
    pub const ALL: [(&'static str, Self); 6] = [
        ("grpo", Self::Grpo),
        ("dr_grpo", Self::DrGrpo),
        ("dapo", Self::Dapo),
        ("gspo", Self::Gspo),
        ("cispo", Self::Cispo),
        (
            "reinforce_plus_plus_baseline",
            Self::ReinforcePlusPlusBaseline,
        ),
    ];

    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, recipe)| *recipe == self);
        found.map_or("", |(name, _)| name)
    }

    /// What the keys that a config leaves out are. Some values depend on the config's lengths and batches.
    pub(super) fn defaults(
        self,
        max_response_length: u32,
        rollout_batch_size: u32,
        max_staleness: u32,
    ) -> Training {
        let base = Training::default();
        match self {
            Self::Grpo => Training {
                algorithm: Algorithm::Grpo,
                loss_normalization: Some(LossNormalization::Sample),
                kl_coef: 0.04,
                ..base
            },
            Self::DrGrpo => Training {
                algorithm: Algorithm::DrGrpo,
                loss_normalization: Some(LossNormalization::Constant),
                ..base
            },
            Self::Dapo => Training {
                algorithm: Algorithm::Grpo,
                loss_normalization: Some(LossNormalization::Batch),
                clip_ratio_high: Some(0.28),
                // 4,096 of 20,480 tokens in the paper.
                overlong: Some(Overlong {
                    buffer: (max_response_length / 5).max(1),
                    penalty: 1.0,
                }),
                // The paper has no bound. Its program gives up after ten batches.
                max_extra_rows: match max_staleness {
                    0 => rollout_batch_size.saturating_mul(9),
                    // There, groups with equal rewards are replaced without a bound.
                    _ => 0,
                },
                ..base
            },
            Self::Gspo => Training {
                algorithm: Algorithm::Grpo,
                objective: Objective::Gspo,
                loss_normalization: Some(LossNormalization::Sample),
                clip_ratio: GSPO_CLIP.0,
                clip_ratio_high: Some(GSPO_CLIP.1),
                ..base
            },
            Self::Cispo => Training {
                algorithm: Algorithm::Grpo,
                objective: Objective::Cispo,
                loss_normalization: Some(LossNormalization::Batch),
                // The weight's upper bound of 5 is ScaleRL's; the paper names none.
                clip_ratio_high: Some(4.0),
                ..base
            },
            Self::ReinforcePlusPlusBaseline => Training {
                algorithm: Algorithm::ReinforcePlusPlusBaseline,
                loss_normalization: Some(LossNormalization::Batch),
                kl_estimator: KlEstimator::K2,
                ..base
            },
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Option<Recipe> {
    choice(reader, "recipe", &Recipe::ALL)
}

impl Training {
    /// The recipe, and every key of the loss that is not as the recipe has it; `None` without a recipe.
    pub fn recipe_report(&self) -> Option<RecipeReport> {
        let name = self.recipe?;
        let recipe = name.defaults(
            self.max_response_length,
            self.rollout_batch_size,
            self.max_staleness,
        );
        let both = recipe.loss_keys().into_iter().zip(self.loss_keys());
        let set_beside = both
            .filter(|((_, recipe), (_, config))| recipe != config)
            .map(|((key, recipe), (_, config))| SetBeside {
                key: key.to_owned(),
                recipe,
                config,
            });
        Some(RecipeReport {
            name,
            set_beside: set_beside.collect(),
        })
    }

    /// The keys that a recipe is about, with their values in effect; `null` for one without an effect.
    fn loss_keys(&self) -> [(&'static str, Value); 13] {
        let (objective, cap) = match self.objective {
            Objective::Clipped => ("clipped", Value::Null),
            Objective::Decoupled {
                behaviour_weight_cap,
            } => ("decoupled", json!(behaviour_weight_cap)),
            Objective::Gspo => ("gspo", Value::Null),
            Objective::Cispo => ("cispo", Value::Null),
        };
        let overlong = self.overlong;
        [
            ("algorithm", json!(self.algorithm)),
            ("objective", json!(objective)),
            ("behaviour_weight_cap", cap),
            ("loss_normalization", json!(self.normalization())),
            ("clip_ratio", json!(self.clip_ratio)),
            (
                "clip_ratio_high",
                json!(self.clip_ratio_high.unwrap_or(self.clip_ratio)),
            ),
            ("dual_clip", json!(self.dual_clip)),
            ("kl_coef", json!(self.kl_coef)),
            ("kl_estimator", json!(self.kl_estimator)),
            ("entropy_coef", json!(self.entropy_coef)),
            ("overlong_buffer", json!(overlong.map(|all| all.buffer))),
            ("overlong_penalty", json!(overlong.map(|all| all.penalty))),
            ("max_extra_rows", json!(self.max_extra_rows)),
        ]
    }
}

impl std::fmt::Display for RecipeReport {
    /// `dapo, but clip_ratio_high = 0.3 (dapo: 0.28)`
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.name.name();
        formatter.write_str(name)?;
        for (place, key) in self.set_beside.iter().enumerate() {
            let before = if place == 0 { ", but " } else { ", " };
            let SetBeside {
                key,
                recipe,
                config,
            } = key;
            write!(
                formatter,
                "{before}{key} = {} ({name}: {})",
                plain(config),
                plain(recipe)
            )?;
        }
        Ok(())
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "unset".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::super::TrainConfig;
    use super::*;

    fn parsed(rest: &str) -> Result<Training, String> {
        let text = format!(
            "[experiment]\nrollout = 'multiply'\nentrypoint = 'main.py'\nmodel_path = 'builtin/tiny'\n\
             dataset = 'multiply'\n[training]\n{rest}"
        );
        let config = TrainConfig::parse("train.toml".into(), &text);
        config
            .map(|config| config.training)
            .map_err(|errors| errors.render())
    }

    fn report(rest: &str) -> String {
        parsed(rest).unwrap().recipe_report().unwrap().to_string()
    }

    /// The table of docs/training.md, which this is compared with.
    fn table() -> String {
        let shown = |value: &Value| match value {
            Value::Null => "–".to_owned(),
            Value::String(text) => format!("`\"{text}\"`"),
            other => other.to_string(),
        };
        let mut lines = vec![];
        let recipes: Vec<Training> = Recipe::ALL
            .iter()
            .map(|(name, _)| parsed(&format!("recipe = '{name}'")).unwrap())
            .collect();
        let names = Recipe::ALL.iter().map(|(name, _)| format!("`{name}`"));
        lines.push(format!(
            "| key | {} |",
            names.collect::<Vec<_>>().join(" | ")
        ));
        lines.push(format!("|---|{}", "---|".repeat(recipes.len())));
        for (place, (key, _)) in Training::default().loss_keys().iter().enumerate() {
            let values: Vec<String> = recipes
                .iter()
                .map(|training| match (*key, training.max_extra_rows) {
                    ("overlong_buffer", _) if training.overlong.is_some() => {
                        "`max_response_length` / 5".to_owned()
                    }
                    ("max_extra_rows", 1..) => "9 · `rollout_batch_size`".to_owned(),
                    _ => shown(&training.loss_keys()[place].1),
                })
                .collect();
            lines.push(format!("| `{key}` | {} |", values.join(" | ")));
        }
        lines.join("\n")
    }

    #[test]
    fn the_docs_have_what_each_recipe_sets() {
        let docs = include_str!("../../../../docs/training.md");
        assert!(
            docs.contains(&table()),
            "docs/training.md should have:\n{}",
            table()
        );
    }

    #[test]
    fn every_recipe_is_what_its_keys_say_when_they_are_written_out() {
        for (recipe, keys) in [
            ("grpo", "kl_coef = 0.04\n"),
            ("dr_grpo", "algorithm = 'dr_grpo'\n"),
            (
                "dapo",
                "clip_ratio_high = 0.28\nloss_normalization = 'batch'\noverlong_buffer = 1638\n\
                 max_extra_rows = 288\n",
            ),
            ("gspo", "objective = 'gspo'\n"),
            (
                "cispo",
                "objective = 'cispo'\nclip_ratio_high = 4\nloss_normalization = 'batch'\n",
            ),
            (
                "reinforce_plus_plus_baseline",
                "algorithm = 'reinforce_plus_plus_baseline'\n",
            ),
        ] {
            let by_recipe = parsed(&format!("recipe = '{recipe}'\n")).unwrap();
            let by_keys = parsed(keys).unwrap();
            let (one, mut other) = (by_recipe.loss_keys(), by_keys.loss_keys());
            if recipe == "reinforce_plus_plus_baseline" {
                // Without `kl_coef` it can't be written.
                other[8].1 = json!("k2");
            }
            assert_eq!(one, other, "{recipe}");
            assert_eq!(by_recipe.recipe_report().unwrap().to_string(), recipe);
        }
    }

    #[test]
    fn a_key_beside_the_recipe_wins_and_is_named() {
        assert_eq!(
            report("recipe = 'dapo'\nclip_ratio_high = 0.3\noverlong_penalty = 0.5\n"),
            "dapo, but clip_ratio_high = 0.3 (dapo: 0.28), overlong_penalty = 0.5 (dapo: 1.0)"
        );
        // The recipe's own value is no deviation.
        assert_eq!(report("clip_ratio_high = 0.28\nrecipe = 'dapo'\n"), "dapo");
        assert_eq!(
            report("recipe = 'grpo'\nkl_coef = 0\ndual_clip = 3\n"),
            "grpo, but dual_clip = 3.0 (grpo: unset), kl_coef = 0.0 (grpo: 0.04)"
        );
        assert_eq!(
            report("recipe = 'dapo'\nflat_groups = 'keep'\n"),
            "dapo, but max_extra_rows = 0 (dapo: 288)"
        );
        // What depends on other keys follows them.
        let small = "max_response_length = 50\nrollout_batch_size = 2\n";
        let dapo = parsed(&format!("recipe = 'dapo'\n{small}")).unwrap();
        assert_eq!(dapo.overlong.map(|overlong| overlong.buffer), Some(10));
        assert_eq!(dapo.max_extra_rows, 18);
        assert_eq!(report(&format!("recipe = 'dapo'\n{small}")), "dapo");
        // Replaces groups with equal rewards in another way.
        assert_eq!(report("recipe = 'dapo'\nmax_staleness = 2\n"), "dapo");
        assert_eq!(parsed("").unwrap().recipe_report(), None);
    }

    #[test]
    fn a_recipe_that_is_not_known_is_an_error_with_the_known_ones() {
        assert_snapshot!(parsed("recipe = 'ppo'\n").unwrap_err(), @r"
        train.toml:7:10: `recipe` in `[training]`: unknown value `ppo`
          hint: write `grpo`, `dr_grpo`, `dapo`, `gspo`, `cispo` or `reinforce_plus_plus_baseline`
        ");
        let clash = "recipe = 'dapo'\nobjective = 'gspo'\n";
        assert_snapshot!(parsed(clash).unwrap_err(), @r#"
        train.toml:8:1: `objective` in `[training]`: `gspo` is a mean over samples, each with one ratio: its tokens can't be weighed in another way
          hint: write `loss_normalization = "sample"`
        "#);
    }
}
