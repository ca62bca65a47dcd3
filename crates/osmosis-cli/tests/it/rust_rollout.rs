//! Agents written in Rust: built by cargo, with the same outcomes and deadlines as Python's.

use crate::judge::regrade_json;
use crate::workspace::{ECHO_SCRIPT, Workspace, echo_rows};

/// What row N does depends on N.
const MAIN: &str = r#"
use osmosis_sdk::{AgentWorkflow, Grader, GraderContext, Result, WorkflowContext, WorkflowOutput};

#[derive(serde::Deserialize)]
struct Settings { greeting: String }

struct Agent;

impl AgentWorkflow for Agent {
    type Config = Settings;

    async fn run(&self, ctx: &WorkflowContext<Settings>) -> Result<WorkflowOutput> {
        ctx.log(&ctx.config().greeting);
        let said = ctx.user_prompt().unwrap_or_default()[4..].to_owned();
        match said.as_str() {
            "1" => return Err("on purpose".into()),
            "2" => panic!("at the disco"),
            "3" => std::future::pending().await,
            "4" => std::process::abort(),
            "5" => return Ok(().into()),
            "6" => return Ok(WorkflowOutput::rejected("not today")),
            "9" => std::process::exit(3),
            _ => {}
        }
        let mut messages = ctx.prompt().to_vec();
        messages.push(serde_json::json!({"role": "assistant", "content": said}));
        Ok(messages.into())
    }
}

struct Exact;

impl Grader for Exact {
    type Config = ();

    async fn grade(&self, ctx: &GraderContext) -> Result<()> {
        let answer = ctx.sample()?.final_text().unwrap_or_default();
        if answer == "7" {
            return Err("no grade for seven".into());
        }
        ctx.set_reward(Some(answer.as_str()) == ctx.label())?;
        Ok(())
    }
}

fn main() {
    osmosis_sdk::run_worker(Agent, Exact)
}
"#;

fn workspace() -> Workspace {
    let mut workspace = Workspace::new("", ECHO_SCRIPT, &echo_rows(10));
    let sdk = concat!(env!("CARGO_MANIFEST_DIR"), "/../osmosis-sdk");
    workspace.write(
        "rollouts/r/Cargo.toml",
        &format!(
            "[package]\nname = \"agent\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\n\
             osmosis-sdk = {{ path = \"{sdk}\" }}\nserde = {{ version = \"1\", features = [\"derive\"] }}\n\
             serde_json = \"1\"\n[workspace]\n"
        ),
    );
    workspace.write("rollouts/r/src/main.rs", MAIN);
    configure(&workspace, "[workflow]\ngreeting = \"hello from Rust\"\n");
    // One target folder for all tests here, so that dependencies are built once.
    let target = concat!(env!("CARGO_TARGET_TMPDIR"), "/rust-rollouts");
    workspace.variable("CARGO_TARGET_DIR", target);
    workspace
}

fn configure(workspace: &Workspace, more: &str) {
    workspace.write(
        "configs/eval/c.toml",
        &format!(
            "[experiment]\nrollout = \"r\"\nentrypoint = \"Cargo.toml\"\ndataset = \"d\"\n\
             model_path = \"script:policies/p.toml\"\n[evaluation]\nagent_workflow_timeout_s = 3\n{more}"
        ),
    );
}

#[test]
fn a_rust_agent_has_the_same_outcomes_as_a_python_one() {
    let workspace = workspace();
    workspace.submit(&[]).expect(0);
    assert_eq!(
        workspace.outcomes(),
        [
            "scored",
            "agent_failed",
            "agent_failed",
            "timed_out",
            "agent_failed",
            "agent_failed",
            "rejected",
            "ungraded",
            "scored",
            "agent_failed"
        ]
    );
    let index = workspace.index();
    for (row, part) in [
        (1, "on purpose"),
        (2, "at the disco"),
        (3, "agent phase passed its deadline of 3 s"),
        (4, "SIGABRT"),
        (5, "sample"),
        (6, "not today"),
        (7, "no grade for seven"),
        (9, "exited with code 3, and nothing else ran in it"),
    ] {
        let error = index[row]["error"].as_str().unwrap();
        assert!(error.contains(part), "row {row}: no `{part}` in `{error}`");
    }
    assert_eq!(index[8]["reward"], 1.0);
    let logs = workspace.read(".osmosis/evals/t/logs.txt");
    assert!(logs.contains("r8-0 agent | hello from Rust"), "{logs}");

    // Another grader over the same samples, which has a judge.
    let seven = "return Err(\"no grade for seven\".into());";
    let judged = "assert!(ctx.judge().unwrap().base_url.ends_with(\"/v1\"));";
    let main = MAIN.replace(seven, judged);
    workspace.write("rollouts/r/src/main.rs", &main);
    let greeting = "[workflow]\ngreeting = \"hello from Rust\"\n";
    let judge = "[grader]\njudge_model = \"script:policies/p.toml\"\n";
    configure(&workspace, &format!("{greeting}{judge}"));
    let resource = regrade_json(&workspace, "t", &["--name", "u"]);
    assert_eq!(resource["flips"]["fixed"], 1, "{resource:#}");
    assert_eq!(resource["flips"]["unchanged"], 9);
    assert_eq!(resource["outcomes"]["timed_out"], 1);
}

#[test]
fn a_config_that_does_not_fit_and_a_build_that_fails_are_told_before_anything_runs() {
    let workspace = workspace();
    configure(&workspace, "[workflow]\ngreeting = 7\n");
    let ran = workspace.submit(&[]).expect(1);
    assert!(ran.stderr.contains("greeting"), "{}", ran.stderr);

    workspace.write(
        "rollouts/r/src/main.rs",
        "fn main() { let x: u32 = \"text\"; }",
    );
    let ran = workspace.submit(&[]).expect(1);
    assert!(ran.stderr.contains("mismatched types"), "{}", ran.stderr);
    assert!(ran.stderr.contains("src/main.rs:1"), "{}", ran.stderr);
}

#[test]
fn rollout_init_makes_a_rust_agent_that_runs() {
    let workspace = workspace();
    workspace
        .osmosis(&["rollout", "init", "hello", "--framework", "rust"])
        .expect(0);
    let ran = workspace
        .osmosis(&["eval", "submit", "configs/eval/hello.toml", "--json"])
        .expect(0);
    let resource = ran.json()["resource"].clone();
    assert_eq!(resource["outcomes"]["scored"], 6, "{resource:#}");
    assert_eq!(resource["pass_rate"], 1.0);
    assert_eq!(resource["model_calls"], 6);
}
