use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::{
    Attempt, Durations, ErrorCategory, Failure, JsonText, Outcome, Reward, RolloutId, Sample,
    SampleId,
};
use osmosis_store::{
    CallPurpose, CallSummary, Completion, NewCall, NewRollout, NewRow, Queue as _, Records as _,
    RunKind, RunRecord, RunStatus,
};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use serde_json::json;

use super::*;
use crate::reports::RolloutGrid;

/// A run with `n` rollouts for each of its rows.
struct Run {
    _keep: tempfile::TempDir,
    store: SqliteStore,
}

impl Run {
    /// What becomes of each rollout; `None` leaves it in the queue.
    async fn new(n: u32, rollouts: Vec<Option<Outcome>>) -> Self {
        let keep = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(keep.path().join("t")).unwrap();
        let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
        let rows = rollouts.len() as u64 / u64::from(n);
        let new_rows = (0..rows).map(|row_index| NewRow {
            row_index,
            line: row_index + 1,
            body: JsonText::of(&json!({
                "user_prompt": format!("what  is\n{row_index}?"), "ground_truth": row_index.to_string(),
            }))
            .unwrap(),
        });
        let new_rollouts = (0..rows).flat_map(|row_index| {
            (0..n).map(move |run_index| NewRollout {
                id: RolloutId::of(row_index, run_index),
                row_index,
                run_index,
            })
        });
        store
            .enqueue(new_rows.collect(), new_rollouts.collect())
            .await
            .unwrap();
        let count = rollouts.len();
        let claims = store
            .claim("t", count, Duration::from_mins(1))
            .await
            .unwrap();
        for (claim, outcome) in claims.into_iter().zip(rollouts) {
            let Some(outcome) = outcome else { continue };
            let row = claim.row_index;
            let said = json!([
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": format!("Réponse \"{row}\"")},
            ]);
            let samples = vec![Sample {
                id: SampleId::new("main").unwrap(),
                messages: JsonText::of(&said).unwrap(),
                reward: outcome.reward(),
                remove_sample: false,
                metrics: None,
                extra_fields: None,
            }];
            let is_scored = outcome.reward().is_some();
            store
                .complete(Completion {
                    id: claim.id,
                    attempt: claim.attempt,
                    outcome,
                    samples: if is_scored { samples } else { vec![] },
                    metrics: None,
                    durations: Durations {
                        agent: 100.0 - row as f64,
                        ..Durations::default()
                    },
                    calls: CallSummary {
                        model_calls: 1,
                        completion_tokens: row * row,
                        ..CallSummary::default()
                    },
                    started_at_ms: 0,
                    finished_at_ms: 1,
                })
                .await
                .unwrap();
        }
        Self { _keep: keep, store }
    }

    /// A call of the first rollout of a row, recorded with this system prompt and reply.
    async fn call(&self, row: u64, system: &str, response: String) {
        let tools = json!([{"type": "function", "function": {"name": "look_up"}}]);
        let messages = json!([
            {"role": "system", "content": system}, {"role": "user", "content": "q"},
        ]);
        let request = json!({"messages": messages, "tools": tools}).to_string();
        let call = NewCall {
            rollout_id: RolloutId::of(row, 0),
            attempt: Attempt(1),
            sample_id: SampleId::new("main").unwrap(),
            purpose: CallPurpose::Policy,
            dialect: "chat_completions".to_owned(),
            model: "m".to_owned(),
            upstream: "u".to_owned(),
            policy_version: osmosis_core::PolicyVersion(0),
            streamed: response.starts_with("data:"),
            status: 200,
            error: None,
            prompt_tokens: None,
            completion_tokens: None,
            cached_tokens: None,
            reasoning_tokens: None,
            queued_at_ms: 0,
            sent_at_ms: None,
            first_byte_at_ms: None,
            done_at_ms: 1,
            request: request.into(),
            response: std::iter::once(response.into()).collect(),
            tokens: vec![],
        };
        self.store.record_call_durably(call).await.unwrap();
    }

    /// The page as text: `ROW.RUN …, of TOTAL`.
    async fn page(&self, search: &RolloutSearch) -> String {
        let found = search.run(&self.store).await.unwrap();
        format!("{} of {}", places(&found), found.total_count)
    }

    /// Every page of two, one after the other.
    async fn pages_of_two(&self, search: RolloutSearch) -> String {
        let mut search = RolloutSearch { limit: 2, ..search };
        let mut pages = vec![];
        loop {
            let found = search.run(&self.store).await.unwrap();
            pages.push(places(&found));
            let Some(next) = found.next else {
                return pages.join(" | ");
            };
            // As a program would hand it back.
            search.after = Some(next.to_string().parse().unwrap());
        }
    }
}

fn places(found: &FoundRollouts) -> String {
    let place = |item: &ListedRollout| {
        let result = &item.line.result;
        format!("{}.{}", result.row_index, result.run_index)
    };
    found.items.iter().map(place).collect::<Vec<_>>().join(" ")
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "rollouts without a result are None"
)]
fn scored(reward: f64) -> Option<Outcome> {
    Some(Outcome::Scored {
        reward: Reward::new(reward).unwrap(),
        passed: reward >= 1.0,
    })
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "rollouts without a result are None"
)]
fn raised(message: &str) -> Option<Outcome> {
    let failure = Failure::new(ErrorCategory::AgentError, "ValueError", message.to_owned());
    Some(Outcome::AgentFailed { failure })
}

/// Rows 0 to 5 with one rollout each.
async fn one_each() -> Run {
    let rejected = Outcome::Rejected {
        reason: "no tokens".to_owned(),
    };
    let rollouts = vec![
        scored(1.0),
        scored(0.25),
        raised("no such Table"),
        scored(-1.0),
        Some(rejected),
        None,
    ];
    Run::new(1, rollouts).await
}

#[tokio::test]
async fn conditions_leave_the_rollouts_that_meet_all_of_them() {
    let run = one_each().await;
    let check = async |search: RolloutSearch, expected: &str| {
        assert_eq!(run.page(&search).await, expected, "{search:?}");
    };
    let all = RolloutSearch::default;
    check(all(), "0.0 1.0 2.0 3.0 4.0 5.0 of 6").await;
    let failed = RolloutSearch {
        failed: true,
        ..all()
    };
    check(failed.clone(), "1.0 2.0 3.0 4.0 of 4").await;
    let outcomes = vec![OutcomeKind::AgentFailed, OutcomeKind::Rejected];
    let kinds = RolloutSearch { outcomes, ..all() };
    check(kinds, "2.0 4.0 of 2").await;
    let scored = RolloutSearch {
        outcomes: vec![OutcomeKind::Scored],
        ..failed
    };
    check(scored, "1.0 3.0 of 2").await;
    let below = RolloutSearch {
        reward_below: Some(0.25),
        ..all()
    };
    check(below, "3.0 of 1").await;
    let between = RolloutSearch {
        reward_min: Some(0.25),
        reward_max: Some(1.0),
        ..all()
    };
    check(between, "0.0 1.0 of 2").await;
    let row = RolloutSearch {
        row_index: Some(4),
        ..all()
    };
    check(row, "4.0 of 1").await;
}

#[tokio::test]
async fn a_text_is_found_in_messages_and_errors_whatever_its_case() {
    let run = one_each().await;
    for (text, expected) in [
        ("RÉPONSE", "0.0 1.0 3.0 of 3"),
        ("\"3\"", "3.0 of 1"),
        ("no such table", "2.0 of 1"),
        ("tokens", "4.0 of 1"),
        // Names of fields are no text.
        ("content", " of 0"),
    ] {
        let search = RolloutSearch {
            text: Some(text.to_owned()),
            ..RolloutSearch::default()
        };
        assert_eq!(run.page(&search).await, expected, "{text}");
    }
}

#[tokio::test]
async fn a_text_is_found_in_system_prompts_and_in_calls_that_no_message_repeats() {
    let run = one_each().await;
    let said = |content: &str| json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]});
    let streamed = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"in two \"}}]}\n\n\
                    data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Pieces\"}}]}\n\ndata: [DONE]\n\n";
    run.call(
        0,
        "You are a Pirate / \"captain\".",
        said("aye").to_string(),
    )
    .await;
    run.call(1, "Be brief.", streamed.to_owned()).await;
    for (text, expected) in [
        ("pirate", "0.0 of 1"),
        ("a pirate / \"capt", "0.0 of 1"),
        ("aye", "0.0 of 1"),
        ("two pieces", "1.0 of 1"),
        ("BRIEF", "1.0 of 1"),
        ("no such table", "2.0 of 1"),
        // Offered tools and names of fields are not what was said.
        ("look_up", " of 0"),
        ("choices", " of 0"),
    ] {
        let search = RolloutSearch {
            text: Some(text.to_owned()),
            ..RolloutSearch::default()
        };
        assert_eq!(run.page(&search).await, expected, "{text}");
    }

    // A run that only grades has its calls in another.
    let grades = one_each().await;
    let search = RolloutSearch {
        text: Some("pirate".to_owned()),
        ..RolloutSearch::default()
    };
    assert_eq!(grades.page(&search).await, " of 0");
    let searched = SearchedRun {
        store: &grades.store,
        calls: &run.store,
        progress: &|_| {},
    };
    let found = search.run_in(searched).await.unwrap();
    assert_eq!(places(&found), "0.0");
}

#[tokio::test]
async fn pages_continue_in_every_order_and_what_lacks_the_number_is_last() {
    let run = one_each().await;
    for (sort, reverse, expected) in [
        (RolloutSort::Row, false, "0.0 1.0 | 2.0 3.0 | 4.0 5.0"),
        (RolloutSort::Row, true, "5.0 4.0 | 3.0 2.0 | 1.0 0.0"),
        (RolloutSort::Reward, false, "3.0 1.0 | 0.0 2.0 | 4.0 5.0"),
        (RolloutSort::Reward, true, "0.0 1.0 | 3.0 2.0 | 4.0 5.0"),
        (RolloutSort::Length, false, "4.0 3.0 | 2.0 1.0 | 0.0 5.0"),
        (RolloutSort::Time, false, "0.0 1.0 | 2.0 3.0 | 4.0 5.0"),
        (RolloutSort::Time, true, "4.0 3.0 | 2.0 1.0 | 0.0 5.0"),
    ] {
        let search = RolloutSearch {
            sort,
            reverse,
            ..RolloutSearch::default()
        };
        assert_eq!(run.pages_of_two(search).await, expected, "{sort:?}");
    }
    let failed = RolloutSearch {
        failed: true,
        ..RolloutSearch::default()
    };
    assert_eq!(run.pages_of_two(failed).await, "1.0 2.0 | 3.0 4.0");
}

#[tokio::test]
async fn rows_whose_rewards_differ_most_come_first() {
    let rollouts = vec![
        scored(0.0),
        scored(0.0),
        scored(0.0),
        scored(1.0),
        scored(0.5),
        raised("x"),
        scored(0.5),
        scored(1.0),
    ];
    let run = Run::new(2, rollouts).await;
    let search = RolloutSearch {
        sort: RolloutSort::Variance,
        ..RolloutSearch::default()
    };
    let expected = "1.0 1.1 3.0 3.1 0.0 0.1 2.0 2.1 of 8";
    assert_eq!(run.page(&search).await, expected);
    let found = search.run(&run.store).await.unwrap();
    let variances: Vec<_> = found.items.iter().map(|item| item.row_variance).collect();
    assert_eq!(variances[0], Some(0.25));
    assert_eq!(variances[4], Some(0.0));
    assert_eq!(variances[7], None);
    assert_eq!(
        run.pages_of_two(search).await,
        "1.0 1.1 | 3.0 3.1 | 0.0 0.1 | 2.0 2.1"
    );
}

#[tokio::test]
async fn a_listed_rollout_has_the_beginning_of_its_prompt_and_answer() {
    let run = one_each().await;
    let found = RolloutSearch::default().run(&run.store).await.unwrap();
    let item = &found.items[1];
    assert_eq!(item.prompt.as_deref(), Some("what is 1?"));
    assert_eq!(item.answer.as_deref(), Some("Réponse \"1\""));
    assert_eq!(item.ground_truth.as_deref(), Some("1"));
    assert_eq!(found.items[2].answer, None);
}

#[tokio::test]
async fn a_cursor_of_another_order_is_refused() {
    let run = one_each().await;
    let search = RolloutSearch {
        sort: RolloutSort::Reward,
        after: Some("row:-:1.0".parse().unwrap()),
        ..RolloutSearch::default()
    };
    let error = search.run(&run.store).await.unwrap_err();
    assert_eq!(
        error.message(),
        "`row:-:1.0` continues a list in another order"
    );
    for text in ["", "row", "row:-", "row:-:1", "size:1:1.0", "row:x:1.0"] {
        text.parse::<Cursor>().unwrap_err();
    }
}

#[tokio::test]
async fn a_grid_lists_the_same_rollouts_in_the_same_order_as_the_store() {
    let rollouts = vec![
        scored(1.0),
        scored(0.0),
        raised("x"),
        scored(0.5),
        None,
        scored(0.5),
        scored(0.5),
        scored(0.5),
    ];
    let run = Run::new(2, rollouts).await;
    let record = RunRecord {
        name: osmosis_core::RunName::new("t").unwrap(),
        kind: RunKind::Evaluation,
        status: RunStatus::Running,
        created_at_ms: 0,
        finished_at_ms: None,
        config_toml: String::new(),
        pinned: JsonText::of(&json!({})).unwrap(),
    };
    let grid = RolloutGrid::of(&run.store, &record).await.unwrap();
    let conditions = [
        RolloutSearch::default(),
        RolloutSearch {
            failed: true,
            ..RolloutSearch::default()
        },
        RolloutSearch {
            any_of: vec![
                StateFilter::Passed,
                StateFilter::State(RolloutState::Running),
            ],
            ..RolloutSearch::default()
        },
        RolloutSearch {
            reward_above: Some(0.0),
            row_index: Some(3),
            ..RolloutSearch::default()
        },
    ];
    for condition in conditions {
        for sort in RolloutSort::ALL {
            for reverse in [false, true] {
                let mut search = RolloutSearch {
                    sort,
                    reverse,
                    limit: 3,
                    ..condition.clone()
                };
                loop {
                    let stored = search.run(&run.store).await.unwrap();
                    let found = search.in_grid(&grid, None).unwrap();
                    let listed = found.listed(&run.store, &grid).await.unwrap();
                    assert_eq!(listed, stored.items, "{search:?}");
                    assert_eq!(found.total_count, stored.total_count, "{search:?}");
                    assert_eq!(found.next.is_some(), stored.next.is_some(), "{search:?}");
                    let Some(next) = found.next else { break };
                    search.after = Some(next);
                }
            }
        }
    }
}
