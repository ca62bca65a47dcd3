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

impl AgentWorkflow for Speaker {
    type Config = ();

    async fn run(&self, ctx: &WorkflowContext) -> Result<WorkflowOutput> {
        let mut messages = ctx.prompt().to_vec();
        match wanted(ctx.metadata()) {
            "raise" => return Err("the workflow gave up".into()),
            "raise a validation error" => {
                return Err(TaskError::validation("that is no number").into());
            }
            "end the process" => std::process::exit(3),
            "hang" => std::future::pending::<()>().await,
            "reject" => return Ok(WorkflowOutput::rejected("not worth it")),
            "two samples" => {
                ctx.add_sample("planner", &messages)?;
                ctx.add_sample("executor", &messages)?;
                return Ok(().into());
            }
            _ => {
                let reply = ask(ctx, &messages).await?;
                messages.push(reply);
            }
        }
        Ok(messages.into())
    }
}

impl Grader for Judge {
    type Config = ();

    async fn grade(&self, ctx: &GraderContext) -> Result<()> {
        match wanted(ctx.metadata()) {
            "hang in the grader" => std::future::pending::<()>().await,
            "raise in the grader" => {
                ctx.set_reward(1.0)?;
                return Err("the grader gave up".into());
            }
            "remove" => {
                ctx.set_reward(1.0)?;
                ctx.remove_sample("main")?;
            }
            "two samples" => {
                ctx.set_sample_reward("planner", 0.25)?;
                ctx.set_sample_reward("executor", 1.0)?;
                ctx.remove_sample("executor")?;
            }
            _ => {
                let answer = ctx.sample()?.final_text().unwrap_or_default();
                ctx.set_reward(answer.contains(ctx.label().unwrap_or("nothing")))?;
            }
        }
        Ok(())
    }
}

/// One model call: plain HTTP/1.0, so that the reply ends where the connection does.
async fn ask(ctx: &WorkflowContext, messages: &[Value]) -> Result<Value> {
    let endpoint = ctx.endpoint("main")?;
    let url = endpoint
        .base_url
        .strip_prefix("http://")
        .ok_or("not http")?;
    let (address, path) = url.split_once('/').ok_or("no path")?;
    let body = json!({"model": "openai/osmosis-rollout", "messages": messages}).to_string();
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
