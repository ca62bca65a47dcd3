//! Where a checkpoint has its files, and which checkpoints stay.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use camino::Utf8Path;
use osmosis_core::config::LoraBase;
use osmosis_policy::EmbeddedModel;
use osmosis_train::TrainEvent;
use osmosis_train::checkpoints::{self, Which};
use serde_json::Value;

use crate::run::{Ended, Fate, Run};

fn die_after_saving(run: &Run, step: u64) {
    let ended = run.live(|event| match event {
        TrainEvent::Saved { step: saved, .. } if *saved == step => Fate::Die,
        _ => Fate::GoOn,
    });
    assert!(matches!(ended, Ended::Died), "{ended:?}");
}

#[test]
fn what_lies_beside_the_config_is_the_model_alone() {
    let run = Run::with_gradients("climb");
    run.live_to_the_end().complete();
    let folder = run.checkpoint(4).folder;
    let entries = folder.read_dir_utf8().unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_owned()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "trainer"
        ]
    );
    let model = EmbeddedModel::open(&folder).unwrap();
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let header = &bytes[8..][..usize::try_from(length).unwrap()];
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let stored = header.keys().filter(|name| *name != "__metadata__");
    assert!(stored.eq(model.weights.tensors.keys()), "{header:?}");
}

/// Moves the state of a checkpoint to where it was before it had a folder of its own.
fn make_flat(folder: &Utf8Path) {
    let text = fs::read_to_string(folder.join("trainer/state.json")).unwrap();
    let mut state: Value = serde_json::from_str(&text).unwrap();
    state["format"] = 1.into();
    let files = state["files"].as_object_mut().unwrap();
    let digest = files.remove("trainer/optimizer.safetensors").unwrap();
    files.insert("trainer.safetensors".to_owned(), digest);
    fs::write(folder.join("trainer.json"), state.to_string()).unwrap();
    let optimizer = folder.join("trainer/optimizer.safetensors");
    fs::rename(optimizer, folder.join("trainer.safetensors")).unwrap();
    fs::remove_dir_all(folder.join("trainer")).unwrap();
}

#[test]
fn a_run_goes_on_from_a_checkpoint_with_its_state_beside_the_weights() {
    let expected = Run::with_gradients("climb");
    expected.live_to_the_end().complete();
    let run = Run::with_gradients("climb");
    die_after_saving(&run, 3);
    let flat = run.checkpoint(3);
    make_flat(&flat.folder);
    flat.verify().unwrap();
    assert!(!flat.is_model_alone());
    run.live_to_the_end().complete();
    assert!(run.bits(4) == expected.bits(4), "other weights");

    // It is read, not passed over: the same run goes back to its beginning when that checkpoint is damaged.
    let damaged = Run::with_gradients("climb");
    die_after_saving(&damaged, 3);
    let flat = damaged.checkpoint(3);
    make_flat(&flat.folder);
    fs::write(flat.folder.join("trainer.safetensors"), "junk").unwrap();
    let message = flat.verify().unwrap_err().to_string();
    assert!(message.contains("`trainer.safetensors`"), "{message}");
    let mut warned = 0;
    let ended = damaged.live(|event| {
        warned += u32::from(matches!(event, TrainEvent::Warning { .. }));
        Fate::GoOn
    });
    ended.complete();
    assert_eq!(warned, 1);
}

#[test]
fn old_checkpoints_go_and_the_best_one_stays() {
    let trained = |keep_last, keep_best| {
        let mut run = Run::new("climb");
        run.plan.checkpoints.eval_interval = 1;
        run.plan.checkpoints.checkpoint_save_freq = 1;
        run.plan.checkpoints.keep_last = keep_last;
        run.plan.checkpoints.keep_best = keep_best;
        run.live_to_the_end().complete();
        run
    };
    let all = trained(None, None);
    assert_eq!(all.saved_steps(), [1, 2, 3, 4]);
    let best = checkpoints::resolve(&all.folder, Which::Best).unwrap().step;
    let expected: BTreeSet<u64> = [best, 4].into();
    let left = trained(Some(1), None).saved_steps();
    assert!(left.iter().eq(&expected), "{left:?}, not {expected:?}");
    let expected: BTreeSet<u64> = [best, 3, 4].into();
    let left = trained(Some(2), Some(1)).saved_steps();
    assert!(left.iter().eq(&expected), "{left:?}, not {expected:?}");
}

#[test]
fn a_run_that_keeps_one_checkpoint_is_resumed_from_it() {
    let new = || {
        let mut run = Run::new("climb");
        run.plan.checkpoints.checkpoint_save_freq = 1;
        run.plan.checkpoints.keep_last = Some(1);
        run
    };
    let expected = new();
    expected.live_to_the_end().complete();
    let run = new();
    die_after_saving(&run, 3);
    run.live_to_the_end().complete();
    assert!(run.bits(4) == expected.bits(4), "other weights");
}

#[test]
fn a_run_of_adapters_that_was_killed_ends_with_the_same_bits() {
    for base in [LoraBase::F32, LoraBase::Q8] {
        let expected = Run::with_adapters("climb", base);
        expected.live_to_the_end().complete();
        let updates = expected.numbers("gradient_norm").len();
        assert_eq!(updates, 4, "every step must change the adapters");
        let run = Run::with_adapters("climb", base);
        die_after_saving(&run, 3);
        run.live_to_the_end().complete();
        // The folder of the base has another name in each run.
        let bits = |run: &Run| {
            let mut bits = run.bits(4);
            assert!(bits.contains_key("adapter_model.safetensors"));
            assert!(bits.contains_key("optimizer.safetensors"));
            bits.retain(|name, _| name.ends_with(".safetensors"));
            bits
        };
        assert!(bits(&run) == bits(&expected), "other adapters, {base:?}");
        let worst = run.numbers("logprob_mismatch/max");
        assert!(worst.iter().all(|(_, apart)| *apart < 1e-4), "{worst:?}");
        // Others open what is beside the base.
        let model = EmbeddedModel::open(&run.checkpoint(4).folder).unwrap();
        assert_ne!(model.weights, crate::model::tiny().weights);
    }
}
