//! Whatever agents do, a row is what the policy saw and sampled.

use std::collections::HashMap;

use osmosis_core::{PolicyVersion, SampleId};
use osmosis_tokens::{CallTree, ChatFormat, Origin, PlannedPrompt, TokenRecord, TrainingRow};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};

use crate::toy;

#[derive(Debug, Clone)]
enum Step {
    /// An agent says something and asks the model.
    Ask { agent: Index, text: String },
    /// An agent asks the same again, not having got or not wanting the answer.
    Retry { agent: Index },
    /// One of the calls under way ends.
    Finish {
        call: Index,
        tokens: Vec<usize>,
        end: End,
    },
    /// A new agent begins with a part of another's messages.
    Branch { agent: Index, at: Index },
    /// An agent changes a message.
    Rewrite {
        agent: Index,
        at: Index,
        text: String,
    },
    /// An agent gets other tools.
    SwapTools { agent: Index },
}

#[derive(Debug, Clone, Copy)]
enum End {
    Turn,
    OtherToken,
    Length,
    ToolCall,
    CutOff,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let agent = any::<Index>;
    let text = "[a-c é\n]{0,5}";
    let end = prop_oneof![
        5 => Just(End::Turn),
        1 => Just(End::OtherToken),
        1 => Just(End::Length),
        2 => Just(End::ToolCall),
        1 => Just(End::CutOff),
    ];
    let step = prop_oneof![
        6 => (agent(), text).prop_map(|(agent, text)| Step::Ask { agent, text }),
        1 => agent().prop_map(|agent| Step::Retry { agent }),
        7 => (agent(), prop::collection::vec(any::<usize>(), 0..6), end)
            .prop_map(|(call, tokens, end)| Step::Finish { call, tokens, end }),
        1 => (agent(), agent()).prop_map(|(agent, at)| Step::Branch { agent, at }),
        1 => (agent(), agent(), text)
            .prop_map(|(agent, at, text)| Step::Rewrite { agent, at, text }),
        1 => agent().prop_map(|agent| Step::SwapTools { agent }),
    ];
    prop::collection::vec(step, 1..60)
}

#[derive(Debug, Clone, Default)]
struct Agent {
    messages: Vec<Value>,
    with_tools: bool,
    /// What it was last told, while its messages still end with that.
    told_by: Option<u32>,
}

/// What the policy saw and sampled in a call.
#[derive(Debug, Clone)]
struct Truth {
    prompt: Vec<u32>,
    sampled: Vec<u32>,
    logprobs: Vec<f32>,
    versions: Vec<PolicyVersion>,
    temperature: f32,
    complete: bool,
    /// The request, and the reply's content, to tell calls apart that can stand for each other.
    said: (Vec<Value>, bool, Value),
    ended: bool,
}

struct World<'a> {
    format: &'a ChatFormat,
    /// Whether the template lets every finished turn be continued.
    stable: bool,
    tree: CallTree,
    agents: Vec<Agent>,
    under_way: Vec<(usize, Agent, PlannedPrompt)>,
    truth: HashMap<u32, Truth>,
    records: Vec<TokenRecord>,
}

impl World<'_> {
    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ask { agent, text } => {
                let agent = agent.index(self.agents.len());
                let role = match self.agents[agent].messages.last() {
                    Some(last) if last.get("tool_calls").is_some() => "tool",
                    _ => "user",
                };
                self.agents[agent]
                    .messages
                    .push(json!({"role": role, "content": text}));
                self.plan(agent)?;
                self.agents[agent].told_by = None;
            }
            Step::Retry { agent } => {
                let agent = agent.index(self.agents.len());
                if !self.agents[agent].messages.is_empty() {
                    self.agents[agent].told_by = None;
                    self.plan(agent)?;
                }
            }
            Step::Finish { call, tokens, end } => {
                if !self.under_way.is_empty() {
                    let call = call.index(self.under_way.len());
                    self.finish(call, &tokens, end)?;
                }
            }
            Step::Branch { agent, at } => {
                let mut branch = self.agents[agent.index(self.agents.len())].clone();
                branch
                    .messages
                    .truncate(at.index(branch.messages.len() + 1));
                branch.told_by = None;
                self.agents.push(branch);
            }
            Step::Rewrite { agent, at, text } => {
                let agent = agent.index(self.agents.len());
                let agent = &mut self.agents[agent];
                if !agent.messages.is_empty() {
                    let at = at.index(agent.messages.len());
                    agent.messages[at]["content"] = json!(text);
                    agent.told_by = None;
                }
            }
            Step::SwapTools { agent } => {
                let agent = agent.index(self.agents.len());
                self.agents[agent].with_tools ^= true;
                self.agents[agent].told_by = None;
            }
        }
        Ok(())
    }

    fn plan(&mut self, agent: usize) -> Result<(), TestCaseError> {
        let asking = self.agents[agent].clone();
        let tools = asking.with_tools.then(|| [json!({"name": "tool"})]);
        let tools = tools.as_ref().map(<[Value; 1]>::as_slice);
        // Clients write the same messages in other ways.
        let sent: Vec<Value> = asking.messages.iter().map(as_clients_send).collect();
        let prompt = self
            .tree
            .plan(self.format, &sent, tools, &Map::new())
            .unwrap();

        let rendered = self.format.render(&sent, tools, true, &Map::new()).unwrap();
        // A tool call is sampled in other words than it is rendered; bytes that are no text are lost in it.
        let has_call = sent.iter().any(|m| m.get("tool_calls").is_some());
        if !has_call && !rendered.contains('\u{fffd}') {
            prop_assert_eq!(&self.format.decode(&prompt.ids, false).unwrap(), &rendered);
        }
        match prompt.origin {
            Origin::Root { .. } => {
                prop_assert_eq!(&prompt.ids, &self.format.encode(&rendered).unwrap());
            }
            Origin::Continues { call, kept } => {
                let origin = &self.truth[&call];
                prop_assert!(origin.complete);
                let seen = [origin.prompt.as_slice(), &origin.sampled].concat();
                prop_assert_eq!(kept as usize, seen.len());
                prop_assert!(prompt.ids.starts_with(&seen));
            }
        }
        if let Some(told_by) = asking.told_by
            && self.stable
            && self.truth[&told_by].ended
        {
            let Origin::Continues { call, .. } = prompt.origin else {
                return Err(TestCaseError::fail(format!(
                    "call {told_by} was not continued: {:?}",
                    prompt.origin
                )));
            };
            prop_assert_eq!(&self.truth[&call].said, &self.truth[&told_by].said);
        }
        self.under_way.push((agent, asking, prompt));
        Ok(())
    }

    fn finish(&mut self, call: usize, tokens: &[usize], end: End) -> Result<(), TestCaseError> {
        let (agent, mut asked, prompt) = self.under_way.remove(call);
        let number = prompt.call;
        let mut sampled: Vec<u32> = tokens
            .iter()
            .map(|token| toy::ordinary(self.format, *token))
            .collect();
        if matches!(end, End::ToolCall) {
            let call =
                "<tool_call>{\"name\":\"tool\",\"arguments\":{\"b\" : 1,\"a\":2}}</tool_call>";
            sampled = self.format.encode(call).unwrap();
        }
        let said = self.format.decode(&sampled, true).unwrap();
        match end {
            End::Turn | End::ToolCall => {
                sampled.push(toy::special(self.format, "<|im_end|>"));
            }
            End::OtherToken => sampled.push(toy::special(self.format, "<|endoftext|>")),
            End::Length | End::CutOff => {}
        }
        let reply = match end {
            End::CutOff => None,
            End::ToolCall => Some(
                json!({"role": "assistant", "content": null, "tool_calls": [{
                    "id": "c", "type": "function",
                    "function": {"name": "tool", "arguments": "{\"b\" : 1,\"a\":2}"},
                }]}),
            ),
            End::Turn | End::OtherToken | End::Length => {
                Some(json!({"role": "assistant", "content": said}))
            }
        };
        let logprobs: Vec<f32> = (0..sampled.len())
            .map(|n| -0.001 * (n as f32) - number as f32)
            .collect();
        let versions: Vec<PolicyVersion> = (0..sampled.len())
            .map(|n| PolicyVersion(u64::from(number) + n as u64 / 3))
            .collect();
        let temperature = 0.5 + number as f32 / 8.0;
        self.truth.insert(
            number,
            Truth {
                prompt: prompt.ids.clone(),
                sampled: sampled.clone(),
                logprobs: logprobs.clone(),
                versions: versions.clone(),
                temperature,
                complete: reply.is_some(),
                said: (asked.messages.clone(), asked.with_tools, json!(reply)),
                ended: !matches!(end, End::OtherToken),
            },
        );
        let record = self.tree.finished(
            prompt,
            sampled,
            logprobs,
            versions,
            temperature,
            reply.as_ref(),
        );
        prop_assert_eq!(record.call, number);
        self.records.push(record);
        if let Some(reply) = reply {
            asked.messages.push(reply);
            asked.told_by = Some(number);
            // The agent has it, unless it went on meanwhile.
            let agent = &mut self.agents[agent];
            if agent.messages.len() < asked.messages.len()
                && asked.messages.starts_with(&agent.messages)
                && agent.with_tools == asked.with_tools
            {
                *agent = asked;
            }
        }
        Ok(())
    }

    fn check_rows(&self, shuffle: &[Index]) -> Result<(), TestCaseError> {
        let mut records: Vec<TokenRecord> = self
            .records
            .iter()
            .map(|record| TokenRecord::decode(&record.encode()).unwrap())
            .collect();
        prop_assert_eq!(&records, &self.records);
        for (n, other) in shuffle.iter().enumerate() {
            if !records.is_empty() {
                let (a, b) = (n % records.len(), other.index(records.len()));
                records.swap(a, b);
            }
        }
        let rows = CallTree::rows(&SampleId::new("main").unwrap(), &records).unwrap();
        let mut trained: HashMap<u32, usize> = HashMap::new();
        for (n, row) in rows.iter().enumerate() {
            prop_assert_eq!(&row.id, &format!("main/{n}"));
            self.check_row(row, &mut trained)?;
        }
        for (call, truth) in &self.truth {
            let expected = usize::from(truth.complete);
            prop_assert_eq!(trained.get(call).copied().unwrap_or(0), expected);
        }
        Ok(())
    }

    /// Builds the row again from what the policy saw and sampled.
    fn check_row(
        &self,
        row: &TrainingRow,
        trained: &mut HashMap<u32, usize>,
    ) -> Result<(), TestCaseError> {
        let leaf = &self.truth[row.calls.last().unwrap()];
        let ids = [leaf.prompt.as_slice(), &leaf.sampled].concat();
        prop_assert_eq!(&row.ids, &ids);
        let mut mask = vec![false; ids.len()];
        let mut logprobs = vec![0.0; ids.len()];
        let mut versions = vec![None; ids.len()];
        let mut temperatures = vec![1.0; ids.len()];
        for call in &row.calls {
            let truth = &self.truth[call];
            prop_assert!(truth.complete);
            let start = truth.prompt.len();
            let seen = [truth.prompt.as_slice(), &truth.sampled].concat();
            prop_assert!(ids.starts_with(&seen));
            let times = trained.entry(*call).or_default();
            let first = *times == 0;
            *times = 1;
            for n in 0..truth.sampled.len() {
                mask[start + n] = first;
                logprobs[start + n] = truth.logprobs[n];
                versions[start + n] = Some(truth.versions[n]);
                temperatures[start + n] = truth.temperature;
            }
        }
        prop_assert_eq!(&row.loss_mask, &mask);
        prop_assert_eq!(&row.logprobs, &logprobs);
        prop_assert_eq!(&row.versions, &versions);
        prop_assert_eq!(&row.temperatures, &temperatures);
        Ok(())
    }
}

fn as_clients_send(message: &Value) -> Value {
    let mut sent = message.clone();
    let fields = sent.as_object_mut().unwrap();
    fields.insert("refusal".to_owned(), Value::Null);
    if let Some(text) = message["content"]
        .as_str()
        .filter(|text| text.len() % 2 == 1)
    {
        fields["content"] = json!([{"type": "text", "text": text}]);
    }
    if let Some(calls) = fields.get_mut("tool_calls") {
        calls[0]["function"]["arguments"] = json!("{\"a\": 2, \"b\": 1}");
    }
    sent
}

fn check(template: &str, steps: Vec<Step>, shuffle: &[Index]) -> Result<(), TestCaseError> {
    let format = toy::format(template);
    let mut world = World {
        format: &format,
        stable: template == toy::CHATML,
        tree: CallTree::default(),
        agents: vec![Agent::default(), Agent::default()],
        under_way: Vec::new(),
        truth: HashMap::new(),
        records: Vec::new(),
    };
    for step in steps {
        world.step(step)?;
    }
    world.check_rows(shuffle)
}

proptest! {
    #[test]
    fn rows_are_what_the_policy_saw_and_sampled(
        steps in steps(),
        shuffle in prop::collection::vec(any::<Index>(), 0..40),
    ) {
        check(toy::CHATML, steps, &shuffle)?;
    }

    #[test]
    fn rows_are_true_with_a_template_that_rewrites_history(
        steps in steps(),
        shuffle in prop::collection::vec(any::<Index>(), 0..40),
    ) {
        check(toy::REWRITING, steps, &shuffle)?;
    }

    #[test]
    fn rows_are_true_with_a_template_without_an_end_of_turn(
        steps in steps(),
        shuffle in prop::collection::vec(any::<Index>(), 0..40),
    ) {
        check(toy::OPEN_TURNS, steps, &shuffle)?;
    }
}
