//! Trainings that end before their planned steps: the weights are evaluated, and reports have the numbers of the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use osmosis_core::RunName;
use osmosis_core::config::FlatGroups;
use osmosis_run::reports::{
    EndCauseWord, FinalEvaluationWord, NoUpdateCause, RolloutCounts, TrainingReport,
};
use osmosis_run::run_folder::RunFolder;
use osmosis_store::{RunStatus, Store};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_train::{EndCause, FinalEvaluation, TrainEvent};

use crate::run::{Fate, Model, Run, row};

/// Rows that teach something on their first two visits, which are 4 steps, and nothing later. Held-out rows are as ever.
fn flat_after_four_steps(run: Run) -> Run {
    let mut run = run.training(|training| {
        training.max_staleness = 1;
        training.rollout_batch_size = 2;
        training.steps = Some(30);
    });
    run.plan.checkpoints.eval_interval = 10;
    let prompts = ["a", "b", "ab", "ba"].iter().zip(0..);
    run.plan.rows = prompts
        .map(|(prompt, index)| row(index, prompt, "climb, then the same"))
        .collect();
    run.plan.held_out = vec![row(4, "aa", "climb"), row(5, "bb", "climb")];
    run
}

/// The report of a run that has ended, as `train info` makes it.
fn report(run: &Run) -> TrainingReport {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let options = SqliteOptions::default();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&run.folder, options).unwrap());
        store.set_status(RunStatus::Finished).await.unwrap();
        let name = RunName::new("letters").unwrap();
        let folder = RunFolder::unlisted(run.folder.clone());
        let report = TrainingReport::of(&*store, &name, &folder).await.unwrap();
        store.close().await.unwrap();
        report
    })
}

fn sql(run: &Run, what: &str, rows: &str) -> f64 {
    let database = rusqlite::Connection::open(run.folder.join("run.db")).unwrap();
    let query = format!("SELECT {what} FROM rollouts WHERE {rows}");
    let number: Option<f64> = database
        .query_row(&query, [], |row| row.get::<_, Option<f64>>(0))
        .unwrap();
    number.unwrap_or(0.0)
}

/// Every number of a report that counts rollouts, against the database.
fn assert_counts(run: &Run, counts: &RolloutCounts, rows: &str) {
    let count = |more: &str| {
        sql(
            run,
            &format!("CAST(count(*) FILTER ({more}) AS REAL)"),
            rows,
        )
    };
    let outcomes = counts.outcomes;
    let ran = "outcome IN ('scored', 'agent_failed', 'timed_out', 'ungraded', 'rejected')";
    for (name, told, found) in [
        ("rollouts", counts.rollouts, count("WHERE 1")),
        (
            "without result",
            counts.without_result,
            count("WHERE state <> 'done'"),
        ),
        ("scored", outcomes.scored, count("WHERE outcome = 'scored'")),
        (
            "failed agents",
            outcomes.agent_failed,
            count("WHERE outcome = 'agent_failed'"),
        ),
        (
            "cancelled",
            outcomes.cancelled,
            count("WHERE outcome = 'cancelled'"),
        ),
        ("ran", counts.ran, count(&format!("WHERE {ran}"))),
        (
            "failed",
            counts.failed,
            count(&format!("WHERE {ran} AND outcome <> 'scored'")),
        ),
        ("passed", counts.passed, count("WHERE passed")),
        (
            "tokens",
            counts.completion_tokens,
            sql(run, "CAST(sum(completion_tokens) AS REAL)", rows),
        ),
    ] {
        assert!(
            (told as f64 - found).abs() < 0.5,
            "{name}: {told}, and {found} in run.db"
        );
    }
    let mean = sql(run, "avg(reward) FILTER (WHERE outcome = 'scored')", rows);
    let told = counts.reward_mean.unwrap();
    assert!(
        (told - mean).abs() < 1e-9,
        "reward: {told}, and {mean} in run.db"
    );
}

/// The report is made of the store, whatever became of the steps.
fn assert_report_of_store(run: &Run, report: &TrainingReport) {
    assert_counts(run, &report.rollouts.training, "row_index < 4");
    assert_counts(run, &report.rollouts.held_out, "row_index >= 4");
    assert_eq!(
        report.tokens.sampled,
        report.rollouts.training.completion_tokens
    );
    let database = rusqlite::Connection::open(run.folder.join("run.db")).unwrap();
    let query = "SELECT CAST(total(value) AS REAL) FROM steps, json_each(steps.metrics) \
                 WHERE key LIKE 'rollouts/%' AND key <> 'rollouts/stale'";
    let in_steps: f64 = database.query_row(query, [], |row| row.get(0)).unwrap();
    let all = in_steps + report.rollouts.in_no_step as f64;
    let ended = sql(
        run,
        "CAST(count(*) AS REAL)",
        "row_index < 4 AND state = 'done'",
    );
    assert!(
        (all - ended).abs() < 0.5,
        "{in_steps} in steps, {} in none, {ended} in run.db",
        report.rollouts.in_no_step
    );
}

fn check_early_end(run: &Run) {
    let mut warnings = Vec::new();
    let ended = run.live(|event| {
        if let TrainEvent::Warning { message } = event {
            warnings.push(message.clone());
        }
        Fate::GoOn
    });
    let end = ended.end();
    let EndCause::NoVariance { groups } = *end.cause() else {
        panic!("{end:?}");
    };
    assert!(groups >= 20, "{end:?}");
    assert_eq!((end.steps(), end.planned_steps()), (4, 30));
    assert_eq!(end.evaluation(), FinalEvaluation::Done);
    assert!(
        !warnings.iter().any(|message| message.contains("too hard")),
        "a guess before answers were looked at: {warnings:?}"
    );
    // The evaluation of the weights that training ended with, though none was due after step 4.
    let evaluated = run.numbers("eval/rollouts");
    assert_eq!(evaluated, [(0, 2.0), (4, 2.0)]);
    assert_eq!(run.numbers("eval/greedy_rollouts"), evaluated);
    assert!(run.saved_steps().contains(&4));

    let report = report(run);
    assert_report_of_store(run, &report);
    let told = report.end.as_ref().unwrap();
    assert_eq!(told.cause, EndCauseWord::NoVariance);
    assert_eq!(told.evaluation, FinalEvaluationWord::Done);
    assert_eq!((told.step, told.planned_steps), (4, 30));
    assert_eq!(report.before.unwrap().step, 0);
    assert_eq!(report.after.unwrap().step, 4);
    assert!(report.groups.no_variance >= 20, "{:?}", report.groups);
    assert!(report.rollouts.in_no_step >= 160);
    let conclusion = report.conclusion.unwrap();
    assert_eq!(conclusion.updates, 4);
    let told = format!(
        "Training ended after step 4 of 30, because the rewards of {groups} groups in a row did not differ."
    );
    assert!(
        conclusion.summary.starts_with(&told),
        "{}",
        conclusion.summary
    );
}

#[test]
fn an_asynchronous_training_that_ends_early_is_evaluated_and_reported_as_the_store_has_it() {
    let run = flat_after_four_steps(Run::with_gradients("climb"));
    check_early_end(&run);
    // Answers of at most 4 letters of a model that was never trained to end one.
    let conclusion = report(&run).conclusion.unwrap();
    assert_eq!(
        conclusion.cause,
        Some(NoUpdateCause::AnswersCut),
        "{}",
        conclusion.summary
    );
    assert!(conclusion.advice[0].contains("max_response_length"));
    assert!(!conclusion.summary.contains("too hard"));
}

#[test]
fn a_process_that_dies_in_the_last_evaluation_loses_nothing_of_the_end() {
    let run = flat_after_four_steps(Run::new("climb"));
    assert!(matches!(run.model, Model::Unigram(_)));
    run.live(|event| match event {
        TrainEvent::Evaluating { step: 4 } => Fate::Die,
        _ => Fate::GoOn,
    });
    assert_eq!(run.numbers("eval/rollouts").len(), 1);
    assert!(report(&run).end.is_none(), "nobody recorded one");
    let end = run.live_to_the_end().end();
    assert!(
        matches!(end.cause(), EndCause::NoVariance { .. }),
        "{end:?}"
    );
    assert_eq!(run.numbers("eval/rollouts").len(), 2);
    assert_report_of_store(&run, &report(&run));
}

#[test]
fn a_run_that_is_stopped_in_its_last_evaluation_is_stopped_and_comes_to_its_end_again() {
    let run = flat_after_four_steps(Run::new("climb"));
    let ended = run.live(|event| match event {
        TrainEvent::Evaluating { step: 4 } => Fate::Drain,
        _ => Fate::GoOn,
    });
    let end = ended.end();
    assert_eq!(
        (end.cause(), end.evaluation()),
        (&EndCause::Stopped, FinalEvaluation::Missing)
    );
    let told = report(&run).end.unwrap();
    assert!(told.summary.contains("not evaluated"), "{}", told.summary);
    let end = run.live_to_the_end().end();
    assert_eq!(end.evaluation(), FinalEvaluation::Done);
    assert_report_of_store(&run, &report(&run));
}

#[test]
fn a_last_evaluation_has_rollouts_that_no_other_evaluation_has() {
    use osmosis_train::schedule::EvaluationSchedule;

    let run = Run::new("climb");
    let schedule = EvaluationSchedule::new(&run.plan.checkpoints, 9);
    let mut seen = BTreeSet::new();
    for step in 0..=9 {
        for rollout in schedule.rollouts_at_end(step, &[4, 5]) {
            assert!(
                seen.insert((rollout.row_index, rollout.run_index)),
                "{rollout:?} twice, at step {step}"
            );
        }
    }
}

#[test]
fn reports_of_all_other_ends_are_those_of_the_store_too() {
    let complete = Run::new("climb");
    complete.live_to_the_end().complete();
    let told = report(&complete);
    assert_report_of_store(&complete, &told);
    assert_eq!(told.rollouts.in_no_step, 0);
    assert_eq!(told.end.unwrap().cause, EndCauseWord::Complete);

    for max_staleness in [0, 1] {
        let killed = Run::new("climb").training(|training| {
            training.max_staleness = max_staleness;
            training.rollout_batch_size = 2;
            training.flat_groups = FlatGroups::Replace;
        });
        let mut finished = 0;
        killed.live(|event| {
            if let TrainEvent::Rollout(osmosis_engine::RunEvent::Finished { .. }) = event {
                finished += 1;
            }
            if finished == 45 {
                Fate::Die
            } else {
                Fate::GoOn
            }
        });
        assert_report_of_store(&killed, &report(&killed));
        killed.live_to_the_end().complete();
        assert_report_of_store(&killed, &report(&killed));

        let failed = Run::new(&format!("fail until there is {}/x", killed.folder))
            .training(|training| training.max_staleness = max_staleness);
        let end = failed.live_to_the_end().end();
        assert!(
            matches!(end.cause(), EndCause::FailedAlike { .. }),
            "{end:?}"
        );
        let told = report(&failed);
        assert_eq!(told.rollouts.training.ran, told.rollouts.training.failed);
        assert_eq!(told.end.unwrap().cause, EndCauseWord::FailedAlike);
    }
}
