//! Rows that a step chooses by results: further rows in place of those whose rewards are all equal, and rows whose
//! attempts differed before.

use osmosis_core::config::{RowChoice, RowStrategy};
use osmosis_engine::RunEvent;
use osmosis_train::TrainEvent;

use crate::run::{Ended, Fate, Run, row};

/// Twelve rows, of which every second gives all of its attempts the same reward.
fn run(strategy: RowStrategy, max_extra_rows: u32) -> Run {
    let mut run = Run::new("climb").training(|training| {
        training.rollout_batch_size = 4;
        training.n_samples_per_prompt = 4;
        training.steps = Some(6);
        training.max_extra_rows = max_extra_rows;
        training.rows = RowChoice { strategy };
    });
    let prompts = [
        "a", "b", "ab", "ba", "aa", "bb", "c", "d", "cd", "dc", "cc", "dd",
    ];
    let doing = ["climb", "always the same"];
    run.plan.rows = prompts
        .into_iter()
        .zip(doing.into_iter().cycle())
        .zip(100..)
        .map(|((prompt, doing), index)| row(index, prompt, doing))
        .collect();
    run
}

/// The rows of each finished rollout to train on, by step.
fn rows_by_step(run: &Run) -> Vec<Vec<u64>> {
    let mut steps: Vec<Vec<u64>> = Vec::new();
    run.live(|event| {
        match event {
            TrainEvent::StepBegan { step, .. } if *step > 0 => steps.push(Vec::new()),
            TrainEvent::Rollout(RunEvent::Finished { id, .. }) => {
                let name = id.to_string();
                let row = name.trim_start_matches('r').split('-').next().unwrap();
                let row: u64 = row.parse().unwrap();
                if let Some(rows) = steps.last_mut().filter(|_| row >= 100) {
                    rows.push(row);
                }
            }
            _ => {}
        }
        Fate::GoOn
    })
    .complete();
    for rows in &mut steps {
        rows.sort_unstable();
        rows.dedup();
    }
    steps
}

fn is_flat(row: u64) -> bool {
    row % 2 == 1
}

#[test]
fn rows_with_equal_rewards_are_replaced_until_the_batch_is_full_or_the_bound_is_reached() {
    let run = run(RowStrategy::Uniform, 6);
    let steps = rows_by_step(&run);
    let (extra, used) = (run.numbers("rows/extra"), run.numbers("groups/used"));
    let flat = run.numbers("groups/no_variance");
    assert_eq!(steps.len(), 6);
    for (at, rows) in steps.iter().enumerate() {
        let (extra, used, flat) = (extra[at].1, used[at].1, flat[at].1);
        assert!((rows.len() as f64 - (4.0 + extra)).abs() < 0.5, "{rows:?}");
        assert!((rows.iter().filter(|row| is_flat(**row)).count() as f64 - flat).abs() < 0.5);
        // Only six rows vary at all.
        assert!(
            (used - 4.0).abs() < 0.5 || (extra - 6.0).abs() < 0.5,
            "step {at}"
        );
        assert!((used + flat - rows.len() as f64).abs() < 0.5, "step {at}");
    }
    assert!(extra.iter().any(|(_, extra)| *extra > 0.5), "{extra:?}");
}

#[test]
fn a_bound_of_none_runs_the_planned_rows_and_reports_no_others() {
    let run = run(RowStrategy::Uniform, 0);
    let steps = rows_by_step(&run);
    assert!(steps.iter().all(|rows| rows.len() == 4), "{steps:?}");
    assert!(run.numbers("rows/extra").is_empty());
    assert!(run.numbers("rows/untried").is_empty());
}

#[test]
fn the_frontier_tries_every_row_and_returns_to_those_that_vary() {
    // Half of the rows pass half of the time, and the others never. The policy stays as it is.
    let mut run = run(RowStrategy::Frontier, 0);
    run.plan.training.steps = Some(12);
    run.plan.training.lr = 1e-9;
    for row in &mut run.plan.rows {
        if !is_flat(row.row_index) {
            *row = crate::run::row(row.row_index, "a", "even");
        }
    }
    let steps = rows_by_step(&run);
    let first: Vec<u64> = {
        let mut rows: Vec<u64> = steps[..3].concat();
        rows.sort_unstable();
        rows
    };
    assert_eq!(
        first,
        (100..112).collect::<Vec<u64>>(),
        "every row once at first"
    );
    let later: Vec<u64> = steps[3..].concat();
    let flat = later.iter().filter(|row| is_flat(**row)).count();
    assert!(flat * 2 < later.len(), "{flat} of {} are flat", later.len());
    let lines = run.metrics();
    let untried: Vec<u64> = lines
        .iter()
        .filter_map(|line| line.get("rows/untried")?.as_u64())
        .collect();
    assert_eq!(untried[..4], [4, 4, 4, 0]);
    let last = run.metrics().pop().unwrap();
    let count = |name: &str| last[name].as_u64().unwrap();
    let known =
        count("rows/sometimes_passed") + count("rows/always_passed") + count("rows/never_passed");
    assert_eq!((known, count("rows/tried_so_far")), (4, 12));
    let chance = last["rows/chance_of_variance"].as_f64().unwrap();
    assert!(chance > 0.0 && chance < 1.0, "{chance}");
}

/// What a run says of its rows and its learning.
fn told(run: &Run) -> Vec<Vec<(u64, f64)>> {
    let names = [
        "rows/extra",
        "rows/untried",
        "rows/chance_of_variance",
        "reward/mean",
        "groups/used",
        "groups/no_variance",
        "loss",
    ];
    names.map(|name| run.numbers(name)).to_vec()
}

#[test]
fn a_run_that_was_killed_chooses_the_same_rows() {
    for strategy in [RowStrategy::Uniform, RowStrategy::Frontier] {
        let expected = run(strategy, 6);
        let mut events = 0;
        expected
            .live(|_| {
                events += 1;
                Fate::GoOn
            })
            .complete();
        assert_eq!(expected.numbers("rows/extra").len(), 6);
        for moment in (1..8).map(|part| part * events / 8) {
            let run = run(strategy, 6);
            let mut heard = 0;
            let ended = run.live(|_| {
                heard += 1;
                if heard == moment {
                    Fate::Die
                } else {
                    Fate::GoOn
                }
            });
            assert!(matches!(ended, Ended::Died), "{ended:?} at {moment}");
            run.live_to_the_end().complete();
            assert_eq!(
                told(&run),
                told(&expected),
                "{strategy:?}, killed at {moment}"
            );
            assert!(
                run.bits(6) == expected.bits(6),
                "{strategy:?}, killed at {moment}"
            );
        }
    }
}
