//! Training on conversations: it learns, measures what is held out, and ends the same however often it is killed.

use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_core::config::{Checkpoints, Lora, Supervised};
use osmosis_core::learner::TrainableModel;
use osmosis_engine::Stop;
use osmosis_policy::{EmbeddedModel, StartModel};
use osmosis_store::Store;
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_testkit::unigram::UnigramModel;
use osmosis_tokens::supervised_rows;
use osmosis_train::checkpoints::Which;
use osmosis_train::{
    EndCause, SupervisedEvent, SupervisedParts, SupervisedPlan, SupervisedRow, SupervisedTrainer,
    TrainEnd, checkpoints,
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::model;
use crate::run::run_record;

struct Sft {
    plan: SupervisedPlan,
    folder: Utf8PathBuf,
    trained: Trained,
    _keep: TempDir,
}

/// What learns.
#[derive(Clone, Copy)]
enum Trained {
    /// A model that costs nothing.
    Unigram,
    Weights,
    Adapters,
}

/// Answers of `c`, which a model of equal chances does not give.
fn conversation(row_index: u64, question: &str) -> SupervisedRow {
    answered(row_index, question, "ccc")
}

fn answered(row_index: u64, question: &str, answer: &str) -> SupervisedRow {
    let messages = [
        json!({"role": "user", "content": question}),
        json!({"role": "assistant", "content": answer}),
    ];
    SupervisedRow {
        row_index,
        rows: supervised_rows(&model::chat(), &messages, None).unwrap(),
    }
}

impl Sft {
    fn new() -> Self {
        let keep = TempDir::new().unwrap();
        let folder = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        let questions = ["a", "b", "ab", "ba", "aa", "bb"];
        let mut rows: Vec<SupervisedRow> = questions
            .iter()
            .zip(0..)
            .map(|(question, index)| conversation(index, question))
            .collect();
        let held_out = rows.split_off(4);
        let plan = SupervisedPlan {
            rows,
            held_out,
            settings: Supervised {
                lr: 0.05,
                batch_size: 3,
                steps: Some(7),
                ..Supervised::default()
            },
            checkpoints: Checkpoints {
                eval_interval: 2,
                checkpoint_save_freq: 3,
                ..Checkpoints::default()
            },
            seed: 5,
        };
        Self {
            plan,
            folder,
            trained: Trained::Unigram,
            _keep: keep,
        }
    }

    fn model(&self) -> Arc<dyn TrainableModel> {
        match self.trained {
            Trained::Unigram => Arc::new(UnigramModel::new(model::VOCABULARY)),
            Trained::Weights => Arc::new(model::tiny()),
            Trained::Adapters => {
                let lora = Lora {
                    rank: 4,
                    alpha: 8.0,
                    ..Lora::default()
                };
                let start = StartModel::new(model::tiny(), Some(lora));
                let base = self.folder.join(checkpoints::BASE_FOLDER);
                start.freeze(self.plan.seed, &base).unwrap();
                Arc::new(start)
            }
        }
    }

    /// One process's life, to its end or to event number `dies_at`; how many events there were, and how it ended.
    fn live(&self, dies_at: Option<usize>) -> (usize, Option<TrainEnd>) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let options = SqliteOptions::default();
            let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&self.folder, options).unwrap());
            if store.run().await.unwrap().is_none() {
                store.create_run(run_record()).await.unwrap();
            }
            let recovery = osmosis_store::Recovery::AfterTakeover;
            store.recover(recovery).await.unwrap();
            let parts = SupervisedParts {
                store: Arc::clone(&store),
                model: self.model(),
                folder: self.folder.clone(),
                tensorboard: false,
            };
            let mut trainer = SupervisedTrainer::open(self.plan.clone(), parts)
                .await
                .unwrap();
            let (stop, mut heard) = (Stop::default(), 0);
            let (events, mut told) = mpsc::channel::<SupervisedEvent>(1);
            let dying = async {
                while told.recv().await.is_some() {
                    heard += 1;
                    if dies_at == Some(heard) {
                        return;
                    }
                }
                std::future::pending::<()>().await;
            };
            let end = tokio::select! {
                end = trainer.run(&stop, events) => Some(end.unwrap()),
                () = dying => None,
            };
            if end.is_some() {
                store.close().await.unwrap();
            }
            (heard, end)
        })
    }

    fn metrics(&self) -> Vec<Map<String, Value>> {
        let text = std::fs::read_to_string(self.folder.join("metrics.jsonl")).unwrap();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn numbers(&self, name: &str) -> Vec<(u64, f64)> {
        let lines = self.metrics();
        let each = lines.iter();
        each.filter_map(|line| Some((line["step"].as_u64()?, line.get(name)?.as_f64()?)))
            .collect()
    }

    fn weights(&self, step: u64) -> Vec<u8> {
        let which = checkpoints::Which::Step(step);
        let folder = checkpoints::resolve(&self.folder, which).unwrap().folder;
        let file = match self.trained {
            Trained::Unigram => "logits.json",
            Trained::Weights => "model.safetensors",
            Trained::Adapters => "adapter_model.safetensors",
        };
        std::fs::read(folder.join(file)).unwrap()
    }

    fn saved(&self) -> Vec<u64> {
        let saved = checkpoints::list(&self.folder).unwrap();
        saved.iter().map(|checkpoint| checkpoint.step).collect()
    }

    /// Held-out conversations have a letter that those to train on have not: what is learned helps at first, and then
    /// makes that letter too unlikely.
    fn learning_too_much() -> Self {
        let mut sft = Self::new();
        sft.plan.held_out = vec![answered(4, "aa", "cca"), answered(5, "bb", "cca")];
        sft.plan.settings.lr = 0.5;
        sft.plan.settings.steps = Some(8);
        sft.plan.checkpoints = Checkpoints {
            eval_interval: 1,
            checkpoint_save_freq: 1,
            ..Checkpoints::default()
        };
        sft
    }
}

#[track_caller]
fn assert_complete(end: Option<TrainEnd>, moment: &str) {
    let end = end.unwrap();
    assert_eq!(
        (end.cause(), end.steps(), end.planned_steps()),
        (&EndCause::Complete, 7, 7),
        "{moment}"
    );
}

#[track_caller]
fn check_learning(trained: Trained) -> Sft {
    let sft = Sft {
        trained,
        ..Sft::new()
    };
    let (_, end) = sft.live(None);
    assert_complete(end, "to its end");
    let loss = sft.numbers("loss");
    assert_eq!(loss.len(), 7);
    assert!(loss[6].1 < loss[0].1 - 0.5, "{loss:?}");
    let held_out = sft.numbers("eval/loss");
    let steps: Vec<u64> = held_out.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [0, 2, 4, 6, 7]);
    assert!(held_out[4].1 < held_out[0].1 - 0.5, "{held_out:?}");
    assert_eq!(sft.saved(), [3, 6, 7]);
    sft
}

#[test]
fn the_loss_falls_on_conversations_and_on_held_out_ones() {
    let sft = check_learning(Trained::Weights);
    // Two answers of three letters, and their ends.
    assert_eq!(sft.metrics()[0]["eval/tokens"], 8);
    let lines = sft.metrics();
    let tokens: Vec<u64> = lines
        .iter()
        .filter_map(|line| line.get("tokens/trained")?.as_u64())
        .collect();
    assert_eq!(
        tokens[..2],
        [12, 4],
        "three conversations, then the rest of the epoch"
    );
}

#[test]
fn adapters_learn_and_the_weights_below_them_stay_as_they_are() {
    let sft = check_learning(Trained::Adapters);
    let whole = Sft {
        trained: Trained::Weights,
        ..Sft::new()
    };
    whole.live(None);
    // Adapters begin as no change at all.
    assert_eq!(
        sft.numbers("eval/loss")[0],
        whole.numbers("eval/loss")[0],
        "another model at the start"
    );
    let base = sft.folder.join(checkpoints::BASE_FOLDER);
    let base = EmbeddedModel::open(&base).unwrap();
    assert_eq!(base.digest(), model::tiny().digest());
    let last = sft.folder.join("checkpoints/step_7");
    assert!(!last.join("model.safetensors").exists());
    let merged = EmbeddedModel::open(&last).unwrap();
    assert_ne!(merged.digest(), base.digest());
    let untouched = "model.embed_tokens.weight";
    assert_eq!(
        merged.weights.tensors[untouched],
        base.weights.tensors[untouched]
    );
}

#[test]
fn a_run_killed_at_any_event_ends_with_the_same_bits() {
    check_kills(Sft::new);
}

#[test]
fn adapters_killed_at_any_event_end_with_the_same_bits() {
    check_kills(|| Sft {
        trained: Trained::Adapters,
        ..Sft::new()
    });
}

fn check_kills(new: impl Fn() -> Sft) {
    let expected = new();
    let (events, end) = expected.live(None);
    assert_complete(end, "to its end");
    for moment in 1..events {
        let sft = new();
        let (_, died) = sft.live(Some(moment));
        assert_eq!(
            died, None,
            "it was to be killed at event {moment} of {events}"
        );
        let (_, end) = sft.live(None);
        assert_complete(end, &moment.to_string());
        for name in ["loss", "eval/loss", "gradient_norm", "tokens/trained"] {
            assert_eq!(
                sft.numbers(name),
                expected.numbers(name),
                "{name}, {moment}"
            );
        }
        assert!(
            sft.weights(7) == expected.weights(7),
            "other weights, {moment}"
        );
    }
}

#[test]
fn the_best_checkpoint_has_the_lowest_held_out_loss() {
    let sft = Sft::learning_too_much();
    sft.live(None);
    let losses = sft.numbers("eval/loss");
    let lowest = losses[1..]
        .iter()
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap();
    assert!(
        (2..=6).contains(&lowest.0),
        "no case for this test: {losses:?}"
    );
    let best = checkpoints::resolve(&sft.folder, Which::Best).unwrap();
    assert_eq!(best.step, lowest.0, "{losses:?}");
    assert_eq!(sft.saved().last(), Some(&8));
}

#[test]
fn the_best_and_the_newest_are_kept_however_often_it_is_killed() {
    let new = || {
        let mut sft = Sft::learning_too_much();
        sft.plan.checkpoints.keep_last = Some(1);
        sft.plan.checkpoints.keep_best = Some(1);
        sft
    };
    let expected = new();
    let (events, _) = expected.live(None);
    let best = checkpoints::resolve(&expected.folder, Which::Best).unwrap();
    assert_eq!(expected.saved(), [best.step, 8]);
    for moment in 1..events {
        let sft = new();
        sft.live(Some(moment));
        sft.live(None);
        assert_eq!(sft.saved(), expected.saved(), "{moment}");
    }
}

#[test]
fn without_held_out_conversations_no_checkpoint_is_the_best() {
    let mut sft = Sft::learning_too_much();
    sft.plan.held_out = vec![];
    sft.live(None);
    let error = checkpoints::resolve(&sft.folder, Which::Best).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("evaluated on held-out rows"), "{told}");
    assert!(error.hint().unwrap().contains("`eval_fraction`"));
}
