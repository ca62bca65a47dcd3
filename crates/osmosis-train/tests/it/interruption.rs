//! A run that was interrupted ends as one that was not: the same rewards, the same bits.

use osmosis_engine::RunEvent;
use osmosis_train::{EndCause, TrainEvent};

use crate::run::{Ended, Fate, Run};

/// Numbers that must not depend on what happened to the process.
const REPEATABLE: [&str; 10] = [
    "reward/mean",
    "reward/std",
    "eval/reward_mean",
    "eval/greedy_reward_mean",
    "groups/used",
    "tokens/trained",
    "loss",
    "entropy",
    "gradient_norm",
    "logprob_mismatch/max",
];

fn assert_same(run: &Run, expected: &Run, moment: &str) {
    for name in REPEATABLE {
        assert_eq!(
            run.numbers(name),
            expected.numbers(name),
            "{name}, {moment}"
        );
    }
    let steps = |run: &Run| {
        run.metrics()
            .iter()
            .map(|line| line["step"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(steps(run), steps(expected), "{moment}");
    assert!(run.bits(4) == expected.bits(4), "other weights, {moment}");
}

fn undisturbed() -> Run {
    checked_to_learn(Run::new("climb"))
}

fn checked_to_learn(run: Run) -> Run {
    run.live_to_the_end().complete();
    let updates = run.numbers("gradient_norm").len();
    assert_eq!(updates, 4, "every step must change the weights");
    run
}

/// The number of events that an undisturbed run tells.
fn events_of(run: &Run) -> usize {
    let mut count = 0;
    run.live(|_| {
        count += 1;
        Fate::GoOn
    })
    .complete();
    count
}

#[test]
fn two_runs_of_one_plan_are_equal() {
    let run = || checked_to_learn(Run::with_gradients("climb"));
    assert_same(&run(), &run(), "never interrupted");
}

#[test]
fn a_run_killed_where_a_step_is_completed_ends_as_if_it_had_not_been() {
    let mut moments = Vec::new();
    let expected = Run::new("climb");
    expected
        .live(|event| {
            moments.extend(completion(event));
            Fate::GoOn
        })
        .complete();
    // One step that is evaluated, and one that is saved.
    moments.retain(|moment| moment.ends_with(['2', '3']));
    assert!(moments.contains(&"saved 3".to_owned()), "{moments:?}");
    assert!(moments.contains(&"evaluated 2".to_owned()), "{moments:?}");
    for moment in &moments {
        let run = Run::new("climb");
        let ended = run.live(|event| match completion(event) {
            Some(here) if here == *moment => Fate::Die,
            _ => Fate::GoOn,
        });
        assert!(matches!(ended, Ended::Died), "{ended:?} at {moment}");
        // A checkpoint never knows more than the store, and the files never more than that.
        let recorded = run.recorded_steps();
        assert!(
            run.saved_steps().iter().all(|step| recorded.contains(step)),
            "killed at {moment}: {recorded:?} are recorded, {:?} saved",
            run.saved_steps()
        );
        let published = run
            .metrics()
            .iter()
            .map(|line| line["step"].as_u64().unwrap())
            .max();
        assert!(published <= recorded.last().copied(), "killed at {moment}");
        run.live_to_the_end().complete();
        assert_same(&run, &expected, &format!("killed at {moment}"));
    }
}

/// What is told from the update of a step to its end.
fn completion(event: &TrainEvent) -> Option<String> {
    match event {
        TrainEvent::Updating { step } => Some(format!("updating {step}")),
        TrainEvent::Stepped(report) => Some(format!("stepped {}", report.step)),
        TrainEvent::Saved { step, .. } => Some(format!("saved {step}")),
        TrainEvent::Evaluating { step } => Some(format!("evaluating {step}")),
        TrainEvent::Evaluated { step, .. } => Some(format!("evaluated {step}")),
        TrainEvent::StepBegan { .. } | TrainEvent::Rollout(_) | TrainEvent::Warning { .. } => None,
    }
}

#[test]
fn a_run_killed_at_any_moment_ends_as_if_it_had_not_been() {
    let expected = Run::new("climb");
    let events = events_of(&expected);
    // Thirteen moments spread over the whole run, whatever is under way there.
    for moment in (0..13).map(|part| 1 + part * (events - 2) / 12) {
        let run = Run::new("climb");
        let mut told = 0;
        let ended = run.live(|_| {
            told += 1;
            if told == moment {
                Fate::Die
            } else {
                Fate::GoOn
            }
        });
        assert!(matches!(ended, Ended::Died), "{ended:?} at {moment}");
        run.live_to_the_end().complete();
        assert_same(
            &run,
            &expected,
            &format!("killed at event {moment} of {events}"),
        );
    }
}

#[test]
fn a_run_killed_again_and_again_gets_there() {
    let expected = checked_to_learn(Run::with_gradients("climb"));
    let run = Run::with_gradients("climb");
    let mut lives = 0;
    loop {
        lives += 1;
        assert!(lives < 60, "it makes no progress");
        let mut finished = 0;
        let ended = run.live(|event| {
            if matches!(event, TrainEvent::Rollout(RunEvent::Finished { .. })) {
                finished += 1;
            }
            if finished == 2 { Fate::Die } else { Fate::GoOn }
        });
        match ended {
            Ended::Died => {}
            Ended::Trained(end) => {
                assert_eq!(Ended::Trained(end).complete(), 4);
                break;
            }
        }
    }
    assert!(lives > 3, "{lives} lives");
    assert_same(&run, &expected, "killed again and again");
}

#[test]
fn stopping_saves_what_is_done() {
    let expected = undisturbed();
    let run = Run::new("climb");
    let ended = run.live(|event| match event {
        TrainEvent::StepBegan { step: 3, .. } => Fate::Drain,
        _ => Fate::GoOn,
    });
    let end = ended.end();
    assert_eq!((end.cause(), end.steps()), (&EndCause::Stopped, 2));
    assert_eq!(run.saved_steps(), [2]);
    run.live_to_the_end().complete();
    assert_same(&run, &expected, "stopped in step 3");
    assert_eq!(
        run.live_to_the_end().complete(),
        4,
        "there is nothing left to do"
    );
    assert_same(&run, &expected, "opened again when done");
}

#[test]
fn stopping_in_an_evaluation_loses_neither_the_step_nor_the_evaluation() {
    let expected = undisturbed();
    let run = Run::new("climb");
    let ended = run.live(|event| match event {
        TrainEvent::Evaluating { step: 2 } => Fate::Drain,
        _ => Fate::GoOn,
    });
    let end = ended.end();
    assert_eq!((end.cause(), end.steps()), (&EndCause::Stopped, 2));
    assert_eq!(run.numbers("eval/reward_mean").len(), 1);
    assert_eq!(run.numbers("reward/mean").len(), 2);
    run.live_to_the_end().complete();
    assert_same(&run, &expected, "stopped in the evaluation after step 2");
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let expected = undisturbed();
    let run = Run::new("climb");
    run.live(|event| match event {
        TrainEvent::Saved { step: 3, .. } => Fate::Drain,
        _ => Fate::GoOn,
    });
    let ended = run.live(|event| match event {
        TrainEvent::Saved { step: 4, .. } => Fate::Die,
        _ => Fate::GoOn,
    });
    assert!(matches!(ended, Ended::Died));
    assert_eq!(run.saved_steps(), [3, 4]);
    let weights = run.folder.join("checkpoints/step_4/logits.json");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).unwrap();

    let mut warnings = Vec::new();
    run.live(|event| {
        if let TrainEvent::Warning { message } = event {
            warnings.push(message.clone());
        }
        Fate::GoOn
    })
    .complete();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("step_4") && warnings[0].contains("not as it was saved"),
        "{warnings:?}"
    );
    assert_same(&run, &expected, "with a damaged checkpoint");
}
