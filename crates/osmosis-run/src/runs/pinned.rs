//! What a run is pinned to. A resume with anything of it changed would mix two experiments.

use std::collections::BTreeMap;

use osmosis_core::{JsonText, RewardRange};
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value};

use super::{FileChanges, PinnedDifferences, RegradedFrom};
use crate::eval::prices::Prices;
use crate::source_files::ProjectSource;
use crate::{RunError, RunErrorKind};

/// What a resume goes on with but may change; no part of what the run is.
const REMEMBERED: &str = "remembered.";

/// The sections that say how samples are graded, and by what; the others say how they came to be.
const SECTIONS_OF_THE_GRADER: &[&str] = &["grader.", "env.", "secrets."];
/// The same for single facts.
const FACTS_OF_THE_GRADER: &[&str] = &[
    "judge_model",
    "judge",
    "evaluation.pass_threshold",
    "evaluation.reward_range",
    "evaluation.grader_timeout_s",
    "experiment.rollout",
    "experiment.entrypoint",
    "experiment.branch",
    "experiment.commit_sha",
    "source_sha256",
    "environment_sha256",
    "rows",
];

/// The facts of a run: the settings of its config, and what they led to. Throughput settings are not among
/// them.
///
/// In the store they are one flat JSON object, [`Pinned::facts`]. A fact that is `null` there is the same as
/// one that is missing, and what this version does not know stays among the settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pinned {
    /// The config, one fact for each key: `section.key`.
    pub settings: Map<String, Value>,
    /// `outside` when another process trains the policy, `supervised` when it learns from conversations.
    pub trainer: Option<String>,
    /// Which policy answers: where it is, and the seed of one that samples here.
    pub model: Option<Value>,
    /// The weights that training starts with.
    pub model_sha256: Option<String>,
    /// What the grader may ask; as `model`.
    pub judge: Option<Value>,
    pub dataset_sha256: Option<String>,
    /// Of the held-out rows, when they are a dataset of their own.
    pub eval_dataset_sha256: Option<String>,
    /// `--rows`.
    pub rows: Option<String>,
    /// The files of the user's code, all in one.
    pub source_sha256: Option<String>,
    /// Each of those that count, by its path from the project's folder; runs from before they were kept have
    /// none.
    pub source_files: Option<BTreeMap<String, String>>,
    pub environment_sha256: Option<String>,
    /// The rollout server that runs the user's code, when it is not run here.
    pub server: Option<String>,
    /// Rows that equal rows made `eval_fraction` hold out, or not, otherwise than by chance.
    pub held_out_rows_moved: Option<String>,
    /// The run whose samples this one grades.
    pub regraded_from: Option<RegradedFrom>,
    pub remembered: Remembered,
}

/// What a resume would otherwise have to be told again. It is no part of what the run is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Remembered {
    /// The config file, from the workspace's folder.
    pub config: Option<String>,
    /// What was set beside it, as `--set` takes it. The settings have it already; a regrade, which goes by the
    /// file as it is then, sets it again.
    pub overrides: Vec<String>,
    pub prices: Option<Prices>,
    /// How the rollout server reaches us.
    pub public_url: Option<String>,
    pub listen: Option<String>,
    /// The variable that has the rollout server's key.
    pub server_key_env: Option<String>,
    /// How held-out rows were compared with those that are trained on; runs from before they were have none.
    pub rows_compared: Option<String>,
    /// Rows of the dataset.
    pub dataset_rows: Option<u64>,
    /// The kind of processor that the run was begun on.
    pub processor: Option<String>,
}

impl Pinned {
    /// The fact that has the digests of single files.
    pub(crate) const SOURCE_FILES: &str = "source_files";

    /// Pins the project's files.
    pub fn pin_source(&mut self, source: ProjectSource) {
        self.source_sha256 = Some(source.sha256);
        self.source_files = Some(source.files);
    }

    /// The project's files that differ; `None` where that can't be said.
    pub fn files_changed(&self, now: &Self) -> Option<FileChanges> {
        let (before, now) = (self.source_files.as_ref()?, now.source_files.as_ref()?);
        Some(FileChanges::between(before, now))
    }

    /// The settings of a config, one fact for each key: `section.key`.
    pub fn of_config(config: &impl Serialize) -> Result<Self, RunError> {
        let config = serde_json::to_value(config)
            .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
        let mut settings = Map::new();
        if let Value::Object(sections) = config {
            for (section, value) in sections {
                match value {
                    Value::Object(keys) => {
                        for (key, value) in keys {
                            settings.insert(format!("{section}.{key}"), value);
                        }
                    }
                    other => {
                        settings.insert(section, other);
                    }
                }
            }
        }
        Ok(Self {
            settings,
            ..Self::default()
        })
    }

    /// `[experiment] rollout`.
    pub fn project(&self) -> Option<&str> {
        self.text("experiment.rollout")
    }

    /// `[experiment] model_path`.
    pub fn model_path(&self) -> Option<&str> {
        self.text("experiment.model_path")
    }

    /// `[experiment] dataset`.
    pub fn dataset(&self) -> Option<&str> {
        self.text("experiment.dataset")
    }

    /// How many rollouts each row has: `n` of an evaluation, `n_samples_per_prompt` of a training.
    pub fn rollouts_per_row(&self) -> Option<u32> {
        let n = self.number("evaluation.n");
        let n = n.or_else(|| self.number("training.n_samples_per_prompt"))?;
        Some(u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// `[evaluation] limit`, or `--limit`.
    pub fn limit(&self) -> Option<u64> {
        self.number("evaluation.limit")
    }

    /// `[evaluation] reward_range`.
    pub fn reward_range(&self) -> Option<RewardRange> {
        let stated = self.settings.get("evaluation.reward_range")?;
        RewardRange::deserialize(stated).ok()
    }

    /// `[training] seed`, or the one that was chosen.
    pub fn training_seed(&self) -> Option<u64> {
        self.number("training.seed")
    }

    /// Where the random numbers of an embedded policy start.
    pub fn model_seed(&self) -> Option<u64> {
        self.model.as_ref().and_then(seed_of)
    }

    /// Where the random numbers of an embedded judge start.
    pub fn judge_seed(&self) -> Option<u64> {
        self.judge.as_ref().and_then(seed_of)
    }

    /// Whether a fact is no part of what the run is.
    pub fn is_remembered(fact: &str) -> bool {
        fact.starts_with(REMEMBERED)
    }

    /// Whether a fact says how samples are graded, and not how they came to be.
    pub fn is_of_the_grader(fact: &str) -> bool {
        let mut sections = SECTIONS_OF_THE_GRADER.iter();
        FACTS_OF_THE_GRADER.contains(&fact) || sections.any(|section| fact.starts_with(section))
    }

    fn number(&self, setting: &str) -> Option<u64> {
        self.settings.get(setting).and_then(Value::as_u64)
    }

    fn text(&self, setting: &str) -> Option<&str> {
        self.settings.get(setting).and_then(Value::as_str)
    }

    /// All of them by name, in the order in which they are stored.
    pub fn facts(&self) -> Map<String, Value> {
        let mut facts = Facts::default();
        if let Some(from) = &self.regraded_from {
            let settings = self.settings.iter();
            let (of_grader, of_samples): (Vec<_>, Vec<_>) =
                settings.partition(|(name, _)| Self::is_of_the_grader(name));
            facts.copy(of_samples);
            facts.put("model", self.model.as_ref());
            facts.put("dataset_sha256", self.dataset_sha256.as_deref());
            facts.copy(of_grader);
            facts.put("source_sha256", self.source_sha256.as_deref());
            facts.put(Self::SOURCE_FILES, self.source_files.as_ref());
            facts.put_or_null("environment_sha256", self.environment_sha256.as_deref());
            facts.put("judge", self.judge.as_ref());
            facts.put_or_null("rows", self.rows.as_deref());
            facts.put("regraded_from", Some(from.run.as_str()));
            facts.put("regraded_from_created_at_ms", Some(from.created_at_ms));
            facts.put("policy_calls_in", Some(from.calls_in.as_str()));
            return facts.0;
        }
        facts.copy(&self.settings);
        facts.put("trainer", self.trainer.as_deref());
        facts.put("model", self.model.as_ref());
        if let Some(digest) = self.model_sha256.as_deref() {
            facts.put("model_sha256", Some(digest));
            // Not one of those that another process trains.
            facts.put_or_null("trainer", self.trainer.as_deref());
        }
        facts.put("judge", self.judge.as_ref());
        let remembered = &self.remembered;
        facts.put("remembered.config", remembered.config.as_deref());
        let overrides = Some(&remembered.overrides).filter(|overrides| !overrides.is_empty());
        facts.put("remembered.overrides", overrides);
        facts.put("dataset_sha256", self.dataset_sha256.as_deref());
        facts.put("eval_dataset_sha256", self.eval_dataset_sha256.as_deref());
        let is_evaluation = remembered.config.is_some();
        if is_evaluation {
            facts.put_or_null("rows", self.rows.as_deref());
        } else {
            facts.put("rows", self.rows.as_deref());
        }
        if let Some(digest) = self.source_sha256.as_deref() {
            facts.put("source_sha256", Some(digest));
            facts.put(Self::SOURCE_FILES, self.source_files.as_ref());
            facts.put_or_null("environment_sha256", self.environment_sha256.as_deref());
        }
        if let Some(server) = self.server.as_deref() {
            facts.put("server", Some(server));
            facts.put_or_null("remembered.public_url", remembered.public_url.as_deref());
            facts.put_or_null("remembered.listen", remembered.listen.as_deref());
            let key = remembered.server_key_env.as_deref();
            facts.put_or_null("remembered.server_key_env", key);
        }
        facts.put("held_out_rows_moved", self.held_out_rows_moved.as_deref());
        let prices = remembered.prices.map(Prices::to_text);
        if is_evaluation {
            facts.put_or_null("remembered.prices", prices);
        } else {
            facts.put("remembered.prices", prices);
        }
        facts.put(
            "remembered.rows_compared",
            remembered.rows_compared.as_deref(),
        );
        let rows = remembered.dataset_rows.map(|rows| rows.to_string());
        facts.put("remembered.dataset_rows", rows);
        facts.put("remembered.processor", remembered.processor.as_deref());
        facts.0
    }

    fn of_facts(facts: Map<String, Value>) -> Self {
        let mut facts = Facts(facts);
        let regraded_from = facts.take::<String>("regraded_from").map(|run| {
            let calls_in = facts.take("policy_calls_in");
            RegradedFrom {
                calls_in: calls_in.unwrap_or_else(|| run.clone()),
                created_at_ms: facts.take("regraded_from_created_at_ms").unwrap_or(0),
                run,
            }
        });
        let prices: Option<String> = facts.take("remembered.prices");
        let rows: Option<String> = facts.take("remembered.dataset_rows");
        let remembered = Remembered {
            config: facts.take("remembered.config"),
            overrides: facts.take("remembered.overrides").unwrap_or_default(),
            prices: prices.and_then(|text| Prices::of_text(&text)),
            public_url: facts.take("remembered.public_url"),
            listen: facts.take("remembered.listen"),
            server_key_env: facts.take("remembered.server_key_env"),
            rows_compared: facts.take("remembered.rows_compared"),
            dataset_rows: rows.and_then(|rows| rows.parse().ok()),
            processor: facts.take("remembered.processor"),
        };
        Self {
            trainer: facts.take("trainer"),
            model: facts.take("model"),
            model_sha256: facts.take("model_sha256"),
            judge: facts.take("judge"),
            dataset_sha256: facts.take("dataset_sha256"),
            eval_dataset_sha256: facts.take("eval_dataset_sha256"),
            rows: facts.take("rows"),
            source_sha256: facts.take("source_sha256"),
            source_files: facts.take(Self::SOURCE_FILES),
            environment_sha256: facts.take("environment_sha256"),
            server: facts.take("server"),
            held_out_rows_moved: facts.take("held_out_rows_moved"),
            regraded_from,
            remembered,
            settings: facts.0,
        }
    }

    pub fn to_json(&self) -> Result<JsonText, RunError> {
        JsonText::of(&self.facts())
            .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))
    }

    pub fn read(text: &JsonText) -> Result<Self, RunError> {
        text.read::<Map<String, Value>>()
            .map(Self::of_facts)
            .map_err(|error| RunError::failed(RunErrorKind::RunDamaged, error.to_string()))
    }

    /// Refuses when a fact differs, naming what.
    pub fn check(&self, now: &Self, run: &str) -> Result<(), RunError> {
        match PinnedDifferences::between(self, now) {
            Some(differences) => Err(differences.refusal(run, now.project())),
            None => Ok(()),
        }
    }
}

fn seed_of(identity: &Value) -> Option<u64> {
    identity["seed"].as_u64()
}

/// The flat form.
#[derive(Debug, Default)]
struct Facts(Map<String, Value>);

impl Facts {
    /// Takes a fact out. One of another shape than expected stays, and counts as missing.
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let value = Option::<T>::deserialize(self.0.get(name)?).ok()?;
        self.0.shift_remove(name);
        value
    }

    /// Nothing where there is none.
    fn put(&mut self, name: &str, value: Option<impl Serialize>) {
        if value.is_some() {
            self.put_or_null(name, value);
        }
    }

    fn put_or_null(&mut self, name: &str, value: Option<impl Serialize>) {
        let value = value.and_then(|value| serde_json::to_value(value).ok());
        self.0.insert(name.to_owned(), value.unwrap_or_default());
    }

    fn copy<'a>(&mut self, facts: impl IntoIterator<Item = (&'a String, &'a Value)>) {
        let facts = facts.into_iter();
        self.0
            .extend(facts.map(|(name, value)| (name.clone(), value.clone())));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(facts: &Value) -> Pinned {
        Pinned::read(&JsonText::of(facts).unwrap()).unwrap()
    }

    /// What was stored is read and stored again, byte for byte.
    #[track_caller]
    fn check_kept(facts: &Value) {
        let kept = read(facts).to_json().unwrap();
        assert_eq!(kept.as_str(), facts.to_string());
    }

    #[test]
    fn every_kind_of_run_is_stored_as_it_always_was() {
        check_kept(&json!({
            "experiment.rollout": "r", "evaluation.limit": 3, "evaluation.n": 2,
            "model": {"script": "p", "seed": 4}, "judge": {"seed": 1}, "remembered.config": "c.toml",
            "dataset_sha256": "d", "rows": null, "source_sha256": "s", "environment_sha256": null,
            "remembered.prices": "{\"prompt\":1.0,\"completion\":2.0,\"cached\":null}",
        }));
        check_kept(&json!({
            "evaluation.n": 1, "model": {}, "remembered.config": "c.toml", "dataset_sha256": "d",
            "rows": "0-3", "server": "http://x", "remembered.public_url": null,
            "remembered.listen": "0.0.0.0:1", "remembered.server_key_env": null,
            "remembered.prices": null,
        }));
        check_kept(&json!({
            "training.seed": 5, "model_sha256": "m", "trainer": null, "dataset_sha256": "d",
            "eval_dataset_sha256": "e", "source_sha256": "s", "environment_sha256": "v",
            "held_out_rows_moved": "+1", "remembered.rows_compared": "by content",
            "remembered.dataset_rows": "12", "remembered.processor": "x86",
        }));
        check_kept(&json!({
            "training.seed": 5, "trainer": "outside", "model": {"base_url": "u"}, "dataset_sha256": "d",
            "source_sha256": "s", "environment_sha256": "v",
        }));
        check_kept(&json!({
            "evaluation.n": 2, "model": {}, "dataset_sha256": "d", "experiment.rollout": "r",
            "grader.strict": true, "source_sha256": "s", "environment_sha256": "v", "judge": {},
            "rows": null, "regraded_from": "a", "regraded_from_created_at_ms": 7,
            "policy_calls_in": "b",
        }));
        check_kept(&json!({"serve.rollout": "r", "serve.entrypoint": "main.py"}));
        check_kept(&json!({
            "evaluation.n": 1, "model": {}, "remembered.config": "c.toml",
            "remembered.overrides": ["evaluation.n=1"], "dataset_sha256": "d", "rows": null,
            "source_sha256": "s", "source_files": {"main.py": "0123456789abcdef"},
            "environment_sha256": "v", "remembered.prices": null,
        }));
    }

    #[test]
    fn facts_that_are_unknown_missing_or_of_another_shape_are_no_error() {
        let pinned = read(&json!({
            "of.tomorrow": [1], "rows": ["0"], "evaluation.n": "many", "model": null,
        }));
        assert_eq!(pinned.rows, None);
        assert_eq!(pinned.model, None);
        assert_eq!(pinned.rollouts_per_row(), None);
        assert_eq!(pinned.settings["of.tomorrow"], json!([1]));
        // Nothing is lost on the way.
        assert_eq!(pinned.facts()["rows"], json!(["0"]));
        assert_eq!(read(&json!({})), Pinned::default());
    }

    #[test]
    fn what_is_known_of_a_run_are_fields() {
        let pinned = read(&json!({
            "experiment.model_path": "m", "evaluation.limit": 3, "evaluation.n": 2,
            "evaluation.reward_range": [0.0, 2.0], "model": {"seed": 4}, "rows": "0-3",
            "remembered.dataset_rows": "12", "regraded_from": "a",
        }));
        assert_eq!(pinned.model_path(), Some("m"));
        assert_eq!(
            (pinned.limit(), pinned.rollouts_per_row()),
            (Some(3), Some(2))
        );
        assert_eq!(pinned.reward_range(), RewardRange::new(0.0, 2.0).ok());
        assert_eq!((pinned.model_seed(), pinned.judge_seed()), (Some(4), None));
        assert_eq!(pinned.rows.as_deref(), Some("0-3"));
        assert_eq!(pinned.remembered.dataset_rows, Some(12));
        // Runs from before the calls' place was pinned have them where the samples are.
        assert_eq!(pinned.regraded_from.unwrap().calls_in, "a");
    }

    #[test]
    fn a_resume_may_change_what_is_remembered_and_nothing_else() {
        let before = read(&json!({"evaluation.n": 1, "remembered.config": "a.toml"}));
        let moved = read(&json!({"evaluation.n": 1, "remembered.config": "b.toml", "rows": null}));
        assert!(before.check(&moved, "t").is_ok());
        let other = read(&json!({"evaluation.n": 2}));
        let error = before.check(&other, "t").unwrap_err();
        assert_eq!(error.kind(), RunErrorKind::RunPinned);
        assert!(error.message().contains("evaluation.n: was 1"), "{error}");
        // What was taken out of the config is a change, too.
        let with = read(&json!({"evaluation.n": 1, "workflow.style": "short"}));
        let error = with.check(&before, "t").unwrap_err();
        assert!(error.message().contains("workflow.style"), "{error}");
    }
}
