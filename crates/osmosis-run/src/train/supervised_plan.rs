//! Everything about a supervised training that can be checked before it begins: the config, the model, and every
//! conversation in the model's tokens.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use camino::Utf8Path;
use osmosis_core::config::{ConfigSource, DatasetRef, HeldOut, SupervisedConfig};
use osmosis_data::{Dataset, Taking};
use osmosis_policy::{EmbeddedModel, Processor, StartModel};
use osmosis_tokens::{TrainingRow, supervised_rows};
use osmosis_train::{SupervisedPlan, SupervisedRow};
use serde_json::{Map, Value};

use super::held_out::held_out_rows;
use super::trained_model::digest;
use crate::chat_choice::ChatChoice;
use crate::checked_dataset::{checked, data_error};
use crate::notices::Notices;
use crate::policy;
use crate::runs::{Pinned, Remembered};
use crate::workspace::{Workspace, WorkspaceChoice};
use crate::{RunError, RunErrorKind};

/// Bad rows that are named one by one.
const NAMED: usize = 10;

/// A checked supervised training.
#[derive(Debug)]
pub struct CheckedSupervised {
    pub workspace: Workspace,
    pub source: ConfigSource,
    pub config: SupervisedConfig,
    /// The config with what is set beside it.
    pub config_text: String,
    /// With adapters, where `[sft.lora]` has them trained.
    pub model: Arc<StartModel>,
    dataset_sha256: String,
    eval_dataset_sha256: Option<String>,
    rows: Vec<SupervisedRow>,
    held_out: Vec<SupervisedRow>,
}

/// A dataset in tokens.
struct Conversations {
    sha256: String,
    rows: Vec<SupervisedRow>,
}

impl CheckedSupervised {
    /// Checks everything that can be without training; what takes time is told as it begins.
    pub async fn check(
        source: ConfigSource,
        workspace: &WorkspaceChoice,
        notices: &dyn Notices,
    ) -> Result<Self, RunError> {
        let config = SupervisedConfig::of(&source)?;
        let config_text = source.effective_text()?;
        let beside = source.file.as_deref().and_then(Utf8Path::parent);
        let workspace = workspace.find(beside)?;
        let experiment = &config.experiment;
        notices.step(format_args!("Loading the model {}", experiment.model_path));
        let chat = ChatChoice::of_supervised(experiment, &workspace)?;
        let model = policy::open_model(&experiment.model_path, &workspace, &chat).await?;
        notices.step(format_args!("Reading the dataset {}", experiment.dataset));
        let conversations = Conversations::read(&experiment.dataset, &workspace, &model)?;
        let held_out = match &config.sft.held_out {
            Some(HeldOut::Dataset(reference)) => {
                Some(Conversations::read(reference, &workspace, &model)?)
            }
            Some(HeldOut::Fraction(_)) | None => None,
        };
        let mut plan = Self {
            source,
            config_text,
            model: Arc::new(StartModel::new(model, config.sft.lora.clone())),
            dataset_sha256: conversations.sha256,
            eval_dataset_sha256: held_out.as_ref().map(|dataset| dataset.sha256.clone()),
            rows: conversations.rows,
            held_out: held_out.map_or_else(Vec::new, |dataset| dataset.rows),
            workspace,
            config,
        };
        match plan.config.sft.held_out {
            Some(HeldOut::Fraction(fraction)) => plan.hold_out(fraction)?,
            Some(HeldOut::Dataset(_)) => plan.refuse_overlap()?,
            None => {}
        }
        Ok(plan)
    }

    /// What a run without a name is named after.
    pub fn stem(&self) -> &str {
        let file = self.source.file.as_deref();
        file.and_then(Utf8Path::file_stem).unwrap_or("sft")
    }

    pub fn seed(&self) -> u64 {
        self.config.sft.seed.unwrap_or(0)
    }

    /// Conversations to train on, and held-out ones.
    pub fn row_counts(&self) -> (u64, u64) {
        (self.rows.len() as u64, self.held_out.len() as u64)
    }

    /// Tokens of the assistant in the conversations to train on.
    pub fn tokens(&self) -> u64 {
        let rows = self.rows.iter().flat_map(|row| &row.rows);
        let trained = rows.flat_map(|row| &row.loss_mask).filter(|on| **on);
        trained.count() as u64
    }

    pub fn train_plan(&self) -> SupervisedPlan {
        SupervisedPlan {
            rows: self.rows.clone(),
            held_out: self.held_out.clone(),
            settings: self.config.sft.clone(),
            checkpoints: self.config.checkpoints,
            seed: self.seed(),
        }
    }

    /// What a resume must find as it is now.
    pub fn pinned(&self) -> Result<Pinned, RunError> {
        let mut facts = Pinned::of_config(&self.config)?;
        facts
            .settings
            .insert("sft.seed".to_owned(), self.seed().into());
        facts.trainer = Some("supervised".to_owned());
        facts.model_sha256 = Some(digest(&self.model)?.to_owned());
        facts.dataset_sha256 = Some(self.dataset_sha256.clone());
        facts
            .eval_dataset_sha256
            .clone_from(&self.eval_dataset_sha256);
        let file = self.source.file.as_ref().map(|file| {
            file.strip_prefix(&self.workspace.root)
                .unwrap_or(file)
                .to_string()
        });
        facts.remembered = Remembered {
            config: file,
            overrides: self.source.settings(),
            processor: Some(Processor::here().to_string()),
            ..Remembered::default()
        };
        Ok(facts)
    }

    /// Holds out a part of the conversations: of equal ones, all or none.
    fn hold_out(&mut self, fraction: f64) -> Result<(), RunError> {
        let mut places: HashMap<Vec<Vec<u32>>, usize> = HashMap::new();
        let group_of: Vec<usize> = self
            .rows
            .iter()
            .map(|row| {
                let next = places.len();
                *places.entry(ids(row)).or_insert(next)
            })
            .collect();
        let groups = places.len() as u64;
        let chosen = held_out_rows(groups, fraction, self.seed()).ok_or_else(|| {
            let dataset = &self.config.experiment.dataset;
            let message = format!(
                "`{dataset}` has {groups} different conversations: too few to hold some out"
            );
            RunError::failed(RunErrorKind::DatasetInvalid, message)
                .hint("add rows, or remove `eval_fraction` from [sft]")
        })?;
        let chosen: HashSet<u64> = chosen.into_iter().collect();
        let mut groups = group_of.into_iter();
        let rows = std::mem::take(&mut self.rows);
        (self.held_out, self.rows) = rows.into_iter().partition(|_| {
            groups
                .next()
                .is_some_and(|group| chosen.contains(&(group as u64)))
        });
        Ok(())
    }

    /// Refuses conversations that are trained on and held out at once.
    fn refuse_overlap(&self) -> Result<(), RunError> {
        let trained: HashSet<Vec<Vec<u32>>> = self.rows.iter().map(ids).collect();
        let both = self
            .held_out
            .iter()
            .filter(|row| trained.contains(&ids(row)));
        let both: Vec<u64> = both.map(|row| row.row_index).collect();
        let Some(first) = both.first() else {
            return Ok(());
        };
        let message = format!(
            "{} of {} held-out conversations are trained on too, the first of them row {first} of the `eval_dataset`",
            both.len(),
            self.held_out.len()
        );
        Err(RunError::failed(RunErrorKind::HeldOutOverlap, message)
            .hint("remove them from one of the datasets, or use `eval_fraction`"))
    }
}

fn ids(row: &SupervisedRow) -> Vec<Vec<u32>> {
    row.rows.iter().map(|row| row.ids.clone()).collect()
}

impl Conversations {
    fn read(
        reference: &DatasetRef,
        workspace: &Workspace,
        model: &EmbeddedModel,
    ) -> Result<Self, RunError> {
        let path = osmosis_data::resolve(reference, &workspace.root)
            .map_err(|error| data_error(&error))?;
        let dataset = Dataset::open(&path).map_err(|error| data_error(&error))?;
        let dataset = dataset.with(Taking::WholeRows);
        let sha256 = checked(&dataset)?.sha256;
        let mut rows = Vec::new();
        let mut bad: Vec<String> = Vec::new();
        let mut hint = None;
        let mut count = 0;
        for row in dataset.rows() {
            let row = row.map_err(|error| {
                RunError::failed(RunErrorKind::DatasetChanged, format!("`{path}`: {error}"))
            })?;
            match conversation(row.body.as_str(), model) {
                Ok(found) => rows.push(SupervisedRow {
                    row_index: row.index,
                    rows: found,
                }),
                Err(Bad { why, way_out }) => {
                    count += 1;
                    hint = hint.or(way_out);
                    if bad.len() < NAMED {
                        bad.push(format!("{path}:{}: {why}", row.line));
                    }
                }
            }
        }
        if count == 0 {
            return Ok(Self { sha256, rows });
        }
        let more = count - bad.len();
        if more > 0 {
            bad.push(format!("and {more} more"));
        }
        let message = format!(
            "`{path}` has {count} rows that can't be learned from:\n{}",
            bad.join("\n")
        );
        Err(RunError::failed(RunErrorKind::DatasetInvalid, message).maybe_hint(hint))
    }
}

/// What is wrong with a row.
struct Bad {
    why: String,
    way_out: Option<String>,
}

/// The conversation of a row, in tokens.
fn conversation(body: &str, model: &EmbeddedModel) -> Result<Vec<TrainingRow>, Bad> {
    let bad = |why: String| Bad { why, way_out: None };
    let row: Map<String, Value> =
        serde_json::from_str(body).map_err(|error| bad(error.to_string()))?;
    let messages = list(&row, "messages")?.ok_or_else(|| Bad {
        why: "there is no `messages` column".to_owned(),
        way_out: Some(
            "a row holds chat messages: {\"messages\": [{\"role\": \"user\", \"content\": …}, …]}, as `osmosis export \
             --format sft` writes them"
                .to_owned(),
        ),
    })?;
    let tools = list(&row, "tools")?;
    let rows = supervised_rows(&model.chat, &messages, tools.as_deref()).map_err(|error| Bad {
        way_out: error.hint(),
        why: error.to_string(),
    })?;
    let (longest, context) = (
        rows.iter().map(|row| row.ids.len()).max().unwrap_or(0),
        model.config.context,
    );
    if longest > context {
        return Err(Bad {
            why: format!(
                "the conversation has {longest} tokens, and the model's context is {context}"
            ),
            way_out: Some("shorten or remove it".to_owned()),
        });
    }
    Ok(rows)
}

/// A column that holds a list, or its JSON text.
fn list(row: &Map<String, Value>, name: &str) -> Result<Option<Vec<Value>>, Bad> {
    let wrong = || Bad {
        why: format!("`{name}` is not a list"),
        way_out: None,
    };
    match row.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items.clone())),
        Some(Value::String(text)) => {
            let parsed: Vec<Value> = serde_json::from_str(text).map_err(|_| wrong())?;
            Ok(Some(parsed))
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => Err(wrong()),
    }
}
