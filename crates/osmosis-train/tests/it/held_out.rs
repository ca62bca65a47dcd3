//! Evaluations on held-out rows: sampled and greedy beside each other, and what is told of them.

use osmosis_core::{JsonText, RolloutId};
use osmosis_store::{KeyFolder, RolloutQuery};
use osmosis_store_sqlite::SqliteStore;
use osmosis_tokens::TokenRecord;
use osmosis_train::TrainEvent;
use serde_json::json;

use crate::run::{Fate, Run, row};

/// What the policy was asked with: id, dataset row and temperature of every call that was recorded.
fn temperatures(run: &Run) -> Vec<(RolloutId, u64, f32)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let store = SqliteStore::open_read_only(&run.folder, &KeyFolder::none()).unwrap();
    runtime.block_on(async {
        let mut found = Vec::new();
        let query = RolloutQuery::default();
        for rollout in store.rollouts(query).await.unwrap().items {
            for (_, bytes) in store.token_records(&rollout.id).await.unwrap() {
                let record = TokenRecord::decode(&bytes).unwrap();
                found.push((rollout.id.clone(), rollout.row_index, record.temperature));
            }
        }
        found
    })
}

fn check_both_decodings(run: &Run) {
    run.live_to_the_end().complete();
    for prefix in ["eval/", "eval/greedy_"] {
        let rollouts = run.numbers(&format!("{prefix}rollouts"));
        assert_eq!(rollouts, [(0, 2.0), (2, 2.0), (4, 2.0)], "{prefix}");
        assert_eq!(run.numbers(&format!("{prefix}scored")), rollouts);
        assert_eq!(run.numbers(&format!("{prefix}reward_mean")).len(), 3);
        assert_eq!(run.numbers(&format!("{prefix}pass_rate")).len(), 3);
    }
    let asked = temperatures(run);
    for (id, row, temperature) in &asked {
        let greedy = id.is_greedy();
        assert!(!greedy || *row >= 4, "{id} is of a row that is trained on");
        let expected = if greedy { 0.0 } else { 1.0 };
        assert!((temperature - expected).abs() < 1e-9, "{id}: {temperature}");
    }
    let greedy = asked.iter().filter(|(id, _, _)| id.is_greedy());
    assert_eq!(greedy.count(), 6, "two rows, three evaluations");
    let trained: Vec<String> = run
        .batches()
        .concat()
        .into_iter()
        .flat_map(|group| group.1)
        .collect();
    assert!(
        trained.iter().all(|id| !id.contains("greedy")),
        "{trained:?}"
    );
}

#[test]
fn every_evaluation_is_sampled_and_greedy() {
    check_both_decodings(&Run::new("climb"));
}

#[test]
fn every_evaluation_is_sampled_and_greedy_while_training_goes_on() {
    check_both_decodings(&Run::new("climb").training(|training| {
        training.max_staleness = 1;
        training.rollout_batch_size = 2;
    }));
}

#[test]
fn a_resumed_run_has_the_greedy_numbers_of_one_that_was_not_interrupted() {
    let whole = Run::new("climb");
    whole.live_to_the_end().complete();
    let run = Run::new("climb");
    let mut finished = 0;
    run.live(|event| match event {
        TrainEvent::Rollout(osmosis_engine::RunEvent::Finished { id, .. }) if id.is_greedy() => {
            finished += 1;
            if finished == 3 { Fate::Die } else { Fate::GoOn }
        }
        _ => Fate::GoOn,
    });
    assert_eq!(finished, 3, "killed in the evaluation after step 2");
    run.live_to_the_end().complete();
    for name in [
        "eval/greedy_reward_mean",
        "eval/greedy_pass_rate",
        "eval/reward_mean",
    ] {
        assert_eq!(run.numbers(name), whole.numbers(name), "{name}");
    }
}

#[test]
fn rows_of_unseen_phrasings_are_told_apart() {
    let mut run = Run::new("climb");
    let body = json!({
        "user_prompt": "bb", "ground_truth": "c", "metadata": {"do": "climb", "unseen_phrasing": true}
    });
    run.plan.held_out[1].body = JsonText::of(&body).unwrap();
    run.live_to_the_end().complete();
    for prefix in ["eval/unseen_phrasings_", "eval/unseen_phrasings_greedy_"] {
        let rollouts = run.numbers(&format!("{prefix}rollouts"));
        assert_eq!(rollouts, [(0, 1.0), (2, 1.0), (4, 1.0)], "{prefix}");
    }
    assert_eq!(
        run.numbers("eval/rollouts")[0],
        (0, 2.0),
        "all held-out rows"
    );
}

#[test]
fn rollouts_that_fail_stay_in_the_denominator() {
    // Every fourth run fails. With three evaluations the greedy ones of the first have number 3.
    let run = Run::new("answer");
    let mut run = run.training(|training| training.steps = Some(4));
    run.plan.held_out = vec![row(4, "aa", "fail every fourth"), row(5, "bb", "answer")];
    run.live_to_the_end().complete();
    let first = &run.metrics()[0];
    assert_eq!(first["eval/failed"], 0);
    assert_eq!(first["eval/greedy_ran"], 2);
    assert_eq!(first["eval/greedy_scored"], 1);
    assert_eq!(first["eval/greedy_failed"], 1);
    let rate = first["eval/greedy_pass_rate"].as_f64().unwrap();
    assert!([0.0, 0.5].contains(&rate), "of the two that ran: {rate}");
}
