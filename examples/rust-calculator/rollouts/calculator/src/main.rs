//! A calculator agent on `rig`: one tool, a system prompt from the dataset, a reward for the product.

use osmosis_sdk::{
    AgentWorkflow, Grader, GraderContext, POLICY_MODEL, Result, WorkflowContext, WorkflowOutput,
};
use rig::prelude::*;
use rig::tool::ToolExecutionError;

/// Multiplies two integers.
#[rig::rig_tool]
fn multiply(a: i64, b: i64) -> Result<i64, ToolExecutionError> {
    Ok(a * b)
}

#[derive(serde::Deserialize)]
struct Settings {
    max_turns: usize,
}

struct Calculator;

impl AgentWorkflow for Calculator {
    type Config = Settings;

    async fn run(&self, ctx: &WorkflowContext<Settings>) -> Result<WorkflowOutput> {
        let agent = AgentBuilder::new(ctx.rig_client("calculator")?.chat(POLICY_MODEL))
            .preamble(ctx.system_prompt().unwrap_or_default())
            .tool(Multiply)
            .build();
        let question = ctx.user_prompt().ok_or("the row has no question")?;
        let turns = ctx.config().max_turns;
        let answer = agent.prompt(question).max_turns(turns).await?;
        ctx.add_sample("calculator", &answer.messages)?;
        Ok(().into())
    }
}

struct RightProduct;

impl Grader for RightProduct {
    type Config = ();

    async fn grade(&self, ctx: &GraderContext) -> Result<()> {
        let product = ctx.label().ok_or("the row has no ground truth")?;
        let answer = ctx.sample()?.final_text().unwrap_or_default();
        let mut numbers = answer.split(|c: char| !c.is_ascii_digit());
        ctx.set_reward(numbers.any(|number| number == product))?;
        Ok(())
    }
}

fn main() {
    osmosis_sdk::run_worker(Calculator, RightProduct)
}
