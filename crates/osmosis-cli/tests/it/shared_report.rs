//! `osmosis eval report`: a page and a comment that can be given to others.

use osmosis_testkit::python_environment;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace};

const HOSTILE: &str = "<script>alert(1)</script>";

/// Two rows pass, one doesn't, and one fails.
fn workspace() -> Workspace {
    let agent = PLAIN.replace(
        "class Plain(AgentWorkflow):\n    async def run(self, ctx):\n",
        "class Plain(AgentWorkflow):\n    async def run(self, ctx):\n        \
         if 'fail' in ctx.prompt[-1]['content']:\n            raise ValueError('<b>no</b>')\n",
    );
    let rows = format!(
        "{{\"user_prompt\": \"say 1\", \"ground_truth\": \"1\"}}\n\
         {{\"user_prompt\": \"say 2\", \"ground_truth\": \"2\"}}\n\
         {{\"user_prompt\": \"say {HOSTILE}\", \"ground_truth\": \"<b>3</b>\"}}\n\
         {{\"user_prompt\": \"say fail\", \"ground_truth\": \"4\"}}\n"
    );
    Workspace::new(&agent, ECHO_SCRIPT, &rows)
}

/// Without what is never the same.
fn steady(workspace: &Workspace, text: &str) -> String {
    let text = text.replace(workspace.root.as_str(), "/workspace");
    let lines = text.lines().map(|line| {
        if line.starts_with("| Agent time") {
            "| Agent time | … |".to_owned()
        } else {
            match line.split_once("begun 2") {
                Some((before, _)) => format!("{before}begun …"),
                None => line.to_owned(),
            }
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_report_is_one_page_without_scripts_and_markdown_for_a_comment() {
    let workspace = workspace();
    workspace.submit(&[]).expect(0);
    let ran = workspace
        .osmosis(&["eval", "report", "t", "--out", "out/report.html"])
        .expect(0);
    assert!(ran.stdout.contains("out/report.html"), "{}", ran.stdout);
    let page = workspace.read("out/report.html");
    assert!(!page.contains("<script"), "{page}");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(
        page.contains("&lt;b&gt;3&lt;/b&gt;"),
        "the ground truth is missing"
    );
    assert!(
        page.contains("ValueError: &lt;b&gt;no&lt;/b&gt;"),
        "the failure is missing"
    );
    for part in [
        "50.0%",
        "2 passed of 4 that ran",
        "<svg",
        "What the numbers mean",
    ] {
        assert!(page.contains(part), "no `{part}`");
    }
    let ran = workspace
        .osmosis(&["eval", "report", "t", "--markdown"])
        .expect(0);
    insta::assert_snapshot!(steady(&workspace, &ran.stdout));
}

#[test]
fn a_report_compares_with_a_baseline() {
    let workspace = workspace();
    workspace.submit(&[]).expect(0);
    workspace.write(
        "policies/p.toml",
        &ECHO_SCRIPT.replace("{word}", "{word} 2"),
    );
    let python = python_environment::python();
    let config = "configs/eval/c.toml";
    let submit = [
        "eval",
        "submit",
        config,
        "--name",
        "now",
        "--python",
        python.as_str(),
    ];
    workspace.osmosis(&submit).expect(0);
    let report = ["eval", "report", "now", "--compare", "t"];
    let ran = workspace
        .osmosis(&[&report[..], &["--out", "now.md"]].concat())
        .expect(0);
    assert!(ran.stdout.contains("now.md"));
    let comment = workspace.read("now.md");
    assert!(comment.contains("compared with `t`"), "{comment}");
    assert!(comment.contains("| Pass rate |"), "{comment}");
    let ran = workspace
        .osmosis(&[&report[..], &["--json"]].concat())
        .expect(0);
    let data = &ran.json()["data"];
    assert_eq!(data["comparison"]["first"]["run_name"], "t");
    assert_eq!(data["run"]["run_name"], "now");
    assert_eq!(data["lowest"].as_array().unwrap().len(), 2);
}

#[test]
fn secrets_are_not_in_a_report() {
    let agent = PLAIN.replace(
        "        return [*ctx.prompt, await ask(ctx.prompt)]",
        "        import os\n        \
         return [*ctx.prompt, {'role': 'assistant', 'content': 'key ' + os.environ['MY_TOKEN']}]",
    );
    let rows = "{\"user_prompt\": \"say 1\", \"ground_truth\": \"1\"}\n";
    let mut workspace = Workspace::new(&agent, ECHO_SCRIPT, rows);
    workspace.config("[secrets]\nrequired = [\"MY_TOKEN\"]\n");
    workspace.variable("MY_TOKEN", "tok-5f8c2d9ab1");
    workspace.submit(&[]).expect(0);
    for arguments in [&["--out", "-"][..], &["--markdown"], &["--json"]] {
        let report = [&["eval", "report", "t"][..], arguments].concat();
        let ran = workspace.osmosis(&report).expect(0);
        assert!(ran.stdout.contains("key "), "{}", ran.stdout);
        assert!(!ran.stdout.contains("tok-5f8c2d9ab1"), "{}", ran.stdout);
    }
}

#[test]
fn gates_are_in_the_report_and_decide_the_exit_code() {
    let workspace = workspace();
    workspace.submit(&[]).expect(0);
    let report = |limit: &str, more: &[&str]| {
        let arguments = ["eval", "report", "t", "--fail-under", limit];
        workspace.osmosis(&[&arguments[..], more].concat())
    };
    let below = report("pass_rate=0.8", &["--markdown"]).expect(4);
    assert!(
        below
            .stdout
            .contains("**Gate failed**\n\n- failed: pass\\_rate 0.5 is below 0.8\n"),
        "{}",
        below.stdout
    );
    report("pass_rate=0.5", &["--out", "report.html"]).expect(0);
    let page = workspace.read("report.html");
    assert!(
        page.contains("Gate passed: pass_rate 0.5 reaches 0.5"),
        "{page}"
    );
    let document = report("pass_rate=0.8", &["--json"]).expect(4).json();
    assert_eq!(document["data"]["run"]["gates"][0]["holds"], false);
    report("pass@3=0.8", &[]).expect(2);
}
