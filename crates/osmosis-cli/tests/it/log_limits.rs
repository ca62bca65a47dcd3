//! `logs.txt` is bounded, and says what was cut.

use crate::workspace::{ECHO_SCRIPT, Workspace, echo_rows};

/// The first row prints 40 MB, in lines and in one that never ends, and has a subprocess print as much; the others
/// print a line.
const FLOODS: &str = r#"
import subprocess, sys
from osmosis_ai.rollout import AgentWorkflow, Grader

class Floods(AgentWorkflow):
    async def run(self, ctx):
        if ctx.prompt[0]["content"] == "say 0":
            for _ in range(20):
                print(("flood " * 100 + "\n") * 1700, end="")
            sys.stderr.write("endless " * 2_500_000)
            subprocess.run("yes of a subprocess | head -c 20000000", shell=True, check=True)
        print("said by", ctx.prompt[0]["content"])
        return ctx.prompt

class Any(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"#;

#[test]
fn one_rollout_can_not_fill_the_disk_and_its_neighbours_are_still_heard() {
    let workspace = Workspace::new(FLOODS, ECHO_SCRIPT, &echo_rows(3));
    workspace.submit(&["--max-in-flight", "1"]).expect(0);
    let logs = workspace.read(".osmosis/evals/t/logs.txt");
    // A rollout's own output, and what could not be attributed.
    assert!(logs.len() < 5 * 1024 * 1024, "{}", logs.len());
    let of = |source: &str, text: &str| {
        let source = format!(" {source} | ");
        logs.lines()
            .filter(|line| line.contains(&source) && line.contains(text))
            .count()
    };
    assert_eq!(of("r0-0", "log limit of 1,048,576 bytes reached"), 1);
    assert_eq!(of("r0-0", "were not kept"), 1);
    assert_eq!(of("r0-0", "scored: reward 1"), 1, "our own lines are kept");
    assert_eq!(of("r1-0 agent", "said by say 1"), 1);
    assert_eq!(of("r2-0 agent", "said by say 2"), 1);
    assert!(of("run", "were not kept") == 1, "of the subprocess");
    assert!(logs.lines().all(|line| line.len() < 70_000));
}

#[test]
fn the_limits_are_settings_and_no_part_of_what_a_run_is() {
    let workspace = Workspace::new(FLOODS, ECHO_SCRIPT, &echo_rows(2));
    workspace.config("[logs]\nmax_bytes_per_rollout = 1000\nmax_bytes_per_run = 100000\n");
    workspace.submit(&["--rows", "0"]).expect(0);
    let logs = workspace.read(".osmosis/evals/t/logs.txt");
    assert!(logs.len() < 5000, "{}", logs.len());
    assert!(logs.contains("log limit of 1,000 bytes reached"), "{logs}");
    workspace.config("[logs]\nmax_bytes_per_rollout = 2000\n");
    workspace.submit(&["--rows", "0"]).expect(0);
}
