//! Rollouts, their tools and their grades as spans of OpenTelemetry, beside the gateway's spans of calls.
//!
//! User code runs elsewhere, so tools are seen from outside: a tool ran between the reply that called it
//! and the request that brings its result.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use osmosis_core::{Attempt, Outcome, Reward, RolloutId, Sample};
use osmosis_data::conversation::{Conversation, Role};
use osmosis_data::export::{ExportError, SampleTalk};
use osmosis_engine::RunEvent;
use osmosis_gateway::{Attribute, RolloutSpan, RolloutSpans, SpanEvent};
use osmosis_store::{CallQuery, RolloutRecord, Store};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::RunError;
use crate::notices::Notices;
use crate::transcripts::{self, Telling};

/// Finished rollouts that wait to be told; what comes on top is dropped, and counted.
const QUEUE: usize = 4096;
/// How long the last ones may take.
const LAST_SPANS: Duration = Duration::from_secs(30);

/// What is the same for all spans of a run.
#[derive(Debug, Clone)]
pub struct TracedRun {
    pub name: String,
    pub rollout: String,
    pub model: String,
    pub redactor: osmosis_core::Redactor,
}

/// Listens to the engine's events on their way to the display.
#[derive(Debug)]
pub struct Tracer {
    events: mpsc::Sender<RunEvent>,
    tasks: JoinSet<()>,
}

impl Tracer {
    /// Without `spans` it only hands on the way to the display.
    pub fn start(
        spans: Option<RolloutSpans>,
        run: TracedRun,
        store: &Arc<dyn Store>,
        display: mpsc::Sender<RunEvent>,
    ) -> Self {
        let mut tasks = JoinSet::new();
        let Some(spans) = spans else {
            return Self {
                events: display,
                tasks,
            };
        };
        let (events, engine) = mpsc::channel(QUEUE);
        let (tell, told) = mpsc::channel(QUEUE);
        tasks.spawn(hand_on(engine, display, tell, spans.clone()));
        let teller = Teller {
            spans,
            run,
            store: Arc::clone(store),
        };
        tasks.spawn(teller.tell(told));
        Self { events, tasks }
    }

    pub fn events(&self) -> mpsc::Sender<RunEvent> {
        self.events.clone()
    }

    /// Sends what is left. The engine must be gone by then.
    pub async fn finish(self, notices: &dyn Notices) {
        let Self { events, mut tasks } = self;
        drop(events);
        let last = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_SPANS, last).await.is_err() {
            notices.warn("the last spans could not be made in time");
        }
    }
}

/// An attempt that has ended.
#[derive(Debug)]
enum Ended {
    /// The rollout has its result.
    Finished(RolloutId),
    /// It will be tried again.
    InVain {
        id: RolloutId,
        attempt: Attempt,
        from_ms: i64,
        to_ms: i64,
        reason: String,
    },
}

/// The display comes first; spans are for those who look later.
async fn hand_on(
    mut engine: mpsc::Receiver<RunEvent>,
    display: mpsc::Sender<RunEvent>,
    tell: mpsc::Sender<Ended>,
    spans: RolloutSpans,
) {
    let mut claimed: HashMap<RolloutId, i64> = HashMap::new();
    while let Some(event) = engine.recv().await {
        let ended = match &event {
            RunEvent::Claimed { id, .. } => {
                claimed.insert(id.clone(), now_ms());
                None
            }
            RunEvent::Finished { id, .. } => {
                claimed.remove(id);
                Some(Ended::Finished(id.clone()))
            }
            RunEvent::Retrying {
                id,
                attempt,
                reason,
                ..
            } => {
                let now = now_ms();
                Some(Ended::InVain {
                    id: id.clone(),
                    attempt: *attempt,
                    from_ms: claimed.remove(id).unwrap_or(now),
                    to_ms: now,
                    reason: reason.clone(),
                })
            }
            RunEvent::Began { .. }
            | RunEvent::PhaseBegan { .. }
            | RunEvent::GradingAgain { .. }
            | RunEvent::Draining { .. } => None,
        };
        // A display that is gone does not end the run.
        let _ = display.send(event).await;
        if let Some(ended) = ended
            && tell.try_send(ended).is_err()
        {
            spans.drop_one();
        }
    }
}

struct Teller {
    spans: RolloutSpans,
    run: TracedRun,
    store: Arc<dyn Store>,
}

impl Teller {
    async fn tell(self, mut told: mpsc::Receiver<Ended>) {
        while let Some(ended) = told.recv().await {
            match ended {
                Ended::Finished(id) => {
                    if let Err(error) = self.finished(&id).await {
                        tracing::warn!(rollout = %id, ?error, "a rollout has no spans");
                        self.spans.drop_one();
                    }
                }
                Ended::InVain {
                    id,
                    attempt,
                    from_ms,
                    to_ms,
                    reason,
                } => {
                    let mut span = self.attempt(&id, attempt, from_ms, to_ms);
                    span.error = Some(("retried".to_owned(), self.run.redactor.clean(&reason)));
                    self.spans.send_attempt(&id, attempt, &span);
                }
            }
        }
    }

    async fn finished(&self, id: &RolloutId) -> Result<(), RunError> {
        let Some(rollout) = self.store.rollout(id).await? else {
            return Ok(());
        };
        let Some(outcome) = rollout.outcome.clone() else {
            return Ok(());
        };
        let samples = self.store.samples(id).await?;
        let query = CallQuery {
            rollout_id: id.clone(),
            attempt: None,
        };
        let calls = self.store.calls(query).await?;
        let attempt = calls
            .last()
            .map_or(Attempt(rollout.attempts), |call| call.attempt);
        let telling = Telling {
            model: self.run.model.clone(),
            with_tokens: false,
        };
        let talks = transcripts::of(&*self.store, id, &samples, &telling).await?;
        let from = rollout.started_at_ms.unwrap_or_default();
        let to = rollout.finished_at_ms.unwrap_or(from);

        let mut span = self.attempt(id, attempt, from, to);
        span.attributes
            .extend(outcome_attributes(&rollout, &outcome));
        span.events = evaluations(&samples, &outcome, to);
        span.error = ExportError::of(&outcome)
            .map(|error| (error.kind, self.run.redactor.clean(&error.message)));
        self.spans.send_attempt(id, attempt, &span);
        for tool in tools(&talks) {
            self.spans.send_part(id, attempt, &tool);
        }
        if let Some(grade) = grade(&rollout, &outcome, to) {
            self.spans.send_part(id, attempt, &grade);
        }
        Ok(())
    }

    /// The span of an attempt, before it is known how it ended.
    fn attempt(&self, id: &RolloutId, attempt: Attempt, from_ms: i64, to_ms: i64) -> RolloutSpan {
        let text = |text: &str| Attribute::Text(text.to_owned());
        RolloutSpan {
            name: format!("invoke_agent {}", self.run.rollout),
            start_ms: from_ms,
            end_ms: to_ms,
            attributes: vec![
                ("gen_ai.operation.name", text("invoke_agent")),
                ("gen_ai.provider.name", text("osmosis")),
                ("gen_ai.agent.name", text(&self.run.rollout)),
                ("gen_ai.request.model", text(&self.run.model)),
                ("gen_ai.conversation.id", text(id.as_str())),
                ("osmosis.run.name", text(&self.run.name)),
                ("osmosis.rollout.id", text(id.as_str())),
                ("osmosis.attempt", Attribute::Whole(attempt.0.into())),
            ],
            events: Vec::new(),
            error: None,
        }
    }
}

fn outcome_attributes(
    rollout: &RolloutRecord,
    outcome: &Outcome,
) -> Vec<(&'static str, Attribute)> {
    let calls = rollout.calls;
    let mut attributes = vec![
        (
            "gen_ai.usage.input_tokens",
            Attribute::Whole(calls.prompt_tokens),
        ),
        (
            "gen_ai.usage.output_tokens",
            Attribute::Whole(calls.completion_tokens),
        ),
        ("osmosis.model_calls", Attribute::Whole(calls.model_calls)),
        ("osmosis.row_index", Attribute::Whole(rollout.row_index)),
        (
            "osmosis.run_index",
            Attribute::Whole(rollout.run_index.into()),
        ),
        (
            "osmosis.outcome",
            Attribute::Text(outcome.kind().as_str().to_owned()),
        ),
        ("osmosis.passed", Attribute::Bool(outcome.passed())),
    ];
    if let Some(reward) = outcome.reward() {
        attributes.push(("osmosis.reward", Attribute::Number(reward.get())));
    }
    attributes
}

/// What the grader gave each sample, as events of the agent's span: that is what was evaluated.
fn evaluations(samples: &[Sample], outcome: &Outcome, at_ms: i64) -> Vec<SpanEvent> {
    let label = if outcome.passed() { "pass" } else { "fail" };
    let graded = samples.iter().filter(|sample| !sample.remove_sample);
    let graded = graded.filter_map(|sample| Some((sample, sample.reward.map(Reward::get)?)));
    graded
        .map(|(sample, reward)| SpanEvent {
            name: "gen_ai.evaluation.result",
            at_ms,
            attributes: vec![
                (
                    "gen_ai.evaluation.name",
                    Attribute::Text("reward".to_owned()),
                ),
                ("gen_ai.evaluation.score.value", Attribute::Number(reward)),
                (
                    "gen_ai.evaluation.score.label",
                    Attribute::Text(label.to_owned()),
                ),
                ("osmosis.sample.id", Attribute::Text(sample.id.to_string())),
            ],
        })
        .collect()
}

fn grade(rollout: &RolloutRecord, outcome: &Outcome, to_ms: i64) -> Option<RolloutSpan> {
    let took = rollout.durations.grade;
    // User code that graded took some time; what never came to a grade took none.
    if took <= 0.0 || !outcome.kind().ran() {
        return None;
    }
    let took = Duration::from_secs_f64(took / 1000.0).as_millis();
    Some(RolloutSpan {
        name: "grade".to_owned(),
        start_ms: to_ms - i64::try_from(took).unwrap_or(0),
        end_ms: to_ms,
        attributes: vec![
            (
                "osmosis.rollout.id",
                Attribute::Text(rollout.id.to_string()),
            ),
            (
                "osmosis.outcome",
                Attribute::Text(outcome.kind().as_str().to_owned()),
            ),
        ],
        events: Vec::new(),
        error: None,
    })
}

/// Conversations that part later have the same tools before; each is told once.
fn tools(talks: &[SampleTalk]) -> Vec<RolloutSpan> {
    let mut spans = Vec::new();
    for talk in talks {
        let mut told = HashSet::new();
        for conversation in &talk.conversations {
            for (at, span) in tools_of(talk, conversation) {
                if told.insert(at) {
                    spans.push(span);
                }
            }
        }
    }
    spans
}

/// The tools of a conversation, with what tells them apart.
fn tools_of(
    talk: &SampleTalk,
    conversation: &Conversation,
) -> Vec<((String, i64, i64), RolloutSpan)> {
    let mut found = Vec::new();
    let turns = &conversation.turns;
    for (place, result) in turns.iter().enumerate() {
        let (Role::Tool, Some(id), Some(end_ms)) = (result.role, &result.answers, result.at_ms)
        else {
            continue;
        };
        let asked = turns[..place].iter().rev().find_map(|turn| {
            let call = turn.tool_calls.iter().find(|call| call.id == *id)?;
            turn.call.as_ref().map(|made| (call, made.done_at_ms))
        });
        // A call that stood in the prompt from the start was made by nobody here.
        let Some((call, start_ms)) = asked else {
            continue;
        };
        let text = |text: &str| Attribute::Text(text.to_owned());
        let span = RolloutSpan {
            name: format!("execute_tool {}", call.name),
            start_ms,
            end_ms,
            attributes: vec![
                ("gen_ai.operation.name", text("execute_tool")),
                ("gen_ai.tool.name", text(&call.name)),
                ("gen_ai.tool.call.id", text(id)),
                ("gen_ai.tool.type", text("function")),
                ("osmosis.sample.id", text(talk.id.as_str())),
            ],
            events: Vec::new(),
            error: result.is_error.then(|| {
                (
                    "tool_error".to_owned(),
                    "the tool said that it failed".to_owned(),
                )
            }),
        };
        found.push(((id.clone(), start_ms, end_ms), span));
    }
    found
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
