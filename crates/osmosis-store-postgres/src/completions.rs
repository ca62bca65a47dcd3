//! Results of rollouts: as many as there are in one statement, each accepted or fenced by itself.

use std::collections::HashSet;

use futures_util::future::BoxFuture;
use osmosis_core::{JsonText, Reward};
use osmosis_store::encoding::{outcome_detail, sample_rewards};
use osmosis_store::{Completion, CompletionReceipt, StoreError};

use crate::error::DbError;
use crate::queue::leased;
use crate::records::to_sql;
use crate::text;
use crate::transaction::{Transaction, Work};

/// Results as columns.
#[derive(Default)]
pub(crate) struct Completions {
    /// For each result that was given, which of the columns' rows it is: the same attempt is asked about once.
    places: Vec<Option<usize>>,
    accepted: Vec<bool>,
    rollout_id: Vec<String>,
    attempt: Vec<i64>,
    outcome: Vec<&'static str>,
    reward: Vec<Option<f64>>,
    passed: Vec<Option<bool>>,
    error: Vec<Option<String>>,
    outcome_detail: Vec<Option<String>>,
    sample_rewards: Vec<String>,
    metrics: Vec<Option<String>>,
    model_calls: Vec<i64>,
    prompt_tokens: Vec<i64>,
    completion_tokens: Vec<i64>,
    cached_tokens: Vec<Option<i64>>,
    reasoning_tokens: Vec<Option<i64>>,
    judge_calls: Vec<i64>,
    judge_prompt_tokens: Vec<i64>,
    judge_completion_tokens: Vec<i64>,
    queue_ms: Vec<f64>,
    agent_ms: Vec<f64>,
    model_ms: Vec<f64>,
    grade_ms: Vec<f64>,
    started_at_ms: Vec<i64>,
    finished_at_ms: Vec<i64>,
    samples: Samples,
}

#[derive(Default)]
struct Samples {
    rollout_id: Vec<String>,
    attempt: Vec<i64>,
    sample_id: Vec<String>,
    position: Vec<i64>,
    reward: Vec<Option<f64>>,
    removed: Vec<bool>,
    metrics: Vec<Option<String>>,
    extra_fields: Vec<Option<String>>,
    messages: Vec<String>,
}

impl Completions {
    pub(crate) fn new(results: &[&Completion]) -> Result<Self, StoreError> {
        let mut columns = Self::default();
        let mut known = HashSet::new();
        for completion in results {
            // Of two results of one attempt the second is too late, whatever becomes of the first; and of two attempts
            // at one rollout at most one has the lease, which the statement finds out.
            if known.insert((&completion.id, completion.attempt)) {
                columns.places.push(Some(columns.rollout_id.len()));
                columns.add(completion)?;
            } else {
                columns.places.push(None);
            }
        }
        columns.accepted = vec![false; columns.rollout_id.len()];
        Ok(columns)
    }

    fn add(&mut self, completion: &Completion) -> Result<(), StoreError> {
        let outcome = &completion.outcome;
        let reward = outcome.reward();
        let calls = &completion.calls;
        let text = |json: &Option<JsonText>| json.as_ref().map(|json| json.as_str().to_owned());
        let mut names = HashSet::new();
        for sample in &completion.samples {
            if !names.insert(&sample.id) {
                return Err(StoreError::refused(format!(
                    "two samples of rollout `{}` are called `{}`",
                    completion.id, sample.id
                )));
            }
        }
        self.rollout_id.push(completion.id.to_string());
        self.attempt.push(i64::from(completion.attempt.0));
        self.outcome.push(outcome.kind().as_str());
        self.reward.push(reward.map(Reward::get));
        self.passed.push(reward.map(|_| outcome.passed()));
        let explanation = outcome.explanation();
        self.error
            .push(explanation.map(|error| text::stored(error.as_ref()).into_owned()));
        self.outcome_detail.push(outcome_detail(outcome)?);
        self.sample_rewards
            .push(sample_rewards(&completion.samples)?);
        self.metrics.push(text(&completion.metrics));
        self.model_calls.push(to_sql(calls.model_calls)?);
        self.prompt_tokens.push(to_sql(calls.prompt_tokens)?);
        self.completion_tokens
            .push(to_sql(calls.completion_tokens)?);
        self.cached_tokens
            .push(calls.cached_tokens.map(to_sql).transpose()?);
        self.reasoning_tokens
            .push(calls.reasoning_tokens.map(to_sql).transpose()?);
        self.judge_calls.push(to_sql(calls.judge.calls)?);
        self.judge_prompt_tokens
            .push(to_sql(calls.judge.prompt_tokens)?);
        self.judge_completion_tokens
            .push(to_sql(calls.judge.completion_tokens)?);
        let durations = &completion.durations;
        self.queue_ms.push(a_number(durations.queue));
        self.agent_ms.push(a_number(durations.agent));
        self.model_ms.push(a_number(durations.model));
        self.grade_ms.push(a_number(durations.grade));
        self.started_at_ms.push(completion.started_at_ms);
        self.finished_at_ms.push(completion.finished_at_ms);
        for (position, sample) in (0_i64..).zip(&completion.samples) {
            let samples = &mut self.samples;
            samples.rollout_id.push(completion.id.to_string());
            samples.attempt.push(i64::from(completion.attempt.0));
            samples.sample_id.push(sample.id.to_string());
            samples.position.push(position);
            samples.reward.push(sample.reward.map(Reward::get));
            samples.removed.push(sample.remove_sample);
            samples.metrics.push(text(&sample.metrics));
            samples.extra_fields.push(text(&sample.extra_fields));
            samples.messages.push(sample.messages.as_str().to_owned());
        }
        Ok(())
    }

    /// What became of each result, in the order they were given.
    pub(crate) fn receipts(&self) -> Vec<CompletionReceipt> {
        self.places
            .iter()
            .map(|place| match place {
                Some(place) if self.accepted[*place] => CompletionReceipt::Accepted,
                Some(_) | None => CompletionReceipt::Fenced,
            })
            .collect()
    }
}

/// A duration that is none must not cost the result.
fn a_number(duration_ms: f64) -> f64 {
    if duration_ms.is_nan() {
        0.0
    } else {
        duration_ms
    }
}

const FINISH: &str = concat!(
    "
    WITH given AS MATERIALIZED (
        SELECT $1::integer AS run_id, columns.* FROM unnest($2::text[], $3::bigint[], $4::text[], $5::double precision[], $6::boolean[], $7::text[],
            $8::text[], $9::text[], $10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
            $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::double precision[],
            $20::double precision[], $21::double precision[], $22::double precision[], $23::bigint[], $24::bigint[])
        AS columns (rollout_id, attempt, outcome, reward, passed, error, outcome_detail, sample_rewards, metrics,
            model_calls, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, judge_calls,
            judge_prompt_tokens, judge_completion_tokens, queue_ms, agent_ms, model_ms, grade_ms, started_at_ms,
            finished_at_ms)
    ), finished AS (
        UPDATE osmosis.rollouts AS rollouts SET state = 'done', owner = NULL, member_id = NULL, lease_until_ms = NULL,
            outcome = given.outcome, reward = given.reward, passed = given.passed, error = given.error,
            outcome_detail = given.outcome_detail, sample_rewards = given.sample_rewards, metrics = given.metrics,
            model_calls = given.model_calls, prompt_tokens = given.prompt_tokens,
            completion_tokens = given.completion_tokens, cached_tokens = given.cached_tokens,
            reasoning_tokens = given.reasoning_tokens, judge_calls = given.judge_calls,
            judge_prompt_tokens = given.judge_prompt_tokens,
            judge_completion_tokens = given.judge_completion_tokens, queue_ms = given.queue_ms,
            agent_ms = given.agent_ms, model_ms = given.model_ms, grade_ms = given.grade_ms,
            started_at_ms = given.started_at_ms, finished_at_ms = given.finished_at_ms, done_by = $34,
            done_xid = pg_current_xact_id()::text::bigint
        FROM given
        WHERE rollouts.run_id = given.run_id AND rollouts.rollout_id = given.rollout_id
            AND rollouts.attempt = given.attempt AND ",
    leased!(),
    "
        RETURNING rollouts.rollout_id, rollouts.attempt
    ), added AS (
        INSERT INTO osmosis.samples
            (run_id, rollout_id, sample_id, position, reward, removed, metrics, extra_fields, messages)
        SELECT $1, rollout_id, sample_id, position, reward, removed, metrics, extra_fields, messages
        FROM unnest($25::text[], $26::bigint[], $27::text[], $28::bigint[], $29::double precision[], $30::boolean[],
            $31::text[], $32::text[], $33::text[])
            AS samples (rollout_id, attempt, sample_id, position, reward, removed, metrics, extra_fields, messages)
            JOIN finished USING (rollout_id, attempt)
        RETURNING 1
    )
    SELECT rollout_id, attempt FROM finished"
);

impl Work for Completions {
    fn run<'a>(
        &'a mut self,
        transaction: &'a Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), DbError>> {
        Box::pin(async move {
            let samples = &self.samples;
            let rows = transaction
                .change(
                    FINISH,
                    &[
                        transaction.run_id(),
                        &self.rollout_id,
                        &self.attempt,
                        &self.outcome,
                        &self.reward,
                        &self.passed,
                        &self.error,
                        &self.outcome_detail,
                        &self.sample_rewards,
                        &self.metrics,
                        &self.model_calls,
                        &self.prompt_tokens,
                        &self.completion_tokens,
                        &self.cached_tokens,
                        &self.reasoning_tokens,
                        &self.judge_calls,
                        &self.judge_prompt_tokens,
                        &self.judge_completion_tokens,
                        &self.queue_ms,
                        &self.agent_ms,
                        &self.model_ms,
                        &self.grade_ms,
                        &self.started_at_ms,
                        &self.finished_at_ms,
                        &samples.rollout_id,
                        &samples.attempt,
                        &samples.sample_id,
                        &samples.position,
                        &samples.reward,
                        &samples.removed,
                        &samples.metrics,
                        &samples.extra_fields,
                        &samples.messages,
                        transaction.member_id(),
                    ],
                )
                .await?;
            transaction.note_finished(rows.len() as u64);
            let mut finished: HashSet<(String, i64)> = HashSet::with_capacity(rows.len());
            for row in rows {
                finished.insert((row.try_get(0)?, row.try_get(1)?));
            }
            for (place, accepted) in self.accepted.iter_mut().enumerate() {
                let key = (self.rollout_id[place].clone(), self.attempt[place]);
                *accepted = finished.contains(&key);
            }
            Ok(())
        })
    }
}
