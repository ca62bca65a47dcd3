use osmosis_core::config::{Algorithm, LossNormalization, Objective, Overlong, Training};
use osmosis_train::{StepReport, TrainEvent};

use crate::run::{Fate, Run};

fn mean(numbers: &[(u64, f64)]) -> f64 {
    numbers.iter().map(|(_, number)| number).sum::<f64>() / numbers.len() as f64
}

fn learns(algorithm: Algorithm) {
    learns_with(|training| training.algorithm = algorithm);
}

fn learns_with(change: impl FnOnce(&mut Training)) {
    let run = Run::with_gradients("answer").training(|training| {
        training.n_samples_per_prompt = 8;
        training.rollout_batch_size = 4;
        training.steps = Some(16);
        change(training);
    });
    assert_eq!(run.live_to_the_end().complete(), 16);
    let rewards = run.numbers("reward/mean");
    assert_eq!(rewards.len(), 16);
    let (before, after) = (rewards[0].1, mean(&rewards[13..]));
    assert!(before < 0.2 && after > 0.8, "{rewards:?}");
    let evaluated = run.numbers("eval/reward_mean");
    assert_eq!(evaluated.first().unwrap().0, 0);
    assert_eq!(evaluated.last().unwrap().0, 16);
}

#[test]
fn grpo_raises_the_reward() {
    learns(Algorithm::Grpo);
}

#[test]
fn dr_grpo_raises_the_reward() {
    learns(Algorithm::DrGrpo);
}

#[test]
fn rloo_raises_the_reward() {
    learns(Algorithm::Rloo);
}

#[test]
fn reinforce_plus_plus_raises_the_reward() {
    learns(Algorithm::ReinforcePlusPlus);
}

#[test]
fn reinforce_plus_plus_baseline_raises_the_reward() {
    learns(Algorithm::ReinforcePlusPlusBaseline);
}

#[test]
fn gspo_raises_the_reward() {
    learns_with(|training| {
        training.objective = Objective::Gspo;
        training.updates_per_batch = 2;
        (training.clip_ratio, training.clip_ratio_high) = (0.05, Some(0.08));
    });
}

#[test]
fn cispo_raises_the_reward() {
    learns_with(|training| {
        training.objective = Objective::Cispo;
        training.updates_per_batch = 2;
    });
}

#[test]
fn the_parts_of_dapo_raise_the_reward_together() {
    learns_with(|training| {
        training.clip_ratio_high = Some(0.28);
        training.loss_normalization = Some(LossNormalization::Batch);
        training.max_extra_rows = 4;
        training.entropy_coef = 0.001;
    });
}

#[test]
fn an_entropy_bonus_keeps_the_policy_less_certain() {
    let entropy = |entropy_coef: f64| {
        let run = Run::with_gradients("answer").training(|training| {
            training.entropy_coef = entropy_coef;
            training.rollout_batch_size = 4;
            training.steps = Some(8);
        });
        run.live_to_the_end().complete();
        run.numbers("entropy").last().unwrap().1
    };
    let (without, with) = (entropy(0.0), entropy(0.5));
    assert!(
        with > without + 0.05,
        "{with} with a bonus, {without} without"
    );
}

#[test]
fn long_answers_lose_a_part_of_what_they_are_compared_by_and_keep_their_reward() {
    // Each answer has the same reward, so that only the penalty can teach.
    let run = Run::with_gradients("always the same").training(|training| {
        training.overlong = Some(Overlong {
            buffer: 3,
            penalty: 1.0,
        });
        training.n_samples_per_prompt = 16;
        training.rollout_batch_size = 4;
        training.steps = Some(16);
    });
    run.live_to_the_end().complete();
    for (step, reward) in run.numbers("reward/mean") {
        assert!((reward - 0.5).abs() < 1e-9, "step {step}: {reward}");
    }
    let penalties = run.numbers("overlong/penalty_mean");
    assert_eq!(penalties.len(), 16);
    let (before, after) = (penalties[0].1, mean(&penalties[13..]));
    assert!(before > 0.5 && after < before - 0.2, "{penalties:?}");
    assert!(run.numbers("overlong/penalized")[0].1 > 0.0);
}

/// The lines of the steps that made updates.
fn updated(run: &Run) -> Vec<serde_json::Map<String, serde_json::Value>> {
    let mut lines = run.metrics();
    lines.retain(|line| line.get("loss").is_some_and(serde_json::Value::is_f64));
    assert!(!lines.is_empty());
    lines
}

#[test]
fn one_update_with_what_the_policy_just_sampled_is_decoupled_as_it_is_clipped() {
    let run = |objective: Objective| {
        let run = Run::with_gradients("answer").training(|training| {
            training.objective = objective;
            training.steps = Some(1);
            training.n_samples_per_prompt = 16;
        });
        run.live_to_the_end().complete();
        run
    };
    let clipped = run(Objective::Clipped);
    let decoupled = run(Objective::Decoupled {
        behaviour_weight_cap: 5.0,
    });
    let (one, other) = (updated(&clipped).remove(0), updated(&decoupled).remove(0));
    for name in ["loss", "gradient_norm", "kl"] {
        let (one, other) = (one[name].as_f64().unwrap(), other[name].as_f64().unwrap());
        assert!((one - other).abs() < 1e-5, "{name}: {one}, {other}");
    }
    assert!(!one.contains_key("behaviour_weight/mean"), "{one:?}");
    assert!(!one.contains_key("behaviour_weight/capped"), "{one:?}");
    let mean = other["behaviour_weight/mean"].as_f64().unwrap();
    assert!((mean - 1.0).abs() < 1e-4, "{mean}");
    assert_eq!(other["behaviour_weight/capped"], 0.0);
}

#[test]
fn the_decoupled_objective_raises_the_reward_and_measures_from_where_the_step_began() {
    let run = Run::with_gradients("answer").training(|training| {
        training.objective = Objective::Decoupled {
            behaviour_weight_cap: 5.0,
        };
        training.updates_per_batch = 2;
        training.rollout_batch_size = 4;
        training.steps = Some(10);
    });
    assert_eq!(run.live_to_the_end().complete(), 10);
    let rewards = run.numbers("reward/mean");
    let (before, after) = (rewards[0].1, mean(&rewards[8..]));
    assert!(before < 0.2 && after > 0.6, "{rewards:?}");
    for line in updated(&run) {
        // The step's own weights sampled: what later updates do to the policy is no part of it.
        let weight = line["behaviour_weight/mean"].as_f64().unwrap();
        assert!((weight - 1.0).abs() < 1e-4, "{line:?}");
    }
}

#[test]
fn several_updates_per_batch_and_a_reference_are_measured() {
    let run = Run::with_gradients("two turns").training(|training| {
        training.updates_per_batch = 3;
        training.kl_coef = 0.1;
        training.n_samples_per_prompt = 16;
    });
    let mut stepped: Vec<StepReport> = Vec::new();
    run.live(|event| {
        if let TrainEvent::Stepped(report) = event
            && report.skipped.is_none()
        {
            stepped.push((**report).clone());
        }
        Fate::GoOn
    })
    .complete();
    assert!(stepped.len() >= 3, "{stepped:?}");
    for report in &stepped {
        let mismatch = report.logprob_mismatch_max.unwrap();
        assert!(
            mismatch < 1e-4,
            "sampler and learner disagree by {mismatch}"
        );
        assert!(
            report.kl.unwrap() > 0.0,
            "three updates leave the policy that sampled"
        );
        assert!(report.gradient_norm.unwrap() > 0.0);
        assert!(report.entropy.unwrap() > 0.0);
        assert!(report.tokens_trained > 0 && report.tokens_trained <= report.tokens_sampled);
        assert_eq!(report.rollouts.scored, report.rollouts.total());
    }
    assert_eq!(
        stepped[0].rows,
        stepped[0].groups_used * 16,
        "two turns are one row"
    );
    assert!(stepped[2].kl_reference.unwrap() > 0.0);
}

#[test]
fn every_step_is_a_line_an_event_and_a_point_in_tensorboard() {
    let mut run = Run::new("answer");
    run.tensorboard = true;
    let mut seen = Vec::new();
    run.live(|event| {
        match event {
            TrainEvent::StepBegan { step, steps } => seen.push(format!("step {step} of {steps}")),
            TrainEvent::Updating { step } => seen.push(format!("updating {step}")),
            TrainEvent::Stepped(report) => seen.push(format!("stepped {}", report.step)),
            TrainEvent::Evaluating { .. } | TrainEvent::Rollout(_) => {}
            TrainEvent::Evaluated { step, .. } => seen.push(format!("evaluated {step}")),
            TrainEvent::Saved { step, .. } => seen.push(format!("saved {step}")),
            TrainEvent::Warning { message } => seen.push(message.clone()),
        }
        Fate::GoOn
    })
    .complete();
    assert_eq!(
        seen,
        [
            "step 0 of 4",
            "evaluated 0",
            "step 1 of 4",
            "updating 1",
            "stepped 1",
            "step 2 of 4",
            "updating 2",
            "stepped 2",
            "evaluated 2",
            "step 3 of 4",
            "updating 3",
            "stepped 3",
            "saved 3",
            "step 4 of 4",
            "updating 4",
            "stepped 4",
            "saved 4",
            "evaluated 4",
        ]
    );
    let steps: Vec<u64> = run
        .metrics()
        .iter()
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [0, 1, 2, 3, 4]);
    assert_eq!(run.saved_steps(), [3, 4]);
    assert_eq!(run.metrics()[3]["version"], 3);
    run.assert_numbers_of_steps(4);
    assert!(run.metrics()[3]["time/save"].as_f64().unwrap() > 0.0);
    let events = run.folder.join("tensorboard").read_dir_utf8().unwrap();
    let bytes = std::fs::read(events.last().unwrap().unwrap().path()).unwrap();
    let find = |text: &str| {
        bytes
            .windows(text.len())
            .filter(|w| *w == text.as_bytes())
            .count()
    };
    assert_eq!(find("reward/mean"), 4);
    assert_eq!(find("eval/reward_mean"), 3);
    assert_eq!(find("eval/greedy_reward_mean"), 3);
}
