//! Weights that a trainer outside announces, and what a run keeps of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::PolicyVersion;
use osmosis_core::config::Checkpoints;
use osmosis_core::generation::TokenEngine;
use osmosis_gateway::WeightLoader;
use osmosis_policy::{EmbeddedModel, NamedTensor, Sampler, SamplerOptions, Weights};
use osmosis_train::checkpoints;
use osmosis_train::delivery::AnnouncedWeights;

use crate::model::tiny;

/// The tiny model with every number changed.
fn changed(change: impl Fn(f32) -> f32) -> EmbeddedModel {
    let model = tiny();
    let tensors: BTreeMap<String, NamedTensor> = model
        .weights
        .tensors
        .iter()
        .map(|(name, tensor)| {
            let values = tensor.values.iter().map(|value| change(*value)).collect();
            let shape = tensor.shape.clone();
            (name.clone(), NamedTensor { shape, values })
        })
        .collect();
    EmbeddedModel {
        weights: Arc::new(Weights { tensors }),
        ..model
    }
}

fn sampler() -> Arc<Sampler> {
    let options = SamplerOptions {
        max_batch: 2,
        threads: 1,
        cache_bytes: 1 << 20,
    };
    Arc::new(Sampler::start(&tiny(), PolicyVersion(0), options).unwrap())
}

struct Run {
    _temporary: tempfile::TempDir,
    folder: Utf8PathBuf,
}

impl Run {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temporary.path()).unwrap().to_owned();
        Self {
            _temporary: temporary,
            folder,
        }
    }

    /// What a trainer saves: no tokenizer.
    fn saved(&self, name: &str, model: &EmbeddedModel) -> Utf8PathBuf {
        let folder = self.folder.join(name);
        model.save(&folder).unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::remove_file(folder.join(file)).unwrap();
        }
        folder
    }

    fn announced(&self, sampler: &Arc<Sampler>) -> AnnouncedWeights {
        let kept = Checkpoints {
            checkpoint_save_freq: 2,
            ..Checkpoints::default()
        };
        AnnouncedWeights::kept_in(Arc::clone(sampler), &tiny(), self.folder.clone(), kept)
    }

    fn kept(&self) -> Vec<u64> {
        let all = checkpoints::list(&self.folder).unwrap();
        all.iter().map(|checkpoint| checkpoint.step).collect()
    }
}

#[test]
fn announced_weights_answer_and_a_restart_goes_on_with_them() {
    let (run, sampler) = (Run::new(), sampler());
    let announced = run.announced(&sampler);
    assert_eq!(announced.restore(&tiny()).unwrap(), PolicyVersion(0));
    assert_eq!(run.kept(), [0]);

    let theirs = changed(|value| value * 0.5);
    let folder = run.saved("theirs", &theirs);
    for version in [1, 2, 3, 3] {
        announced.load(&folder, PolicyVersion(version)).unwrap();
        assert_eq!(sampler.version(), PolicyVersion(version));
    }
    // The first, each second one, and the newest.
    assert_eq!(run.kept(), [0, 2, 3]);

    // The trainer's folder may go.
    std::fs::remove_dir_all(&folder).unwrap();
    let after = crate::announced::sampler();
    let restored = run.announced(&after).restore(&tiny()).unwrap();
    assert_eq!(restored, PolicyVersion(3));
    assert_eq!(after.version(), PolicyVersion(3));
    let kept = EmbeddedModel::open(&run.folder.join("checkpoints/step_3")).unwrap();
    assert_eq!(kept.weights, theirs.weights);
}

#[test]
fn weights_that_do_not_fit_or_ran_away_leave_everything_as_it_was() {
    let (run, sampler) = (Run::new(), sampler());
    let announced = run.announced(&sampler);
    announced.restore(&tiny()).unwrap();

    let run_away = changed(|value| if value > 0.2 { f32::NAN } else { value });
    let mut narrow = tiny();
    narrow.config.source["hidden_size"] = 8.into();
    narrow.config.source["head_dim"] = 4.into();
    for (name, model, words) in [
        ("run_away", &run_away, "is not finite"),
        ("narrow", &narrow, "another shape"),
    ] {
        let folder = run.saved(name, model);
        let refused = announced.load(&folder, PolicyVersion(1)).unwrap_err();
        assert!(refused.message.contains(words), "{}", refused.message);
    }
    let nothing = run.folder.join("nothing");
    let refused = announced.load(&nothing, PolicyVersion(1)).unwrap_err();
    assert!(refused.message.contains("nothing"), "{}", refused.message);
    assert_eq!(sampler.version(), PolicyVersion(0));
    assert_eq!(run.kept(), [0]);
}
