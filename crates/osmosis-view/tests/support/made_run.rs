//! Runs that are written through the store, as an engine would.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use camino::Utf8Path;
use osmosis_core::generation::LogprobsOf;
use osmosis_core::{
    Durations, ErrorCategory, Failure, JsonText, Outcome, Phase, PolicyVersion, Reward, RolloutId,
    RunName, Sample, SampleId,
};
use osmosis_store::{
    CallPurpose, CallSummary, Claim, Completion, JudgeSummary, NewCall, NewRollout, NewRow,
    RunKind, RunRecord, RunStatus, StepRecord, Store,
};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_tokens::{Origin, TokenRecord};
use serde_json::{Value, json};

const BEGAN: i64 = 1_780_000_000_000;

pub(crate) struct MadeRun {
    store: Arc<dyn Store>,
    training: bool,
}

/// What happens in a rollout.
pub(crate) struct Story {
    pub(crate) outcome: Outcome,
    /// Question and answer of each call.
    pub(crate) turns: Vec<(String, Value)>,
    pub(crate) version: u64,
    /// Sampled ids of each call; none without.
    pub(crate) tokens: usize,
    pub(crate) extra: Option<Value>,
}

fn scored(reward: f64) -> Outcome {
    Outcome::Scored {
        reward: Reward::new(reward).unwrap(),
        passed: reward >= 1.0,
    }
}

fn failure(kind: &str, message: &str) -> Failure {
    Failure {
        category: ErrorCategory::AgentError,
        kind: kind.to_owned(),
        message: message.to_owned(),
        traceback: Some(format!(
            "Traceback (most recent call last):\n  File \"main.py\", line 12, in run\n{kind}: {message}"
        )),
    }
}

impl Story {
    pub(crate) fn plain(reward: f64) -> Self {
        Self {
            outcome: scored(reward),
            turns: vec![(
                "What is 6 times 7?".to_owned(),
                json!({"role": "assistant", "content": if reward > 0.5 { "It is 42." } else { "It is 41, I think." }}),
            )],
            version: 0,
            tokens: 6,
            extra: Some(json!({"explanation": "compared with the label"})),
        }
    }

    fn ended(outcome: Outcome) -> Self {
        Self {
            outcome,
            ..Self::plain(0.0)
        }
    }
}

impl MadeRun {
    pub(crate) async fn begin(workspace: &Utf8Path, kind: RunKind, name: &str) -> Self {
        let training = kind == RunKind::Training;
        let folder = workspace
            .join(".osmosis")
            .join(if training { "training" } else { "evals" })
            .join(name);
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&folder, SqliteOptions::default()).unwrap());
        let section = if training {
            "[training]\nn_samples_per_prompt = 4\nrollout_batch_size = 2\nsteps = 100\nseed = 1\neval_fraction = 0.25\n"
        } else {
            "[evaluation]\nn = 4\n"
        };
        let config = format!(
            "[experiment]\nrollout = \"demo\"\nentrypoint = \"main.py\"\nmodel_path = \"builtin/tiny\"\ndataset = \"rows\"\n\n{section}"
        );
        let pinned = json!({
            "experiment.rollout": "demo", "experiment.model_path": "builtin/tiny",
            "experiment.dataset": "rows", "evaluation.n": 4, "training.seed": 1,
            "remembered.config": "configs/eval/demo.toml", "remembered.dataset_rows": 12,
        });
        let record = RunRecord {
            name: RunName::new(name).unwrap(),
            kind,
            status: RunStatus::Running,
            created_at_ms: osmosis_core::clock::now_ms(),
            finished_at_ms: None,
            config_toml: config,
            pinned: JsonText::of(&pinned).unwrap(),
        };
        store.create_run(record).await.unwrap();
        Self { store, training }
    }

    pub(crate) async fn end(self) {
        self.store.set_status(RunStatus::Finished).await.unwrap();
        self.store.close().await.unwrap();
    }

    pub(crate) async fn plan(&self, rows: u64, runs: u32) {
        let all: Vec<u64> = (0..rows).collect();
        for some in all.chunks(1000) {
            let new = some.iter().map(|row| row_of(*row)).collect();
            let rollouts = some
                .iter()
                .flat_map(|row| (0..runs).map(|run| planned(*row, run)))
                .collect();
            self.store.enqueue(new, rollouts).await.unwrap();
        }
    }

    /// Takes the next rollout of the queue to its end.
    pub(crate) async fn next(&self, story: &Story) {
        let lease = Duration::from_mins(10);
        for claim in self.store.claim("made", 1, lease).await.unwrap() {
            self.live(&claim, story).await;
        }
    }

    async fn live(&self, claim: &Claim, story: &Story) {
        let began = BEGAN + i64::try_from(claim.row_index).unwrap() * 1000;
        let mut messages = vec![json!({"role": "system", "content": "You are careful."})];
        let mut made: Option<TokenRecord> = None;
        for (at, (question, answer)) in story.turns.iter().enumerate() {
            messages.push(json!({"role": "user", "content": question}));
            let request = json!({"model": "m", "messages": messages, "tools": [{"type": "function",
                "function": {"name": "multiply", "description": "Multiplies.", "parameters": {"type": "object"}}}]});
            let reply = json!({"id": format!("c{at}"), "choices": [{"index": 0, "message": answer,
                "finish_reason": "stop"}]});
            let record = tokens(made.as_ref(), at, story, claim.run_index);
            let queued = began + i64::try_from(at).unwrap() * 300;
            let call = NewCall {
                rollout_id: claim.id.clone(),
                attempt: claim.attempt,
                sample_id: SampleId::main(),
                purpose: CallPurpose::Policy,
                dialect: "chat_completions".to_owned(),
                model: "openai/osmosis-rollout".to_owned(),
                upstream: "builtin/tiny".to_owned(),
                policy_version: PolicyVersion(story.version),
                streamed: false,
                status: 200,
                error: None,
                prompt_tokens: Some(40),
                completion_tokens: Some(story.tokens as u64),
                cached_tokens: None,
                reasoning_tokens: None,
                queued_at_ms: queued,
                sent_at_ms: Some(queued + 1),
                first_byte_at_ms: Some(queued + 20),
                done_at_ms: queued + 200,
                request: Bytes::from(request.to_string()),
                response: Bytes::from(reply.to_string()).into(),
                tokens: record
                    .iter()
                    .map(|record| Bytes::from(record.encode()))
                    .collect(),
            };
            self.store.record_call(call).await.unwrap();
            messages.push(answer.clone());
            made = record.or(made);
        }
        let calls = story.turns.len() as u64;
        let reward = story.outcome.reward();
        let samples = vec![Sample {
            id: SampleId::main(),
            messages: JsonText::parse("[]").unwrap(),
            reward,
            remove_sample: false,
            metrics: None,
            extra_fields: story
                .extra
                .as_ref()
                .map(|extra| JsonText::of(extra).unwrap()),
        }];
        let completion = Completion {
            id: claim.id.clone(),
            attempt: claim.attempt,
            outcome: story.outcome.clone(),
            samples,
            metrics: None,
            durations: Durations {
                queue: 12.0,
                agent: 300.0 * calls as f64 + (claim.row_index * 37 % 400) as f64,
                model: 200.0 * calls as f64,
                grade: 8.0,
            },
            calls: CallSummary {
                model_calls: calls,
                prompt_tokens: 40 * calls,
                completion_tokens: story.tokens as u64 * calls,
                cached_tokens: None,
                reasoning_tokens: None,
                judge: JudgeSummary::default(),
            },
            started_at_ms: began,
            finished_at_ms: began + 300 * i64::try_from(calls).unwrap() + 10,
        };
        self.store.complete(completion).await.unwrap();
    }

    pub(crate) async fn every_outcome(&self) {
        self.plan(10, 4).await;
        let rejected = Outcome::Rejected {
            reason: "the workflow returned None".to_owned(),
        };
        let late = Outcome::TimedOut {
            phase: Phase::Agent,
            limit_ms: 450_000,
        };
        let stories = [
            Story::plain(1.0),
            Story::plain(0.0),
            Story::plain(0.5),
            Story::ended(Outcome::AgentFailed {
                failure: failure("ValueError", "row 17 has no unit"),
            }),
            Story::ended(late),
            Story::ended(Outcome::Ungraded {
                failure: failure("TypeError", "reward is None"),
            }),
            Story::ended(rejected),
            Story::ended(Outcome::InfrastructureFailed {
                failure: failure("upstream", "502 from the model server"),
            }),
            Story::ended(Outcome::Cancelled),
            Story::plain(1.0),
            Story::tool_user(),
        ];
        // Two stay without a result.
        for at in 0..38 {
            self.next(&stories[at % stories.len()]).await;
        }
    }

    pub(crate) async fn large(&self, count: u64) {
        let runs = 4.min(count as u32);
        self.plan(count.div_ceil(u64::from(runs)), runs).await;
        let lease = Duration::from_mins(100);
        loop {
            let claims = self.store.claim("made", 256, lease).await.unwrap();
            if claims.is_empty() {
                break;
            }
            let each = claims.iter().map(|claim| async move {
                let at = claim.row_index * 4 + u64::from(claim.run_index);
                let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                let story = match mixed % 40 {
                    0 => Story::ended(Outcome::AgentFailed {
                        failure: failure(
                            "ValueError",
                            &format!("row {} has no unit", claim.row_index),
                        ),
                    }),
                    1 => Story::ended(Outcome::TimedOut {
                        phase: Phase::Agent,
                        limit_ms: 450_000,
                    }),
                    other => Story::plain((other % 5) as f64 / 4.0),
                };
                self.live(claim, &story).await;
            });
            futures_util::future::join_all(each).await;
        }
    }

    /// One rollout of many turns, each with so many sampled tokens.
    pub(crate) async fn long(&self, turns: usize, tokens: usize) {
        self.plan(1, 2).await;
        let word = "the product of these numbers is found step by step, ";
        for reward in [1.0, 0.0] {
            let said = (0..turns).map(|turn| {
                let answer = format!("Turn {turn}: {}", word.repeat(tokens / 10));
                (
                    format!("Go on, {turn}."),
                    json!({"role": "assistant", "content": answer}),
                )
            });
            let story = Story {
                turns: said.collect(),
                tokens,
                ..Story::plain(reward)
            };
            self.next(&story).await;
        }
    }

    /// Everything that must be shown as the text it is.
    pub(crate) async fn hostile(&self) {
        self.plan(5, 1).await;
        let said = |text: String| Story {
            turns: vec![(text.clone(), json!({"role": "assistant", "content": text}))],
            ..Story::plain(1.0)
        };
        self.next(&said(
            "<script>window.pwned = 1</script><img src=x onerror=\"window.pwned = 1\"><b>bold</b>"
                .to_owned(),
        ))
        .await;
        self.next(&said(
            "safe\u{202e}txt.exe\u{202c} and \u{2066}more\u{2069} \u{0}\u{1b}[31mred".to_owned(),
        ))
        .await;
        self.next(&said("word ".repeat(2 * 1024 * 1024))).await;
        self.next(&said(
            "[link](javascript:window.pwned=1) javascript:alert(1) ${7*7} {{7*7}}".to_owned(),
        ))
        .await;
        // Bytes that are no text.
        let lease = Duration::from_mins(10);
        for claim in self.store.claim("made", 1, lease).await.unwrap() {
            self.live(&claim, &Story::plain(1.0)).await;
        }
        self.store
            .record_call(NewCall {
                response: Bytes::from_static(b"{\"choices\": [{\"message\": {\"role\": \"assistant\", \"content\": \"bad \xff\xfe bytes\"}}]}").into(),
                ..bare_call(&RolloutId::of(4, 0))
            })
            .await
            .unwrap();
    }

    /// A step of training on two rows, and every fourth an evaluation of held-out rows.
    pub(crate) async fn step(&self, step: u64) {
        assert!(self.training);
        let rows = [step * 2 % 8, (step * 2 + 1) % 8];
        let visit = u32::try_from(step * 2 / 8).unwrap();
        let planned_rollouts = rows
            .iter()
            .flat_map(|row| (0..4).map(move |run| planned(*row, visit * 4 + run)))
            .collect();
        let new = rows.iter().map(|row| row_of(*row)).collect();
        self.store.enqueue(new, planned_rollouts).await.unwrap();
        for at in 0..8_u64 {
            let good = (at * 7 + step * 3) % 12 < step.min(11);
            let story = Story {
                version: step - 1,
                ..Story::plain(f64::from(u8::from(good)))
            };
            self.next(&story).await;
        }
        let x = step as f64;
        let reward = 1.0 - (-x / 6.0).exp();
        let mut metrics = json!({
            "step": step, "version": step, "epoch": 0, "reward/mean": reward, "reward/std": 0.3,
            "pass_rate": reward * 0.9, "groups/used": 2, "groups/no_variance": 0, "groups/incomplete": 0,
            "rollouts/scored": 8, "tokens/sampled": 480, "tokens/trained": 400, "entropy": 1.4 / x,
            "kl": 0.001 * x, "clip_fraction": 0.02, "loss": -0.1 / x, "gradient_norm": 1.0 / x,
            "logprob_mismatch/mean": 1e-6, "logprob_mismatch/max": 4e-6, "lr": 3e-4,
            "time/rollout": 1.2, "time/grade": 0.1, "time/update": 0.4, "time/swap": 0.01, "time/step": 1.7,
        });
        if step.is_multiple_of(4) || step == 1 {
            for (prefix, value) in [("eval/", reward), ("eval/greedy_", reward * 0.95)] {
                for count in ["rollouts", "ran", "scored"] {
                    metrics[format!("{prefix}{count}")] = json!(40);
                }
                metrics[format!("{prefix}reward_mean")] = json!(value);
                metrics[format!("{prefix}reward_ci95")] = json!([value - 0.08, value + 0.08]);
                metrics[format!("{prefix}pass_rate")] = json!(value);
            }
        }
        let record = StepRecord {
            step,
            version: PolicyVersion(step),
            metrics: JsonText::of(&metrics).unwrap(),
            finished_at_ms: BEGAN + i64::try_from(step).unwrap() * 1000,
        };
        self.store.record_step(record).await.unwrap();
    }
}

impl Story {
    fn tool_user() -> Self {
        let call = json!({"role": "assistant", "content": null, "reasoning_content": "I need a product.",
            "tool_calls": [{"id": "t1", "type": "function",
                "function": {"name": "multiply", "arguments": "{\"a\": 6, \"b\": 7}"}}]});
        Self {
            turns: vec![
                (
                    "Multiply 6 and 7 with the tool; the key is hunter2-hunter2.".to_owned(),
                    call,
                ),
                (
                    "The tool said 42.".to_owned(),
                    json!({"role": "assistant", "content": "42"}),
                ),
            ],
            ..Self::plain(1.0)
        }
    }
}

fn planned(row_index: u64, run_index: u32) -> NewRollout {
    NewRollout {
        id: RolloutId::of(row_index, run_index),
        row_index,
        run_index,
    }
}

fn row_of(row_index: u64) -> NewRow {
    let body = json!({"user_prompt": format!("What is {row_index} times 7?"), "ground_truth": (row_index * 7).to_string()});
    NewRow {
        row_index,
        line: row_index + 1,
        body: JsonText::of(&body).unwrap(),
    }
}

/// The tokens of a call that continues the one before. Attempts at a row part at their first sampled token.
fn tokens(before: Option<&TokenRecord>, at: usize, story: &Story, run: u32) -> Option<TokenRecord> {
    if story.tokens == 0 {
        return None;
    }
    let call = u32::try_from(at).unwrap();
    let kept: u32 = match before {
        Some(_) => call * u32::try_from(5 + story.tokens).unwrap(),
        None => 0,
    };
    let spread = |i: usize| (i as u32 * 7 + call * 13 + run * 3) % 200;
    Some(TokenRecord {
        call,
        origin: match before {
            Some(before) => Origin::Continues {
                call: before.call,
                kept,
            },
            None => Origin::Root { reason: None },
        },
        prompt_suffix: vec![1, 20, 21, 22, 2],
        sampled: (0..story.tokens).map(|i| 10 + spread(i)).collect(),
        logprobs: (0..story.tokens)
            .map(|i| -(f64::from(spread(i)) / 40.0) as f32)
            .collect(),
        logprobs_of: LogprobsOf::Tempered,
        versions: vec![PolicyVersion(story.version); story.tokens],
        temperature: 1.0,
        complete: true,
        one_of_several: false,
        replaces: vec![],
        constraint: None,
    })
}

fn bare_call(rollout: &RolloutId) -> NewCall {
    NewCall {
        rollout_id: rollout.clone(),
        attempt: osmosis_core::Attempt(1),
        sample_id: SampleId::main(),
        purpose: CallPurpose::Policy,
        dialect: "chat_completions".to_owned(),
        model: "m".to_owned(),
        upstream: "u".to_owned(),
        policy_version: PolicyVersion(0),
        streamed: false,
        status: 200,
        error: None,
        prompt_tokens: None,
        completion_tokens: None,
        cached_tokens: None,
        reasoning_tokens: None,
        queued_at_ms: BEGAN,
        sent_at_ms: None,
        first_byte_at_ms: None,
        done_at_ms: BEGAN + 5,
        request: Bytes::from_static(
            b"{\"messages\": [{\"role\": \"user\", \"content\": \"bytes\"}]}",
        ),
        response: Bytes::new().into(),
        tokens: vec![],
    }
}
