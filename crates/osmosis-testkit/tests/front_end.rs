//! A front end without the CLI: it runs an evaluation, shows a rollout and compares two runs with `osmosis-run` alone.
//! What it lacks for that would be logic that the CLI must not hold.
//!
//! A program of its own instead of a test in a harness, because guards of workers are the program that starts them.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test, and a program that prints what it shows"
)]

use std::process::ExitCode;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RunName;
use osmosis_engine::{RunEnd, Stop};
use osmosis_run::RunError;
use osmosis_run::eval::evaluation::Evaluation;
use osmosis_run::eval::plan::{EvalPlan, EvalRequest};
use osmosis_run::events::LogOnly;
use osmosis_run::life::{FrontEnd, Lived, live};
use osmosis_run::notices::NoNotices;
use osmosis_run::reports::{Comparison, RolloutDetails, RunReport, Wanted};
use osmosis_run::run_folder::RunFolder;
use osmosis_run::runs::ReadRun;
use osmosis_run::settings::Throughput;
use osmosis_run::stop_signals::StopSignals;
use osmosis_run::workspace::{Workspace, read_config};
use osmosis_store::RunKind;
use osmosis_testkit::python_environment;

const AGENT: &str = r#"
import httpx
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

class Plain(AgentWorkflow):
    async def run(self, ctx):
        rollout = get_rollout_context()
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.post(
                f"{rollout.chat_completions_url}/chat/completions",
                headers={"Authorization": f"Bearer {rollout.api_key}"},
                json={"model": "osmosis-rollout", "messages": ctx.prompt},
            )
            reply.raise_for_status()
            return [*ctx.prompt, reply.json()["choices"][0]["message"]]

class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.label in ctx.sample.messages[-1]["content"].split() else 0.0)
"#;

/// Says the word, and says it wrong.
const RIGHT: &str = "[[reply]]\nwhen.last_user = 'say (?<word>\\S+)'\ntext = '{word}'\n";
const WRONG: &str = "[[reply]]\ntext = 'nothing'\n";

/// What this front end offers.
struct Page {
    workspace: Workspace,
}

impl Page {
    async fn evaluate(&self, config: &str, name: &str) -> Result<Lived<Evaluation>, RunError> {
        let path = self.workspace.root.join("configs/eval").join(config);
        let (path, text) = read_config(&path)?;
        let request = EvalRequest::of_config(path, text);
        let plan = EvalPlan::check(request, &self.workspace.chosen(), &NoNotices).await?;
        let name = RunName::new(name).unwrap();
        let evaluation = Evaluation {
            throughput: Throughput {
                python: Some(python_environment::python()),
                ..Throughput::default()
            },
            ..Evaluation::new(plan, Some(name))?
        };
        let stop = StopSignals::of(Stop::default());
        let front = FrontEnd {
            stop: &stop,
            notices: Arc::new(NoNotices),
            observer: Box::new(LogOnly),
            resume: None,
            fresh: false,
        };
        live(&evaluation, front).await
    }

    async fn open(&self, name: &str) -> Result<ReadRun, RunError> {
        let folder = RunFolder::existing(&self.workspace, RunKind::Evaluation, name).await?;
        ReadRun::open(folder).await
    }

    async fn show(&self, name: &str, row: u64) -> Result<Vec<RolloutDetails>, RunError> {
        let run = self.open(name).await?;
        let wanted = Wanted {
            ground_truth: true,
            ..Wanted::default()
        };
        RolloutDetails::of_row(&*run.store, &run.folder, row, None, wanted).await
    }

    async fn compare(&self, names: [&str; 2]) -> Result<Comparison, RunError> {
        let [first, other] = names;
        let runs = vec![self.open(first).await?, self.open(other).await?];
        Comparison::of(runs, false, &self.workspace).await
    }
}

async fn use_the_page(root: &Utf8Path) -> Result<(), RunError> {
    let page = Page {
        workspace: Workspace::at(root.to_owned()),
    };
    let right = page.evaluate("right.toml", "right").await?;
    let wrong = page.evaluate("wrong.toml", "wrong").await?;
    for ended in [&right.end, &wrong.end] {
        assert_eq!(ended.end, RunEnd::Complete);
    }
    let RunReport { numbers, .. } = &right.report;
    assert_eq!(numbers.pass_rate, Some(1.0));
    assert_eq!(wrong.report.numbers.pass_rate, Some(0.0));

    let shown = page.show("wrong", 2).await?;
    assert_eq!(shown.len(), 1);
    let document = serde_json::to_string(&shown).unwrap();
    assert!(document.contains("nothing"), "{document}");

    let comparison = page.compare(["right", "wrong"]).await?;
    assert_eq!(comparison.others.len(), 1);
    println!("{}", serde_json::to_string_pretty(&comparison).unwrap());
    Ok(())
}

fn write(root: &Utf8Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn workspace(root: &Utf8Path) {
    write(root, "rollouts/r/main.py", AGENT);
    let row = |n: u32| {
        format!(
            "{{\"user_prompt\": \"say w{n}\", \"system_prompt\": \"s\", \"ground_truth\": \"w{n}\"}}"
        )
    };
    write(root, "data/d.jsonl", &[0, 1, 2, 3].map(row).join("\n"));
    for (name, script) in [("right", RIGHT), ("wrong", WRONG)] {
        write(root, &format!("policies/{name}.toml"), script);
        let config = format!(
            "[experiment]\nrollout = \"r\"\nentrypoint = \"main.py\"\ndataset = \"d\"\n\
             model_path = \"script:policies/{name}.toml\"\n"
        );
        write(root, &format!("configs/eval/{name}.toml"), &config);
    }
}

fn main() -> ExitCode {
    if let Some(code) = osmosis_worker::guard::run_if_asked() {
        return code;
    }
    // What a test runner asks of a test.
    let arguments: Vec<String> = std::env::args().collect();
    let has = |argument: &str| arguments.iter().any(|a| a == argument);
    if has("--list") {
        if !has("--ignored") {
            println!("a_front_end_without_the_cli_evaluates_shows_and_compares: test");
        }
        return ExitCode::SUCCESS;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
    workspace(&root);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(use_the_page(&root)).unwrap();
    ExitCode::SUCCESS
}
