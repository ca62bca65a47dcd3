//! `osmosis rollout run`: one row in the foreground, with the debugger on a real terminal.

use std::process::Command;

use camino::Utf8PathBuf;
use osmosis_testkit::python_environment;

use crate::workspace::{
    AGENT, ECHO_SCRIPT, PLAIN, Ran, TOOL_SCRIPT, Workspace, echo_rows, product_rows,
};

fn run_row(workspace: &Workspace, more: &[&str]) -> Ran {
    let python = python_environment::python();
    run_row_with(workspace, &python, more)
}

fn run_row_with(workspace: &Workspace, python: &Utf8PathBuf, more: &[&str]) -> Ran {
    let mut arguments = vec!["rollout", "run", "r", "--python", python.as_str()];
    arguments.extend(more);
    workspace.osmosis(&arguments)
}

/// The command on a terminal, where these lines are typed at the debugger's prompts.
fn debug_row(workspace: &Workspace, typed: &[&str], more: &[&str]) -> Ran {
    let python = python_environment::python();
    let plain = workspace.command(&[]);
    let mut command = Command::new(&python);
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/debugger.py"))
        .arg(typed.join("|"))
        .arg(env!("CARGO_BIN_EXE_osmosis"))
        .args(["rollout", "run", "r", "--row", "1", "--pdb"])
        .args(["--python", python.as_str()])
        .args(more)
        .current_dir(&workspace.root);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // No line editing, whose control characters depend on the machine.
    command.env("TERM", "dumb").env("NO_COLOR", "1");
    Ran::of(&command.output().unwrap())
}

#[track_caller]
fn assert_in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let Some(at) = rest.find(part) else {
            panic!("no `{part}` (in this order) in\n{text}");
        };
        rest = &rest[at + part.len()..];
    }
}

/// The screen without what differs from time to time: times, and numbers of tokens.
fn stable(text: &str) -> String {
    let is_number = |word: &str| word.trim_start_matches('<').parse::<f64>().is_ok();
    let shown = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut shown: Vec<&str> = vec![];
        for (index, word) in words.iter().copied().enumerate() {
            let next = words
                .get(index + 1)
                .map_or("", |next| next.trim_end_matches(')'));
            let masked = match next {
                "ms" | "s" if is_number(word) => "N",
                "tokens" => "T",
                _ => word,
            };
            shown.push(masked);
        }
        shown.join(" ").replace(" ms", " s")
    };
    text.lines().map(shown).collect::<Vec<_>>().join("\n")
}

/// What is seen of row 1, without times, numbers of tokens and the lines of calls.
const SCREEN: &str = r#"         row  {"user_prompt":"What is 4 times 7?","ground_truth":"28"}

agent
        user  What is 4 times 7?
   tool call  multiply({"a":4,"b":7})
 tool result  28
   assistant  The answer is 28 .

grader

result
      sample  calc · reward 1
     outcome  scored: reward 1, passed
      effort  2 model calls · T tokens · agent N s (model N s) · grader N s

Nothing was recorded; `--record NAME` keeps a run.
"#;

#[test]
fn one_row_of_an_openai_agents_project_is_told_as_it_goes_and_nothing_is_recorded() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(3));
    workspace.config("[evaluation]\nn = 3\nlimit = 1\n");
    let ran = run_row(&workspace, &["--row", "1", "--plain"]).expect(0);
    // When a line is printed is known a little sooner or later than the calls around it; calls that end soon after each
    // other are told together.
    let (calls, lines): (Vec<&str>, Vec<&str>) = ran
        .stdout
        .lines()
        .partition(|line| line.trim_start().starts_with("call "));
    let of_model = " · script:policies/p.toml · 200 · ";
    assert_eq!(calls.len(), 2, "{}", ran.stdout);
    assert!(
        calls.iter().all(|call| call.contains(of_model)),
        "{calls:?}"
    );
    let (printed, told): (Vec<&str>, Vec<&str>) = lines
        .into_iter()
        .partition(|line| line.trim_start().starts_with("printed"));
    assert_eq!(printed, ["     printed  multiplying 4 and 7"]);
    assert_eq!(stable(&told.join("\n")), SCREEN.trim_end());
    assert!(!workspace.root.join(".osmosis").exists());
    let left: Vec<_> = workspace
        .root
        .read_dir_utf8()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_owned())
        .filter(|name| name.starts_with("osmosis-row"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn one_row_of_a_strands_project_is_told_as_it_goes() {
    let agent = r#"
from osmosis_ai.rollout import AgentWorkflow, Grader
from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent
from strands import tool

@tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b

class Multiply(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisStrandsAgent(
            name="calc", model=OsmosisRolloutModel(), tools=[multiply], messages=ctx.prompt,
            callback_handler=None,
        )
        await agent.invoke_async()

class Exact(Grader):
    async def grade(self, ctx):
        print("grading", ctx.label)
        ctx.set_reward(1.0 if ctx.label in str(ctx.sample.messages[-1]["content"]) else 0.0)
"#;
    let workspace = Workspace::new(agent, TOOL_SCRIPT, &product_rows(3));
    let python = python_environment::strands_python();
    let ran = run_row_with(&workspace, &python, &["--row", "1"]).expect(0);
    assert_in_order(
        &ran.stdout,
        &[
            "agent\n",
            "What is 4 times 7?",
            "multiply(",
            "The answer is 28 .",
            "grader\n",
            "grading 28",
            "sample  calc · reward 1",
            "scored: reward 1, passed",
        ],
    );
}

#[test]
fn one_row_of_an_areal_workflow_takes_the_whole_row() {
    let agent = r#"
from openai import AsyncOpenAI
from areal.api.reward_api import AsyncRewardWrapper

def exact(answer, expected):
    return float(expected in answer)

class Obedient:
    def __init__(self):
        self.reward = AsyncRewardWrapper(exact)

    async def run(self, data, **extra):
        print("asking", data["ask"])
        client = AsyncOpenAI(base_url=extra["base_url"], api_key=extra["api_key"])
        reply = await client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": data["ask"]}]
        )
        return await self.reward(reply.choices[0].message.content, data["expected"])
"#;
    let rows = "{\"ask\": \"a?\", \"expected\": \"41\"}\n{\"ask\": \"b?\", \"expected\": \"42\"}\n";
    let workspace = Workspace::new(agent, "[[reply]]\ntext = \"It is 42\"\n", rows);
    let named = ["--row", "1", "--entrypoint", "main.py:Obedient"];
    let ran = run_row(&workspace, &named).expect(0);
    assert_in_order(
        &ran.stdout,
        &[
            "asking b?",
            "It is 42",
            "sample  main · reward 1",
            "scored: reward 1, passed",
        ],
    );
}

#[test]
fn a_failing_agent_ends_with_its_traceback_and_exit_code_1() {
    let broken = PLAIN.replace(
        "        return [*ctx.prompt",
        "        reply = await ask(ctx.prompt)\n        raise LookupError('nothing here')\n        \
         return [*ctx.prompt",
    );
    let workspace = Workspace::new(&broken, ECHO_SCRIPT, &echo_rows(3));
    let ran = run_row(&workspace, &["--row", "2"]).expect(1);
    assert_in_order(
        &ran.stdout,
        &[
            "say 2",
            "agent failed",
            "LookupError: nothing here",
            "Nothing was recorded",
        ],
    );
}

#[test]
fn json_is_one_envelope_with_the_rollout_in_it() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(3));
    let told = run_row(&workspace, &["--row", "2", "--json"])
        .expect(0)
        .json();
    assert_eq!(told["operation"], "rollout run");
    assert_eq!(told["status"], "scored");
    let resource = &told["resource"];
    assert_eq!(resource["run_name"], serde_json::Value::Null);
    assert_eq!(resource["rollout"]["reward"], 1.0);
    assert_eq!(resource["rollout"]["ground_truth"]["label"], "2");
    assert_eq!(resource["rollout"]["calls"][0]["status"], 200);
}

#[test]
fn a_run_is_recorded_where_a_name_asks_for_it_and_can_be_shown() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(3));
    let ran = run_row(&workspace, &["--row", "2", "--record", "kept"]).expect(0);
    assert!(
        ran.stdout.contains("eval show kept 2 --calls"),
        "{}",
        ran.stdout
    );
    let shown = workspace.osmosis(&["eval", "show", "kept", "2"]).expect(0);
    assert!(shown.stdout.contains("reward 1"), "{}", shown.stdout);
    let again = run_row(&workspace, &["--row", "2", "--record", "kept"]).expect(1);
    assert!(
        again.stderr.contains("choose another name"),
        "{}",
        again.stderr
    );
}

#[test]
fn dataset_and_model_are_enough_without_a_config() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(3));
    std::fs::remove_file(workspace.root.join("configs/eval/c.toml")).unwrap();
    let ran = run_row(&workspace, &["--row", "1"]).expect(2);
    assert!(
        ran.stderr.contains("give `--dataset` and `--model`"),
        "{}",
        ran.stderr
    );
    let given = [
        "--row",
        "1",
        "--dataset",
        "d",
        "--model",
        "script:policies/p.toml",
    ];
    run_row(&workspace, &given).expect(0);
    let beyond = [
        "--row",
        "7",
        "--dataset",
        "d",
        "--model",
        "script:policies/p.toml",
    ];
    let ran = run_row(&workspace, &beyond).expect(2);
    assert!(ran.stderr.contains("there is no row 7"), "{}", ran.stderr);
}

#[test]
fn several_configs_of_a_project_are_told_apart_by_name() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(3));
    let config = workspace.read("configs/eval/c.toml");
    workspace.write("configs/eval/other.toml", &config);
    let ran = run_row(&workspace, &["--row", "1"]).expect(2);
    assert!(ran.stderr.contains("c.toml, other.toml"), "{}", ran.stderr);
    run_row(
        &workspace,
        &["--row", "1", "--config", "configs/eval/other.toml"],
    )
    .expect(0);
}

#[test]
fn the_debugger_needs_a_terminal() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(3));
    let ran = run_row(&workspace, &["--row", "1", "--pdb"]).expect(2);
    assert!(
        ran.stderr
            .contains("`--pdb` needs a terminal, and standard input is none"),
        "{}",
        ran.stderr
    );
    let ran = run_row(&workspace, &["--row", "1", "--pdb", "--json"]).expect(2);
    assert!(ran.error()["message"].to_string().contains("--json"));
}

#[test]
fn an_agent_that_raises_opens_the_debugger_in_its_frame() {
    let broken = AGENT.replace(
        "        await Runner.run(agent, ctx.prompt, session=session)",
        "        result = await Runner.run(agent, ctx.prompt, session=session)\n        \
         secret = 'found ' + 'me'\n        assert result.final_output == 'no'",
    );
    let workspace = Workspace::new(&broken, TOOL_SCRIPT, &product_rows(3));
    let typed = ["p secret", "p result.final_output", "q"];
    let ran = debug_row(&workspace, &typed, &[]).expect(1);
    // Before the debugger opens, or a moment later on a slow machine.
    assert!(ran.stdout.contains("multiplying 4 and 7"), "{}", ran.stdout);
    assert_in_order(
        &ran.stdout,
        &[
            "AssertionError",
            "(Pdb) ",
            "'found me'",
            "(Pdb) ",
            "'The answer is 28 .'",
            "(Pdb) ",
            "agent failed",
        ],
    );
}

#[test]
fn a_grader_that_raises_opens_the_debugger_and_ctrl_c_stays_in_it() {
    let broken = PLAIN.replace(
        "        ctx.set_reward(",
        "        wanted = {'at': ctx.label}\n        wanted['nowhere']\n        ctx.set_reward(",
    );
    let workspace = Workspace::new(&broken, ECHO_SCRIPT, &echo_rows(3));
    let ran = debug_row(&workspace, &["^C", "p wanted", "q"], &[]).expect(1);
    assert_in_order(
        &ran.stdout,
        &[
            "KeyError: 'nowhere'",
            "(Pdb) ",
            "(Pdb) ",
            "{'at': '1'}",
            "ungraded",
        ],
    );
}

#[test]
fn a_breakpoint_stops_the_agent_which_then_goes_on() {
    let stopping = PLAIN.replace(
        "        return [*ctx.prompt",
        "        here = 'at the breakpoint'\n        breakpoint()\n        return [*ctx.prompt",
    );
    let workspace = Workspace::new(&stopping, ECHO_SCRIPT, &echo_rows(3));
    let ran = debug_row(&workspace, &["p here", "c"], &[]).expect(0);
    assert_in_order(
        &ran.stdout,
        &[
            "(Pdb) ",
            "'at the breakpoint'",
            "(Pdb) ",
            "scored: reward 1, passed",
        ],
    );
}
