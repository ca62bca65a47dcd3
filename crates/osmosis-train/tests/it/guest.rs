//! The user's program in these tests. `metadata.do` says what its workflow and grader do.

use osmosis_sdk::{
    AgentWorkflow, Grader, GraderContext, Result, TaskError, WorkflowContext, WorkflowOutput,
};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Speaker;
struct Judge;

fn wanted(metadata: Option<&Map<String, Value>>) -> &str {
    metadata
        .and_then(|metadata| metadata.get("do"))
        .and_then(Value::as_str)
        .unwrap_or("answer")
}

/// The number of the rollout among those of its row.
fn run_index(rollout_id: &str) -> u32 {
    let (_, run) = rollout_id.rsplit_once('-').unwrap();
    run.parse().unwrap()
}

impl AgentWorkflow for Speaker {
    type Config = ();

    async fn run(&self, ctx: &WorkflowContext) -> Result<WorkflowOutput> {
        let mut messages = ctx.prompt().to_vec();
        match wanted(ctx.metadata()) {
            "say nothing" => messages.push(json!({"role": "assistant", "content": "c"})),
            "fail every fourth" if run_index(ctx.rollout().rollout_id()) % 4 == 3 => {
                return Err(TaskError::http("no luck").into());
            }
            doing
                if doing
                    .strip_prefix("fail until there is ")
                    .is_some_and(|path| !std::path::Path::new(path).exists()) =>
            {
                return Err(TaskError::http("no luck").into());
            }
            // Until it is cancelled.
            "hang every eighth" if run_index(ctx.rollout().rollout_id()) % 8 == 7 => {
                std::future::pending::<()>().await;
            }
            "speak under another name" => {
                let reply = ask(ctx, "elsewhere", &messages).await?;
                messages.push(reply);
                ctx.add_sample("here", &messages)?;
                return Ok(().into());
            }
            // Later ones are told so, because a grader does not see their number.
            "climb, then the same" if run_index(ctx.rollout().rollout_id()) >= 16 => {
                let reply = ask(ctx, "main", &messages).await?;
                messages.push(json!({"role": "user", "content": "same"}));
                messages.push(reply);
            }
            "two turns" => {
                let reply = ask(ctx, "main", &messages).await?;
                messages.push(reply);
                messages.push(json!({"role": "user", "content": "h"}));
                let reply = ask(ctx, "main", &messages).await?;
                messages.push(reply);
            }
            _ => {
                let reply = ask(ctx, "main", &messages).await?;
                messages.push(reply);
            }
        }
        Ok(messages.into())
    }
}

impl Grader for Judge {
    type Config = ();

    async fn grade(&self, ctx: &GraderContext) -> Result<()> {
        let answer = ctx.sample()?.final_text().unwrap_or_default();
        let wanted_letter = ctx.label().unwrap_or_default();
        match wanted(ctx.metadata()) {
            "always the same" => ctx.set_reward(0.5)?,
            "climb, then the same"
                if ctx
                    .sample()?
                    .messages()
                    .iter()
                    .any(|message| message["content"] == "same") =>
            {
                ctx.set_reward(0.5)?;
            }
            // About half of all answers.
            "even" => {
                ctx.set_reward(answer.bytes().map(u64::from).sum::<u64>().is_multiple_of(2))?;
            }
            // The later in the alphabet the better, so that hardly any two rewards are equal.
            "climb" | "climb, then the same" | "hang every eighth" => ctx.set_reward(
                answer
                    .bytes()
                    .map(|b| f64::from(b.saturating_sub(b'a')))
                    .sum::<f64>(),
            )?,
            _ => ctx.set_reward(answer.starts_with(wanted_letter))?,
        }
        Ok(())
    }
}

/// One model call: plain HTTP/1.0, so that the reply ends where the connection does.
async fn ask(ctx: &WorkflowContext, sample: &str, messages: &[Value]) -> Result<Value> {
    let endpoint = ctx.endpoint(sample)?;
    let url = endpoint
        .base_url
        .strip_prefix("http://")
        .ok_or("not http")?;
    let (address, path) = url.split_once('/').ok_or("no path")?;
    let body = json!({"model": "osmosis-rollout", "messages": messages}).to_string();
    let mut request = format!(
        "POST /{path}/chat/completions HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n",
        endpoint.api_key,
        body.len(),
    );
    for (name, value) in &endpoint.headers {
        request.extend([name, ": ", value.as_str(), "\r\n"]);
    }
    request.push_str("\r\n");
    request.push_str(&body);
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    let (head, body) = reply.split_once("\r\n\r\n").ok_or("no body")?;
    if !head.contains(" 200 ") {
        return Err(TaskError::http(format!("{head}\n{body}")).into());
    }
    let completion: Value = serde_json::from_str(body)?;
    Ok(completion["choices"][0]["message"].clone())
}

#[test]
#[ignore = "not a test: the other tests start it as a worker process"]
fn worker_process() {
    osmosis_sdk::run_worker(Speaker, Judge)
}
