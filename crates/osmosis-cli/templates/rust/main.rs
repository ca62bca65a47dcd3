//! An agent in Rust that asks the policy once, and the grader that scores its answer.

use async_openai::types::chat::CreateChatCompletionRequestArgs;
use osmosis_sdk::{
    AgentWorkflow, Grader, GraderContext, POLICY_MODEL, Result, WorkflowContext, WorkflowOutput,
};

struct Workflow;

impl AgentWorkflow for Workflow {
    type Config = ();

    async fn run(&self, ctx: &WorkflowContext) -> Result<WorkflowOutput> {
        let request = CreateChatCompletionRequestArgs::default()
            .model(POLICY_MODEL)
            .messages(ctx.prompt_as()?)
            .build()?;
        let reply = ctx.openai_client("main")?.chat().create(request).await?;
        // A returned message list becomes the sample `main`.
        let mut messages = ctx.prompt().to_vec();
        messages.push(serde_json::to_value(&reply.choices[0].message)?);
        Ok(messages.into())
    }
}

struct AnswerGrader;

impl Grader for AnswerGrader {
    type Config = ();

    async fn grade(&self, ctx: &GraderContext) -> Result<()> {
        let answer = ctx.sample()?.final_text().unwrap_or_default();
        let label = ctx.label().ok_or("the row has no ground truth")?;
        ctx.set_reward(last_number(&answer).as_deref() == Some(label))?;
        Ok(())
    }
}

/// The last number of a text: what comes before is how the agent got there.
fn last_number(text: &str) -> Option<String> {
    text.replace(',', "")
        .split(|c: char| !c.is_ascii_digit() && !"-.".contains(c))
        .map(|word| word.trim_matches('.'))
        .rfind(|word| word.contains(|c: char| c.is_ascii_digit()))
        .map(str::to_owned)
}

fn main() {
    osmosis_sdk::run_worker(Workflow, AnswerGrader)
}
