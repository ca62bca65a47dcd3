//! The user's program in these tests. `metadata.do` says what its workflow and grader do.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what user code prints is part of the tests"
)]

use std::future::pending;
use std::io::Write;
use std::sync::LazyLock;

use osmosis_sdk::{
    AgentWorkflow, Grader, GraderContext, Result, TaskError, WorkflowContext, WorkflowOutput,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Barrier;

#[derive(Debug, Deserialize)]
struct Settings {
    #[serde(default = "one")]
    repeat: usize,
    #[serde(default)]
    limits: Limits,
}

fn one() -> usize {
    1
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Limits {
    at_once: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Tolerance {
    #[serde(default)]
    tolerance: f64,
}

struct Parrot;
struct Judge;

static MEETING: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));

fn wanted(metadata: Option<&Map<String, Value>>) -> &str {
    metadata
        .and_then(|metadata| metadata.get("do"))
        .and_then(Value::as_str)
        .unwrap_or("answer")
}

fn said(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// Speaks, or worse, when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl AgentWorkflow for Parrot {
    type Config = Settings;

    async fn run(&self, ctx: &WorkflowContext<Settings>) -> Result<WorkflowOutput> {
        match wanted(ctx.metadata()) {
            "answer" => {
                let text = ctx.user_prompt().unwrap_or_default();
                let mut messages = ctx.prompt().to_vec();
                messages.push(said(&text.repeat(ctx.config().repeat)));
                Ok(WorkflowOutput::from(messages).with_metric("turns", 1))
            }
            "describe yourself" => {
                let endpoint = ctx.endpoint("solver")?;
                Ok(vec![said(&format!(
                    "{} {} {} {:?} in {}",
                    ctx.rollout().rollout_id(),
                    endpoint.base_url,
                    endpoint.api_key,
                    endpoint.headers,
                    std::env::current_dir()?.display(),
                ))]
                .into())
            }
            "register" => {
                ctx.add_sample("first", &[said("1")])?;
                ctx.add_sample("second", &[said("2")])?;
                Ok(vec![said("not looked at")].into())
            }
            "register twice" => {
                ctx.add_sample("same", &[said("1")])?;
                ctx.add_sample("same", &[said("2")])?;
                Ok(().into())
            }
            "nothing" => Ok(().into()),
            "a text" => Ok(vec![json!("hello")].into()),
            "reject" => Ok(WorkflowOutput::rejected("too hard")),
            "parse" => {
                "forty-two".parse::<i32>()?;
                Ok(().into())
            }
            "call a service" => Err(TaskError::http("it answered 503"))?,
            "panic" => {
                let none: Option<i32> = None;
                assert!(none.is_some(), "no number here");
                Ok(().into())
            }
            "hang" => {
                let rollout = ctx.clone();
                let _let_go = OnDrop(move || rollout.log("let go"));
                ctx.log("hanging");
                pending().await
            }
            "hang and panic" => {
                let _let_go = OnDrop(|| panic!("not even this works"));
                ctx.log("hanging");
                pending().await
            }
            "meet" => {
                MEETING.wait().await;
                Ok(vec![said("met")].into())
            }
            "block" => {
                ctx.log("blocking");
                loop {
                    std::thread::park();
                }
            }
            "print" => {
                ctx.log("logged");
                osmosis_sdk::log("logged\ntwice");
                let mut writer = osmosis_sdk::log_writer();
                write!(writer, "in pieces: ")?;
                writeln!(writer, "written")?;
                write!(writer, "and left over")?;
                drop(writer);
                println!("printed");
                eprintln!("printed as an error");
                Ok(vec![said("done")].into())
            }
            "half a line" => {
                print!("half ");
                ctx.log("between");
                println!("a line");
                Ok(vec![said("done")].into())
            }
            "too much" => Ok(vec![said(&"x".repeat(65 * 1024 * 1024))].into()),
            "leave a file" => {
                let folder = ctx.artifacts_dir()?.ok_or("no folder")?;
                std::fs::write(folder.join("note"), "hello")?;
                Ok(vec![said("left")].into())
            }
            other => Err(format!("what is `{other}`?").into()),
        }
    }

    fn max_concurrent(&self, config: &Settings) -> Option<u32> {
        config.limits.at_once
    }
}

impl Grader for Judge {
    type Config = Tolerance;

    async fn grade(&self, ctx: &GraderContext<Tolerance>) -> Result<()> {
        match wanted(ctx.metadata()) {
            "answer" => {
                let answer = ctx.sample()?.final_text();
                ctx.set_reward(answer.as_deref() == ctx.label())?;
            }
            "grade each" => {
                for (index, sample) in ctx.samples().iter().enumerate() {
                    let reward = 1.0 / (1.0 + f64::from(u32::try_from(index)?));
                    ctx.set_sample_reward(sample.id(), reward + ctx.config().tolerance)?;
                    ctx.set_sample_metric(sample.id(), "index", u32::try_from(index)?)?;
                }
            }
            "remove the second" => {
                ctx.set_sample_reward("first", 1)?;
                ctx.remove_sample("second")?;
            }
            "not a number" => ctx.set_sample_reward("first", f64::NAN)?,
            "forget" => {}
            "somebody else" => ctx.set_sample_reward("third", 1)?,
            "panic" => panic!("no grade today"),
            other => return Err(format!("what is `{other}`?").into()),
        }
        Ok(())
    }
}

/// The line that `Found` must name.
pub(crate) const CALLED_AT_LINE: u32 = line!() + 6;

#[test]
#[ignore = "not a test: the other tests start it as a worker process"]
fn worker_process() {
    if std::env::var_os("ASYNC_MAIN").is_none() {
        osmosis_sdk::run_worker(Parrot, Judge)
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async { osmosis_sdk::run_worker(Parrot, Judge) });
}
