//! The rollout of `examples/calculator` without Python and HTTP: the same messages, the same tool, the
//! same grading.

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::mpsc;

use osmosis_core::SampleId;
use osmosis_core::generation::{
    DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_policy::Sampler;
use osmosis_tokens::{CallTree, ChatFormat, Origin, ParsedReply, TokenRecord, TrainingRow};
use serde_json::{Map, Value};

use super::conversation::{asked, calling, saying, tool_call, tool_result, tools};
use super::questions::{Operation, Question};

const MAX_TURNS: usize = 3;
const MAX_TOKENS: usize = 64;
/// What the SDK tells the model about arguments that do not fit the tool.
const TOOL_ERROR: &str = "An error occurred while running the tool. Please try again.";

/// What came of a question.
#[derive(Debug)]
pub(crate) struct Episode {
    pub(crate) question: Question,
    pub(crate) reward: f32,
    #[allow(dead_code, reason = "read by `tiny_loop`, which shares this module")]
    pub(crate) rows: Vec<TrainingRow>,
    /// The first turn was exactly one tool call with arguments that fit the tool.
    pub(crate) well_formed: bool,
    /// The first call has the two numbers of the question, in either order.
    pub(crate) copied_numbers: bool,
    pub(crate) operation: Option<Operation>,
    /// The second turn is the tool's result, if there was one.
    pub(crate) copied_result: Option<bool>,
    /// Every turn but the first was sent as the earlier ids and a suffix.
    pub(crate) continued: bool,
}

struct Running {
    tree: CallTree,
    records: Vec<TokenRecord>,
    messages: Vec<Value>,
    results: Vec<String>,
    done: bool,
    episode: Episode,
}

/// Answers each question once, all at the same time. `key` makes the draws of this call its own.
pub(crate) fn play(
    sampler: &Sampler,
    chat: &ChatFormat,
    questions: &[Question],
    temperature: f32,
    key: (u64, u64),
) -> Result<Vec<Episode>, Box<dyn Error + Send + Sync>> {
    let tools = tools();
    let mut all: Vec<Running> = questions.iter().map(Running::new).collect();
    for turn in 0..MAX_TURNS {
        let mut waiting = Vec::new();
        for (number, running) in all.iter_mut().enumerate().filter(|(_, one)| !one.done) {
            let prompt = running
                .tree
                .plan(chat, &running.messages, Some(&tools), &Map::new())?;
            let (sink, sampled) = Collected::new();
            sampler.generate(
                GenerationRequest {
                    prompt: prompt.ids.clone(),
                    max_tokens: MAX_TOKENS,
                    temperature,
                    top_p: 1.0,
                    top_k: 0,
                    stop_ids: chat.end_of_turn().to_vec(),
                    alternatives: 0,
                    key: draw_key(key, number as u64, turn as u64),
                    constraint: None,
                },
                Box::new(sink),
            );
            waiting.push((number, prompt, sampled));
        }
        for (number, prompt, sampled) in waiting {
            let (tokens, _) = sampled.recv()??;
            let running = &mut all[number];
            running.episode.continued &=
                turn == 0 || matches!(prompt.origin, Origin::Continues { .. });
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            let said = match ids.split_last() {
                Some((last, said)) if chat.end_of_turn().contains(last) => said,
                _ => &ids[..],
            };
            let reply = chat.parse_reply(&chat.decode(said, false)?);
            let message = running.take(turn, &reply);
            running.records.push(running.tree.finished(
                prompt,
                ids,
                tokens.iter().map(|token| token.logprob).collect(),
                tokens.iter().map(|token| token.version).collect(),
                temperature,
                Some(&message),
            ));
        }
    }
    let sample = SampleId::new("calculator")?;
    all.into_iter()
        .map(|running| {
            let rows = CallTree::rows(&sample, &running.records)?;
            Ok(Episode {
                rows,
                ..running.episode
            })
        })
        .collect()
}

impl Running {
    fn new(question: &Question) -> Self {
        Self {
            tree: CallTree::default(),
            records: Vec::new(),
            messages: asked(question),
            results: Vec::new(),
            done: false,
            episode: Episode {
                question: question.clone(),
                reward: 0.0,
                rows: Vec::new(),
                well_formed: false,
                copied_numbers: false,
                operation: None,
                copied_result: None,
                continued: true,
            },
        }
    }

    /// Goes on as the agent would, and returns the assistant message as it is sent back.
    fn take(&mut self, turn: usize, reply: &ParsedReply) -> Value {
        let question = &self.episode.question;
        if turn == 1 && self.results.len() == 1 {
            let said = reply.content.as_deref().unwrap_or_default();
            self.episode.copied_result =
                Some(reply.tool_calls.is_empty() && said == self.results[0]);
        }
        if reply.tool_calls.is_empty() {
            let said = reply.content.as_deref().unwrap_or_default();
            self.episode.reward = f32::from(u8::from(said.trim() == question.answer.to_string()));
            self.done = true;
            return saying(said);
        }
        let calls: Vec<Value> = reply
            .tool_calls
            .iter()
            .enumerate()
            .map(|(number, call)| {
                tool_call(
                    &format!("call_{turn}_{number}"),
                    &call.name,
                    &call.arguments,
                )
            })
            .collect();
        let mut message = calling(&calls);
        if let Some(content) = &reply.content {
            message["content"] = Value::from(content.as_str());
        }
        self.messages.push(message.clone());
        for (number, call) in reply.tool_calls.iter().enumerate() {
            // An unknown tool ends the agent's run.
            self.done |= call.name != "calculate";
            let arguments = arguments(&call.arguments);
            if turn == 0 && reply.tool_calls.len() == 1 && reply.content.is_none() {
                self.episode.well_formed = arguments.is_some() && call.name == "calculate";
                if let Some((a, operation, b)) = &arguments {
                    let (asked_a, asked_b) = (question.a, question.b);
                    self.episode.copied_numbers =
                        [(asked_a, asked_b), (asked_b, asked_a)].contains(&(*a, *b));
                    self.episode.operation = Operation::named(operation);
                }
            }
            let result = calculate(arguments);
            self.messages
                .push(tool_result(&format!("call_{turn}_{number}"), &result));
            self.results.push(result);
        }
        message
    }
}

/// What the tool says.
fn calculate(arguments: Option<(i64, String, i64)>) -> String {
    let Some((a, operation, b)) = arguments else {
        return TOOL_ERROR.to_owned();
    };
    match Operation::named(&operation) {
        None => format!("error: unknown operation {operation}"),
        Some(Operation::Divide | Operation::Remainder) if b == 0 => {
            "error: division by zero".to_owned()
        }
        Some(known) => known
            .apply(a, b)
            .map_or(TOOL_ERROR.to_owned(), |result| result.to_string()),
    }
}

fn arguments(text: &str) -> Option<(i64, String, i64)> {
    let arguments: Map<String, Value> = serde_json::from_str(text).ok()?;
    Some((
        arguments.get("a")?.as_i64()?,
        arguments.get("operation")?.as_str()?.to_owned(),
        arguments.get("b")?.as_i64()?,
    ))
}

fn draw_key(key: (u64, u64), number: u64, turn: u64) -> DrawKey {
    let mut bytes = [0; 32];
    for (place, part) in bytes.chunks_exact_mut(8).zip([key.0, key.1, number, turn]) {
        place.copy_from_slice(&part.to_le_bytes());
    }
    DrawKey(bytes)
}

type Sampled = Result<(Vec<SampledToken>, StopReason), GenerationError>;

/// A sink that gives everything at the end.
struct Collected {
    tokens: Vec<SampledToken>,
    whole: mpsc::Sender<Sampled>,
}

impl Collected {
    fn new() -> (Self, mpsc::Receiver<Sampled>) {
        let (whole, sampled) = mpsc::channel();
        (
            Self {
                tokens: Vec::new(),
                whole,
            },
            sampled,
        )
    }
}

impl TokenSink for Collected {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        self.tokens.push(token);
        ControlFlow::Continue(())
    }

    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
        let Self { tokens, whole } = *self;
        // Nobody listens any more when `play` has failed.
        let _ = whole.send(end.map(|reason| (tokens, reason)));
    }
}
