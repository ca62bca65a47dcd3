use std::sync::Arc;

use osmosis_core::config::{IncompleteGroups, Training};
use osmosis_train::{EndCause, TrainErrorKind, TrainEvent, checkpoints};

use crate::model;
use crate::run::{Fate, Model, Run};

#[test]
fn equal_rewards_make_no_update_and_training_goes_on() {
    let run = Run::new("always the same").training(|training| training.steps = Some(10));
    let mut warnings = Vec::new();
    run.live(|event| {
        if let TrainEvent::Warning { message } = event {
            warnings.push(message.clone());
        }
        Fate::GoOn
    })
    .complete();
    for line in &run.metrics()[1..] {
        assert_eq!(line["skipped"], "no variance");
        assert_eq!(line["groups/used"], 0);
        assert!(line["loss"].is_null());
    }
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].starts_with("10 steps in a row made no update"),
        "{warnings:?}"
    );
    assert!(
        checkpoints::list(&run.folder).unwrap().is_empty(),
        "a checkpoint of the start model is of no use"
    );
    // Nothing is lost by that: a resume repeats the steps from what is recorded.
    assert_eq!(run.live_to_the_end().complete(), 10);
    assert_eq!(run.metrics().len(), 11);
}

#[test]
fn a_first_step_that_fails_alike_stops_training_and_runs_again_after_a_resume() {
    for max_staleness in [0, 1] {
        let keep = tempfile::tempdir().unwrap();
        let file = keep.path().join("there");
        let doing = format!("fail until there is {}", file.display());
        let run = Run::new(&doing).training(|training| training.max_staleness = max_staleness);
        let mut warnings = Vec::new();
        let ended = run.live(|event| {
            if let TrainEvent::Warning { message } = event {
                warnings.push(message.clone());
            }
            Fate::GoOn
        });
        let end = ended.end();
        let EndCause::FailedAlike { rollouts } = *end.cause() else {
            panic!("{end:?}");
        };
        // 3 rows with 8 attempts each; without waiting, a few more may have ended.
        assert!(rollouts >= 24, "{rollouts}");
        let begin = format!("all {rollouts} attempts of the first step failed in the same way");
        assert!(
            warnings[0].starts_with(&begin) && warnings[0].contains("no luck"),
            "{warnings:?}"
        );
        assert_eq!(run.metrics().len(), 1, "no step is recorded");
        assert_eq!(run.numbers("eval/pass_rate"), [(0, 0.0)]);
        assert!(checkpoints::list(&run.folder).unwrap().is_empty());

        // Without a cure it fails again, and so it stops again.
        let end = run.live_to_the_end().end();
        assert!(
            matches!(end.cause(), EndCause::FailedAlike { .. }),
            "{end:?}"
        );

        std::fs::write(&file, "").unwrap();
        let steps = run.live_to_the_end().complete();
        assert_eq!(steps, 4);
        let before = &run.metrics()[0];
        assert_eq!(before["eval/scored"], before["eval/rollouts"], "{before:?}");
        assert!(!checkpoints::list(&run.folder).unwrap().is_empty());
    }
}

#[test]
fn incomplete_groups_are_dropped_or_kept_as_asked() {
    let dropped = Run::new("fail every fourth").training(|training| training.steps = Some(1));
    dropped.live_to_the_end().complete();
    let step = &dropped.metrics()[1];
    assert_eq!(step["groups/incomplete"], 3);
    assert_eq!(step["rollouts/agent_failed"], 6);
    assert_eq!(step["rollouts/scored"], 18);
    assert_eq!(step["skipped"], "no complete group");

    let kept = Run::new("fail every fourth").training(|training| {
        training.steps = Some(1);
        training.incomplete_groups = IncompleteGroups::Keep;
    });
    kept.live_to_the_end().complete();
    let step = &kept.metrics()[1];
    assert_eq!(step["groups/incomplete"], 0);
    let compared =
        step["groups/used"].as_u64().unwrap() + step["groups/no_variance"].as_u64().unwrap();
    assert_eq!(compared, 3);
    assert_eq!(
        step["rows"].as_u64().unwrap(),
        step["groups/used"].as_u64().unwrap() * 6
    );
}

#[test]
fn groups_that_are_mostly_dropped_are_told_of() {
    let warned = |keep: bool| {
        let run = Run::new("fail every fourth").training(|training| {
            training.steps = Some(5);
            if keep {
                training.incomplete_groups = IncompleteGroups::Keep;
            }
        });
        let mut warnings = Vec::new();
        run.live(|event| {
            if let TrainEvent::Warning { message } = event {
                warnings.push(message.clone());
            }
            Fate::GoOn
        })
        .complete();
        warnings
    };
    let warnings = warned(false);
    let expected = "of the last 5 steps were dropped: ";
    assert!(
        warnings.iter().any(|message| message.contains(expected)),
        "{warnings:?}"
    );
    let warnings = warned(true);
    assert!(
        !warnings.iter().any(|message| message.contains(expected)),
        "{warnings:?}"
    );
}

#[test]
fn an_agent_that_never_calls_the_policy_is_refused_by_name() {
    let error = Run::new("say nothing").live_to_the_end().error();
    assert_eq!(error.kind(), TrainErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.starts_with("rollout `r"), "{text}");
    assert!(
        text.ends_with("was scored, but its agent never called the policy"),
        "{text}"
    );
    assert!(error.hint().unwrap().contains("must call the model"));
}

#[test]
fn a_reward_for_a_sample_the_policy_was_not_called_for_is_refused() {
    let error = Run::new("speak under another name")
        .live_to_the_end()
        .error();
    assert_eq!(error.kind(), TrainErrorKind::Invalid);
    let text = error.to_string();
    assert!(
        text.ends_with("the policy was called for `elsewhere`, and the reward is for `here`"),
        "{text}"
    );
}

#[test]
fn a_gradient_that_is_not_finite_leaves_the_last_checkpoint_intact() {
    let train = |training: &mut Training| training.updates_per_batch = 2;
    let expected = Run::with_gradients("climb").training(train);
    expected.live_to_the_end().complete();

    let mut run = Run::with_gradients("climb").training(train);
    run.live(|event| match event {
        TrainEvent::StepBegan { step: 3, .. } => Fate::Drain,
        _ => Fate::GoOn,
    });
    let good = run.bits(2);
    // Beyond all reason: the first update of the step throws the weights away, the second finds that out.
    run.plan.training.lr = 1e30;
    let error = run.live_to_the_end().error();
    assert_eq!(error.kind(), TrainErrorKind::Diverged);
    assert!(error.to_string().starts_with("step 3: "), "{error}");
    assert!(error.hint().unwrap().contains("checkpoint is intact"));
    assert_eq!(run.saved_steps(), [2]);
    assert!(run.bits(2) == good);

    run.plan.training.lr = expected.plan.training.lr;
    run.live_to_the_end().complete();
    assert!(run.bits(4) == expected.bits(4));
}

#[test]
fn a_run_that_begins_with_a_damaged_model_says_so() {
    let mut run = Run::with_gradients("answer");
    let mut damaged = model::tiny();
    let mut weights = (*damaged.weights).clone();
    for tensor in weights.tensors.values_mut() {
        tensor.values = tensor.values.iter().map(|_| f32::NAN).collect();
    }
    damaged.weights = Arc::new(weights);
    run.model = Model::Embedded(Box::new(damaged));
    let error = run.live_to_the_end().error();
    assert_eq!(error.kind(), TrainErrorKind::Invalid);
    assert!(error.to_string().contains("is not finite"), "{error}");
}

#[test]
fn rollouts_that_could_not_be_run_end_training_and_are_tried_again_on_resume() {
    let expected = Run::new("climb");
    expected.live_to_the_end().complete();
    let run = Run::new("climb");
    let error = run
        .live(|event| match event {
            TrainEvent::StepBegan { step: 2, .. } => Fate::LoseThePolicy,
            _ => Fate::GoOn,
        })
        .error();
    assert_eq!(error.kind(), TrainErrorKind::Resumable);
    let text = error.to_string();
    assert!(
        text.starts_with("none of the 8 rollouts of step 2 could be run: "),
        "{text}"
    );
    assert_eq!(
        run.numbers("reward/mean").len(),
        1,
        "the step is not recorded"
    );
    run.live_to_the_end().complete();
    assert_eq!(run.numbers("reward/mean"), expected.numbers("reward/mean"));
    assert!(run.bits(4) == expected.bits(4));
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_training_and_a_resume_goes_on() {
    for max_staleness in [0, 1] {
        let run = Run::new("climb").training(|training| {
            training.max_staleness = max_staleness;
            training.rollout_batch_size = 2;
        });
        // A file where the folder should be written.
        let in_the_way = run.folder.join("checkpoints/.step_3.partial");
        std::fs::create_dir(run.folder.join("checkpoints")).unwrap();
        std::fs::write(&in_the_way, "in the way").unwrap();
        let error = run.live_to_the_end().error();
        assert_eq!(error.kind(), TrainErrorKind::Resumable, "{error}");
        let recorded = run.recorded_steps();
        assert_eq!(recorded, [0, 1, 2, 3], "recorded before it is saved");
        std::fs::remove_file(in_the_way).unwrap();
        run.live_to_the_end().complete();
        assert_eq!(run.saved_steps().last(), Some(&4));
        if max_staleness == 0 {
            assert_eq!(run.saved_steps(), [3, 4]);
        }
    }
}
