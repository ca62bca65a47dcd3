use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use osmosis_core::frame::{GradeTask, JudgeAccess, TurnRewards};
use osmosis_core::{Reward, RolloutId, Sample, SampleId};
use serde_json::{Map, Value};

use crate::sample::{RolloutSample, finite, json_text};
use crate::workflow_context::{made_folder, parsed};
use crate::{SdkError, output};

/// What `grade` is given: the label, the samples, and a place for rewards.
pub struct GraderContext<C = ()> {
    label: Option<String>,
    samples: Vec<RolloutSample>,
    config: Arc<C>,
    metadata: Option<Map<String, Value>>,
    artifacts_dir: Option<PathBuf>,
    project_path: PathBuf,
    rollout_id: RolloutId,
    judge: Option<JudgeAccess>,
    /// Empty when they are not known.
    turns: BTreeMap<SampleId, u32>,
    /// One for each sample, in the same order.
    grades: Mutex<Vec<Grade>>,
}

#[derive(Debug, Clone, Default)]
struct Grade {
    reward: Option<Reward>,
    removed: bool,
    metrics: Map<String, Value>,
    turns: Option<Vec<Reward>>,
}

impl<C> GraderContext<C> {
    pub(crate) fn new(task: GradeTask, config: Arc<C>) -> Result<Self, SdkError> {
        let samples: Vec<RolloutSample> = task
            .samples
            .into_iter()
            .map(RolloutSample::new)
            .collect::<Result<_, _>>()?;
        let grades = samples
            .iter()
            .map(|sample| {
                let metrics = sample.given.metrics.as_ref();
                // What a sample came with is no grader's decision.
                Ok(Grade {
                    reward: None,
                    removed: false,
                    turns: None,
                    metrics: match metrics {
                        Some(text) => parsed(text, "the sample's metrics")?,
                        None => Map::new(),
                    },
                })
            })
            .collect::<Result<_, SdkError>>()?;
        Ok(Self {
            label: task.label,
            samples,
            config,
            metadata: task
                .metadata
                .map(|text| parsed(&text, "the metadata"))
                .transpose()?,
            artifacts_dir: task.artifacts_dir.map(PathBuf::from),
            project_path: task.project_path.into(),
            rollout_id: task.rollout_id,
            judge: task.judge,
            turns: task.turns,
            grades: Mutex::new(grades),
        })
    }

    /// The right answer, when the row has one.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The model that `judge_model` in `[grader]` names, behind the OpenAI API: its URL, key and name. The
    /// key ends with this grade; what is asked with it is recorded and counted as the judge's.
    pub fn judge(&self) -> Option<&JudgeAccess> {
        self.judge.as_ref()
    }

    /// In the order in which they were registered.
    pub fn samples(&self) -> &[RolloutSample] {
        &self.samples
    }

    /// The sample, when there is exactly one.
    pub fn sample(&self) -> Result<&RolloutSample, SdkError> {
        match self.samples.as_slice() {
            [only] => Ok(only),
            _ => Err(SdkError::NotOneSample {
                known: self.sample_names(),
            }),
        }
    }

    pub fn sample_named(&self, id: &str) -> Result<&RolloutSample, SdkError> {
        self.position(id).map(|position| &self.samples[position])
    }

    /// Gives the only sample its reward: a finite number, or `true` for 1.
    pub fn set_reward(&self, reward: impl Into<f64>) -> Result<(), SdkError> {
        let id = self.sample()?.id();
        self.set_sample_reward(id, reward)
    }

    /// Gives a sample its reward: a finite number, or `true` for 1.
    pub fn set_sample_reward(&self, id: &str, reward: impl Into<f64>) -> Result<(), SdkError> {
        let position = self.position(id)?;
        self.grades()[position].reward = Some(Reward::new(reward.into())?);
        Ok(())
    }

    /// How many turns a sample has: answers of the policy that the agent was given under its name.
    pub fn turn_count(&self, id: &str) -> Result<u32, SdkError> {
        let position = self.position(id)?;
        let count = self.turns.get(&self.samples[position].given.id);
        count.copied().ok_or_else(|| SdkError::TurnsUnknown {
            name: id.to_owned(),
        })
    }

    /// [`Self::set_sample_turn_rewards`] for the only sample.
    pub fn set_turn_rewards(
        &self,
        rewards: impl IntoIterator<Item = impl Into<f64>>,
    ) -> Result<(), SdkError> {
        let id = self.sample()?.id();
        self.set_sample_turn_rewards(id, rewards)
    }

    /// Gives each turn of a sample a reward of its own, in order: as many finite numbers as it has turns. Training uses
    /// them in place of the sample's reward, which it still needs for everything else.
    pub fn set_sample_turn_rewards(
        &self,
        id: &str,
        rewards: impl IntoIterator<Item = impl Into<f64>>,
    ) -> Result<(), SdkError> {
        let position = self.position(id)?;
        let turns = self.turn_count(id)?;
        let rewards = rewards.into_iter().map(|reward| Reward::new(reward.into()));
        let rewards: Vec<Reward> = rewards.collect::<Result<_, _>>()?;
        if rewards.len() != turns as usize {
            return Err(SdkError::WrongTurnCount {
                name: id.to_owned(),
                turns,
                given: rewards.len(),
            });
        }
        self.grades()[position].turns = Some(rewards).filter(|rewards| !rewards.is_empty());
        Ok(())
    }

    /// Leaves a sample out of every number; it needs no reward then.
    pub fn remove_sample(&self, id: &str) -> Result<(), SdkError> {
        let position = self.position(id)?;
        self.grades()[position].removed = true;
        Ok(())
    }

    /// Attaches a number to a sample, to be reported beside its reward.
    pub fn set_sample_metric(
        &self,
        id: &str,
        name: &str,
        value: impl Into<f64>,
    ) -> Result<(), SdkError> {
        let position = self.position(id)?;
        let value = finite(name, value.into())?;
        self.grades()[position]
            .metrics
            .insert(name.to_owned(), value);
        Ok(())
    }

    /// `[grader]` of the run config.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The row's metadata, the same that the workflow saw.
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.metadata.as_ref()
    }

    /// What the workflow left behind; made when it is not there yet.
    pub fn artifacts_dir(&self) -> Result<Option<&Path>, SdkError> {
        made_folder(self.artifacts_dir.as_deref())
    }

    /// The rollout's folder, which holds its `Cargo.toml`.
    pub fn project_path(&self) -> &Path {
        &self.project_path
    }

    pub fn rollout_id(&self) -> &str {
        self.rollout_id.as_str()
    }

    /// Writes to the run's log, in the name of this rollout.
    pub fn log(&self, text: impl fmt::Display) {
        output::write_tagged(Some(self.rollout_id()), &text.to_string());
    }

    /// The graded samples, and the rewards of their turns; the conversation goes back as the very text it came as.
    pub(crate) fn finish(self) -> Result<(Vec<Sample>, TurnRewards), SdkError> {
        let grades = self
            .grades
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let mut graded = Vec::with_capacity(self.samples.len());
        let mut ungraded = Vec::new();
        let mut turn_rewards = TurnRewards::new();
        for (sample, grade) in self.samples.into_iter().zip(grades) {
            let mut sample = sample.given;
            if grade.reward.is_none() && !grade.removed {
                ungraded.push(sample.id.to_string());
            }
            if let Some(rewards) = grade.turns {
                turn_rewards.insert(sample.id.clone(), rewards);
            }
            sample.reward = grade.reward;
            sample.remove_sample = grade.removed;
            if !grade.metrics.is_empty() {
                sample.metrics = Some(json_text(&grade.metrics, "metrics")?);
            }
            graded.push(sample);
        }
        if ungraded.is_empty() {
            Ok((graded, turn_rewards))
        } else {
            Err(SdkError::Ungraded { names: ungraded })
        }
    }

    fn position(&self, id: &str) -> Result<usize, SdkError> {
        self.samples
            .iter()
            .position(|sample| sample.id() == id)
            .ok_or_else(|| SdkError::UnknownSample {
                name: id.to_owned(),
                known: self.sample_names(),
            })
    }

    fn sample_names(&self) -> Vec<String> {
        self.samples
            .iter()
            .map(|sample| sample.id().to_owned())
            .collect()
    }

    fn grades(&self) -> MutexGuard<'_, Vec<Grade>> {
        self.grades.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> fmt::Debug for GraderContext<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraderContext")
            .field("rollout_id", &self.rollout_id)
            .field("label", &self.label)
            .field("samples", &self.samples)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::JsonText;

    use super::*;

    /// A grader's context with a sample that its agent has given a grade.
    fn context() -> GraderContext {
        let sample = Sample {
            id: SampleId::main(),
            messages: JsonText::parse("[]").unwrap(),
            reward: Some(Reward::new(1.0).unwrap()),
            remove_sample: true,
            metrics: None,
            extra_fields: None,
        };
        let task = GradeTask {
            task: 1,
            rollout_id: RolloutId::of(0, 0),
            label: None,
            samples: vec![sample],
            metadata: None,
            artifacts_dir: None,
            project_path: String::new(),
            judge: None,
            turns: BTreeMap::from([(SampleId::main(), 2)]),
        };
        GraderContext::new(task, Arc::new(())).unwrap()
    }

    #[test]
    fn what_a_sample_came_with_is_no_graders_decision() {
        let error = context().finish().unwrap_err();
        assert_eq!(error.kind(), "ungraded_sample");
        let graded = context();
        graded.set_reward(0.5).unwrap();
        let (samples, turns) = graded.finish().unwrap();
        assert_eq!(samples[0].reward, Some(Reward::new(0.5).unwrap()));
        assert!(!samples[0].remove_sample);
        assert!(turns.is_empty());
    }

    #[test]
    fn turns_have_rewards_of_their_own_as_many_as_there_are_turns() {
        let graded = context();
        assert_eq!(graded.turn_count("main").unwrap(), 2);
        let told = graded.set_turn_rewards([0.5]).unwrap_err();
        assert_eq!(told.kind(), "wrong_turn_count");
        assert_eq!(
            told.to_string(),
            "sample `main` has 2 turns, and got rewards for 1"
        );
        let told = graded.set_turn_rewards([0.5, f64::NAN]).unwrap_err();
        assert_eq!(told.kind(), "invalid_reward");
        graded.set_turn_rewards([false, true]).unwrap();
        graded.set_reward(1).unwrap();
        let (_, turns) = graded.finish().unwrap();
        let rewards: Vec<f64> = turns[&SampleId::main()]
            .iter()
            .map(|one| one.get())
            .collect();
        assert_eq!(rewards, [0.0, 1.0]);
    }
}
