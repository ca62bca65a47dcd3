//! Training on conversations: it learns, measures what is held out, and ends the same however often it is killed.

use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_core::config::{Checkpoints, Supervised};
use osmosis_engine::Stop;
use osmosis_store::Store;
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_testkit::unigram::UnigramModel;
use osmosis_tokens::supervised_rows;
use osmosis_train::{
    SupervisedEvent, SupervisedParts, SupervisedPlan, SupervisedRow, SupervisedTrainer, TrainEnd,
    checkpoints,
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::model;
use crate::run::run_record;

struct Sft {
    plan: SupervisedPlan,
    folder: Utf8PathBuf,
    gradients: bool,
    _keep: TempDir,
}

/// Answers of `c`, which a model of equal chances does not give.
fn conversation(row_index: u64, question: &str) -> SupervisedRow {
    let messages = [
        json!({"role": "user", "content": question}),
        json!({"role": "assistant", "content": "ccc"}),
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
            gradients: false,
            _keep: keep,
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
                model: if self.gradients {
                    Arc::new(model::tiny())
                } else {
                    Arc::new(UnigramModel::new(model::VOCABULARY))
                },
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
        std::fs::read(folder.join("logits.json")).unwrap()
    }
}

#[test]
fn the_loss_falls_on_conversations_and_on_held_out_ones() {
    let sft = Sft {
        gradients: true,
        ..Sft::new()
    };
    let (_, end) = sft.live(None);
    assert_eq!(end, Some(TrainEnd::Complete { steps: 7 }));
    let loss = sft.numbers("loss");
    assert_eq!(loss.len(), 7);
    assert!(loss[6].1 < loss[0].1 - 0.5, "{loss:?}");
    let held_out = sft.numbers("eval/loss");
    let steps: Vec<u64> = held_out.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [0, 2, 4, 6, 7]);
    assert!(held_out[4].1 < held_out[0].1 - 0.5, "{held_out:?}");
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
    let saved = checkpoints::list(&sft.folder).unwrap();
    let saved: Vec<u64> = saved.iter().map(|checkpoint| checkpoint.step).collect();
    assert_eq!(saved, [3, 6, 7]);
}

#[test]
fn a_run_killed_at_any_event_ends_with_the_same_bits() {
    let expected = Sft::new();
    let (events, end) = expected.live(None);
    assert_eq!(end, Some(TrainEnd::Complete { steps: 7 }));
    for moment in 1..events {
        let sft = Sft::new();
        let (_, died) = sft.live(Some(moment));
        assert_eq!(
            died, None,
            "it was to be killed at event {moment} of {events}"
        );
        let (_, end) = sft.live(None);
        assert_eq!(end, Some(TrainEnd::Complete { steps: 7 }), "{moment}");
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
