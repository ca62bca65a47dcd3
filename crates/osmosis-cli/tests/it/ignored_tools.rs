//! Tools of an agent whose model has a chat template that knows none: an error that ends the run, and the ways out.

use insta::assert_snapshot;
use osmosis_policy::EmbeddedModel;

use crate::gateway_command::Serving;
use crate::workspace::{AGENT, ECHO_SCRIPT, PLAIN, Workspace, echo_rows, product_rows};

/// Knows nothing of tools.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A workspace with a model that has this template.
fn workspace(main: &str, rows: &str) -> Workspace {
    let workspace = Workspace::new(main, ECHO_SCRIPT, rows);
    EmbeddedModel::builtin("tiny")
        .unwrap()
        .save(&workspace.root.join("smol"))
        .unwrap();
    workspace.write("smol/chat_template.jinja", TEMPLATE);
    workspace.model("./smol", "");
    workspace
}

#[test]
fn the_first_call_with_tools_ends_an_evaluation_with_the_ways_out() {
    let workspace = workspace(AGENT, &product_rows(8));
    let ran = workspace.submit(&["--plain"]).expect(1);
    let (_, error) = ran.stderr.split_once("error: ").unwrap();
    assert_snapshot!(format!("error: {error}"), @r#"
    error: the chat template of `./smol` ignores `tools`: multiply
    hint: write `tool_format = "hermes"` in [experiment] to put the tools into the system message, or `chat_template = "FILE"` to use a template that renders `tools`. Then start the run again: with `--fresh` if it has the same `--name`
    "#);
    assert!(!ran.stdout.contains("pass rate"), "{}", ran.stdout);
    let outcomes = workspace.outcomes();
    assert!(
        outcomes
            .iter()
            .all(|outcome| outcome == "infrastructure_failed"),
        "{outcomes:?}"
    );
    let error = workspace.submit(&["--fresh", "--json"]).expect(1).error();
    assert_eq!(error["code"], "tools_ignored");
}

#[test]
fn the_first_call_with_tools_ends_a_training_likewise() {
    for staleness in [0, 1] {
        let workspace = workspace(AGENT, &product_rows(4));
        let training = format!("steps = 2\nmax_staleness = {staleness}");
        workspace.training("./smol", &training, "");
        let error = workspace.train(&["--json"]).expect(1).error();
        assert_eq!(error["code"], "tools_ignored", "{error}");
        assert_eq!(
            error["message"],
            "the chat template of `./smol` ignores `tools`: multiply"
        );
    }
}

#[test]
fn an_agent_without_tools_still_runs() {
    let workspace = workspace(PLAIN, &echo_rows(2));
    workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 2]);
}

#[test]
fn the_hermes_format_offers_the_tools_and_is_pinned() {
    let workspace = workspace(AGENT, &product_rows(2));
    workspace.model("./smol", "tool_format = \"hermes\"\n");
    workspace.submit(&[]).expect(0);
    for without in ["", "chat_template = \"other.jinja\"\n"] {
        workspace.write("other.jinja", TEMPLATE);
        workspace.model("./smol", without);
        let error = workspace.submit(&["--json"]).expect(1).error();
        assert_eq!(error["code"], "run_pinned", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("experiment.tool_format: was \"hermes\""),
            "{message}"
        );
    }
    // Only a step with rewards that differ makes a checkpoint.
    let main = AGENT.replace(
        "ctx.set_reward(",
        "import random\n        ctx.set_reward(random.random() + ",
    );
    workspace.write("rollouts/r/main.py", &main);
    workspace.training("./smol", "steps = 1", "");
    let config = workspace.read("configs/training/c.toml");
    let config = config.replace("[training]", "tool_format = \"hermes\"\n[training]");
    workspace.write("configs/training/c.toml", &config);
    workspace.train(&["--json"]).expect(0);

    // The checkpoint keeps it: without the key its tools are offered as they were in training.
    workspace.model("run:t@latest", "");
    workspace.submit(&["--fresh"]).expect(0);
    // A template that is chosen instead decides itself, and this one shows none.
    workspace.write("other.jinja", TEMPLATE);
    workspace.model("run:t@latest", "chat_template = \"other.jinja\"\n");
    let error = workspace.submit(&["--fresh", "--json"]).expect(1).error();
    assert_eq!(error["code"], "tools_ignored", "{error}");
}

#[test]
fn another_template_is_used_instead_of_the_models_own_and_is_pinned_by_its_text() {
    let workspace = workspace(AGENT, &product_rows(2));
    let with_tools = format!("{{{{ tools | tojson if tools }}}}{TEMPLATE}");
    workspace.write("templates/tools.jinja", &with_tools);
    workspace.model("./smol", "chat_template = \"templates/tools.jinja\"\n");
    workspace.submit(&[]).expect(0);
    workspace.write("templates/tools.jinja", &format!("{with_tools} "));
    let error = workspace.submit(&["--json"]).expect(1).error();
    assert_eq!(error["code"], "run_pinned", "{error}");

    workspace.write("templates/tools.jinja", TEMPLATE);
    let error = workspace.submit(&["--json", "--fresh"]).expect(1).error();
    assert_eq!(
        error["message"],
        "the chat template `templates/tools.jinja` ignores `tools`: multiply"
    );
    workspace.write("templates/tools.jinja", "{% if %}");
    let error = workspace.submit(&["--json", "--fresh"]).expect(1).error();
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("chat_template `templates/tools.jinja`: "),
        "{message}"
    );
    workspace.model("./smol", "chat_template = \"templates/none.jinja\"\n");
    let ran = workspace.submit(&["--plain", "--fresh"]).expect(1);
    assert!(
        ran.stderr
            .contains("chat_template `templates/none.jinja`: No such file"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("a path from the workspace"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_hostile_template_that_was_chosen_is_tried_out_like_any_other() {
    let workspace = workspace(PLAIN, &echo_rows(1));
    workspace.write(
        "evil.jinja",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    );
    workspace.model("./smol", "chat_template = \"evil.jinja\"\n");
    let error = workspace.submit(&["--json"]).expect(1).error();
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("take more than 1024 MiB of memory"),
        "{message}"
    );
    assert!(
        message.starts_with("chat_template `evil.jinja`: "),
        "{message}"
    );
}

#[test]
fn what_would_change_nothing_is_refused() {
    let mut workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    workspace.config("tool_format = \"hermes\"\n");
    let ran = workspace.submit(&["--plain"]).expect(1);
    assert!(
        ran.stderr.contains(
            "c.toml:6:1: `tool_format` in `[experiment]`: a scripted policy renders no prompts"
        ),
        "{}",
        ran.stderr
    );
    workspace.variable("OPENAI_BASE_URL", "http://127.0.0.1:1/v1");
    workspace.model("some-model", "tool_format = \"hermes\"\n");
    let ran = workspace.submit(&["--plain"]).expect(1);
    assert!(
        ran.stderr
            .contains("`tool_format` is set, and the model server renders the prompts itself"),
        "{}",
        ran.stderr
    );
}

const ASKS_WITH_TOOLS: &str = r#"
import json, openai
tool = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
try:
    reply = openai.OpenAI(max_retries=0).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], tools=[tool], max_tokens=4
    )
    print(json.dumps({"status": 200, "prompt_tokens": reply.usage.prompt_tokens}))
except openai.BadRequestError as error:
    print(json.dumps({"status": 400, "code": error.code, "param": error.param, "message": error.body["message"]}))
"#;

#[test]
fn the_gateway_answers_a_call_with_ignored_tools_with_400_and_has_the_same_ways_out() {
    let workspace = workspace(PLAIN, &echo_rows(1));
    let ask = |more: &[&str]| {
        let serving = Serving::start(&workspace, &[&["--model", "./smol"], more].concat());
        let answer = serving.client(ASKS_WITH_TOOLS);
        serving.stop().expect(0);
        answer
    };
    let refused = ask(&[]);
    assert_eq!(refused["status"], 400, "{refused}");
    assert_eq!(
        (&refused["code"], &refused["param"]),
        (&"tools_ignored".into(), &"tools".into())
    );
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("/smol` ignores `tools`: search"),
        "{message}"
    );
    assert!(message.contains("--tool-format hermes"), "{message}");
    let answered = ask(&["--tool-format", "hermes"]);
    assert_eq!(answered["status"], 200, "{answered}");
    workspace.write(
        "t.jinja",
        &format!("{{{{ tools | tojson if tools }}}}{TEMPLATE}"),
    );
    assert_eq!(ask(&["--chat-template", "t.jinja"])["status"], 200);
}
