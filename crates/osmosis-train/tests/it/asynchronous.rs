//! Asynchronous training: it learns, keeps the bound, loses nothing and trains on nothing twice.

use std::collections::BTreeSet;

use osmosis_core::config::{FlatGroups, IncompleteGroups};
use osmosis_core::staleness::{StaleRows, Straggler};
use osmosis_engine::RunEvent;
use osmosis_train::{EndCause, TrainEvent};

use crate::run::{Ended, Fate, Run};

fn asynchronous(doing: &str, max_staleness: u32) -> Run {
    without_waiting(Run::new(doing), max_staleness)
}

fn without_waiting(run: Run, max_staleness: u32) -> Run {
    run.training(|training| {
        training.max_staleness = max_staleness;
        training.rollout_batch_size = 2;
    })
}

/// Every step has its batch, and no group or rollout is in two of them.
fn assert_nothing_was_trained_on_twice(run: &Run, moment: &str) {
    let steps: Vec<u64> = run
        .metrics()
        .iter()
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [0, 1, 2, 3, 4], "{moment}");
    let batches = run.batches();
    assert_eq!(batches.len(), 4, "{moment}");
    let (mut groups, mut rollouts) = (BTreeSet::new(), BTreeSet::new());
    for (group, members) in batches.iter().flatten() {
        assert!(groups.insert(group), "group {group} twice, {moment}");
        assert_eq!(members.len(), 8, "{moment}");
        for rollout in members {
            assert!(rollouts.insert(rollout), "{rollout} twice, {moment}");
        }
    }
    assert_eq!(groups.len(), 8, "{moment}");
}

#[test]
fn the_reward_rises_with_tokens_that_are_a_version_old() {
    let run = Run::with_gradients("answer").training(|training| {
        training.max_staleness = 2;
        training.rollout_batch_size = 4;
        training.steps = Some(20);
    });
    let end = run.live_to_the_end().end();
    // A policy that is always right has nothing left to learn.
    let ends = matches!(
        end.cause(),
        EndCause::Complete | EndCause::NoVariance { .. }
    );
    assert!(ends, "{end:?}");
    let steps = end.steps();
    let rewards = run.numbers("reward/mean");
    assert_eq!(rewards.len() as u64, steps);
    let last = rewards.last().unwrap().1;
    assert!(rewards[0].1 < 0.3 && last > 0.7, "{rewards:?}");
    let oldest = run.numbers("staleness/max");
    assert!(oldest.iter().all(|(_, age)| *age <= 2.0), "{oldest:?}");
    assert!(
        oldest.iter().any(|(_, age)| *age > 0.0),
        "rollouts went on during updates: {oldest:?}"
    );
    let trained = run.numbers("tokens/trained");
    let fresh = run.numbers("staleness/tokens_0");
    assert!(fresh.len() < trained.len() || fresh != trained);
    assert_eq!(run.numbers("time/wait_rollouts").len() as u64, steps);
    assert_eq!(run.numbers("time/wait_update").len() as u64, steps);
}

#[test]
fn a_run_killed_at_any_moment_trains_on_nothing_twice_and_completes() {
    let mut events = 0;
    let whole = asynchronous("climb", 1);
    whole
        .live(|_| {
            events += 1;
            Fate::GoOn
        })
        .complete();
    assert_nothing_was_trained_on_twice(&whole, "never interrupted");
    for moment in (0..9).map(|part| 1 + part * (events * 3 / 4) / 8) {
        let run = asynchronous("climb", 1);
        let mut told = 0;
        let mut stepped = Vec::new();
        let ended = run.live(|event| {
            told += 1;
            if let TrainEvent::Stepped(report) = event {
                stepped.push((report.step, report.loss.unwrap()));
            }
            if told == moment {
                Fate::Die
            } else {
                Fate::GoOn
            }
        });
        assert!(matches!(ended, Ended::Died), "{ended:?} at {moment}");
        let recorded = run.batches();
        run.live_to_the_end().complete();
        let moment = format!("killed at event {moment} of {events}");
        assert_nothing_was_trained_on_twice(&run, &moment);
        assert_eq!(run.batches()[..recorded.len()], recorded, "{moment}");
        for ((step, loss), (_, now)) in stepped.iter().zip(run.numbers("loss")) {
            // Reading a number may change its last digit.
            let difference = (now - loss).abs();
            assert!(
                difference <= loss.abs() * 1e-12,
                "step {step} changed, {moment}"
            );
        }
    }
}

#[test]
fn the_weights_follow_from_the_recorded_batches() {
    let run = asynchronous("climb", 1);
    run.live_to_the_end().complete();
    run.assert_numbers_of_steps(4);
    let bits = run.bits(4);
    std::fs::remove_dir_all(run.folder.join("checkpoints")).unwrap();
    run.live(|event| match event {
        TrainEvent::Rollout(event) => panic!("nothing has to run again: {event:?}"),
        _ => Fate::GoOn,
    })
    .complete();
    assert!(run.bits(4) == bits);
}

/// A run that was killed after its third batch was recorded, and before its third step was.
fn killed_in_the_third_update() -> Run {
    // An update that takes its time: one that takes none may be recorded before the process dies.
    let run = without_waiting(Run::with_gradients("climb"), 1);
    let ended = run.live(|event| match event {
        TrainEvent::Updating { step: 3 } => Fate::Die,
        _ => Fate::GoOn,
    });
    assert!(matches!(ended, Ended::Died), "{ended:?}");
    assert_eq!(
        run.batches().len(),
        3,
        "the batch is there before its update"
    );
    assert!(run.saved_steps().is_empty());
    run
}

#[test]
fn a_recorded_batch_whose_step_was_not_recorded_is_repeated() {
    let run = killed_in_the_third_update();
    let recorded = run.batches();
    let other = run.copied();
    for again in [&run, &other] {
        again.live_to_the_end().complete();
        assert_nothing_was_trained_on_twice(again, "killed in the third update");
        assert_eq!(again.batches()[..3], recorded);
        again.assert_numbers_of_steps(4);
    }
    // The rollouts of the fourth batch may be others, those of the third are not: nor is what they do.
    assert!(run.bits(3) == other.bits(3));
    let loss = |run: &Run| run.numbers("loss")[2].1.to_bits();
    assert_eq!(loss(&run), loss(&other));
}

#[test]
fn a_recorded_batch_is_repeated_in_its_order_and_not_as_it_would_be_formed_now() {
    let run = killed_in_the_third_update();
    let other = run.copied();
    // An order in which no process of today would form it.
    other.rewrite_batch(3, |content| {
        let groups = content["groups"].as_array_mut().unwrap();
        groups.reverse();
        groups[0]["members"].as_array_mut().unwrap().reverse();
    });
    let recorded = other.batches();
    assert_ne!(recorded, run.batches());
    other.live_to_the_end().complete();
    assert_eq!(other.batches()[..3], recorded);
    assert_nothing_was_trained_on_twice(&other, "with another third batch");
}

#[test]
fn a_run_that_is_stopped_goes_on_where_it_was() {
    let run = asynchronous("climb", 1);
    let ended = run.live(|event| match event {
        TrainEvent::Stepped(report) if report.step == 2 => Fate::Drain,
        _ => Fate::GoOn,
    });
    let end = ended.end();
    assert_eq!(*end.cause(), EndCause::Stopped);
    assert!((2..4).contains(&end.steps()));
    let done = run.batches().len();
    let mut ran = 0;
    run.live(|event| {
        if let TrainEvent::Rollout(RunEvent::Finished { .. }) = event {
            ran += 1;
        }
        Fate::GoOn
    })
    .complete();
    assert!(done >= 2 && ran > 0);
    assert_nothing_was_trained_on_twice(&run, "stopped after step 2");
}

#[test]
fn a_straggler_delays_nobody() {
    for straggler in [Straggler::TopUp, Straggler::Drop] {
        let run = asynchronous("hang every eighth", 1).training(|training| {
            training.stragglers = straggler;
            training.incomplete_groups = IncompleteGroups::Keep;
            training.stale_rows = StaleRows::Mask;
        });
        let mut cancelled = 0;
        run.live(|event| {
            if let TrainEvent::Rollout(RunEvent::Finished { outcome, .. }) = event {
                cancelled += u32::from(*outcome == osmosis_core::Outcome::Cancelled);
            }
            Fate::GoOn
        })
        .complete();
        assert!(cancelled >= 4, "{straggler:?}: {cancelled} were cancelled");
        let sizes: BTreeSet<usize> = run.batches().iter().flatten().map(|g| g.1.len()).collect();
        match straggler {
            Straggler::TopUp => assert_eq!(sizes, [8].into(), "another one took its place"),
            Straggler::Drop | Straggler::Wait => assert_eq!(sizes, [7].into()),
        }
    }
}

#[test]
fn a_task_without_anything_to_learn_comes_to_an_end() {
    let run = asynchronous("always the same", 1);
    let mut warnings = Vec::new();
    let ended = run.live(|event| {
        if let TrainEvent::Warning { message } = event {
            warnings.push(message.clone());
        }
        Fate::GoOn
    });
    let end = ended.end();
    assert_eq!(*end.cause(), EndCause::NoVariance { groups: 20 });
    assert_eq!((end.steps(), end.planned_steps()), (0, 4));
    assert!(warnings[0].contains("20 groups in a row"), "{warnings:?}");
}

#[test]
fn groups_without_variance_are_replaced_or_keep_their_place_as_asked() {
    for flat_groups in [FlatGroups::Replace, FlatGroups::Keep] {
        let run = asynchronous("answer", 1).training(|training| {
            training.flat_groups = flat_groups;
            // Nothing is learnt, so that groups without variance go on coming.
            training.lr = 1e-9;
            training.rollout_batch_size = 4;
            training.steps = Some(3);
        });
        run.live_to_the_end().complete();
        let used: Vec<f64> = run.numbers("groups/used").iter().map(|n| n.1).collect();
        let flat: f64 = run.numbers("groups/no_variance").iter().map(|n| n.1).sum();
        assert!(flat > 0.0, "no group was without variance");
        let batches = run.batches();
        assert_eq!(batches.len(), 3);
        assert!(batches.iter().all(|groups| groups.len() == 4));
        match flat_groups {
            FlatGroups::Replace => assert!(used.iter().all(|n| *n >= 4.0), "{used:?}"),
            FlatGroups::Keep => {
                // Every group has its place in a batch, whether it teaches something or not.
                let used: f64 = used.iter().sum();
                assert!((used + flat - 12.0).abs() < 0.5, "{used} and {flat} of 12");
            }
        }
    }
}
