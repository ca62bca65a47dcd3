//! What a run says while it goes on, to programs.

use serde_json::Value;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

const SECRET: &str = "hunter2-hunter2";

fn check(lines: &str) {
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    assert!(
        lines
            .iter()
            .all(|line| line["schema_version"] == 1 && line["at_ms"].is_u64())
    );
    assert_eq!(lines[0]["event"], "began");
    assert_eq!(lines[0]["total"], 3);
    assert_eq!((of("began"), of("finished"), of("ended")), (1, 3, 1));
    let last = lines.last().unwrap();
    assert_eq!(last["event"], "ended");
    assert_eq!(
        (&last["done"], &last["passed"], &last["failed"]),
        (&3.into(), &2.into(), &1.into())
    );
    let failed = lines
        .iter()
        .find(|line| line["outcome"] == "agent_failed")
        .unwrap();
    assert!(
        failed["error"].as_str().unwrap().contains("[redacted]"),
        "{failed}"
    );
}

#[test]
fn events_come_as_json_lines_to_a_file_or_to_standard_error() {
    let main = PLAIN.replace(
        "    async def run(self, ctx):\n",
        "    async def run(self, ctx):\n        import os\n        if ctx.prompt[-1]['content'] == 'say 2':\n            raise ValueError(os.environ['AGENT_KEY'])\n",
    );
    let mut workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(3));
    workspace.config("[secrets]\nrequired = [\"AGENT_KEY\"]\n");
    workspace.variable("AGENT_KEY", SECRET);
    let ran = workspace
        .submit(&["--progress", "ndjson:p.jsonl"])
        .expect(0);
    let text = workspace.read("p.jsonl");
    check(&text);
    assert!(!text.contains(SECRET) && !ran.stderr.contains("\"event\""));

    let again = ["--json", "--progress", "ndjson", "--fresh"];
    let ran = workspace.submit(&again).expect(0);
    check(&ran.stderr);
    assert!(ran.json()["resource"].is_object());
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    workspace.osmosis(&["man", "man1"]).expect(0);
    let page = workspace.read("man1/osmosis-eval-submit.1");
    assert!(
        page.contains("fail\\-under") && page.contains("Example:"),
        "{page}"
    );
    assert!(workspace.root.join("man1/osmosis.1").exists());
}
