//! `eval compare`, and failures that are put together.

use osmosis_testkit::python_environment;
use serde_json::Value;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

/// Answers wrongly where the number ends in 7.
const SEVENS_WRONG: &str = r#"
[[reply]]
when.last_user = 'say \d*7$'
text = "wrong"

[[reply]]
when.last_user = 'say (?<word>\S+)'
text = "{word}"
"#;

fn submit(workspace: &Workspace, name: &str, more: &[&str]) -> Value {
    let python = python_environment::python();
    let mut arguments = vec![
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--name",
        name,
        "--json",
    ];
    arguments.extend(["--python", python.as_str()]);
    arguments.extend(more);
    workspace.osmosis(&arguments).expect(0).json()["resource"].clone()
}

fn compare(workspace: &Workspace, arguments: &[&str]) -> Ran {
    workspace.osmosis(&[&["eval", "compare"], arguments].concat())
}

/// The comparison of two runs, of the `--json` document.
fn compared(workspace: &Workspace, arguments: &[&str]) -> Value {
    let ran = compare(workspace, &[arguments, &["--json"]].concat()).expect(0);
    ran.json()["data"]["others"][0].clone()
}

/// Without what differs between any two runs: names and times.
fn timeless(mut numbers: Value) -> Value {
    let map = numbers.as_object_mut().unwrap();
    // The worst rows come with commands that name the run.
    for key in [
        "run_name",
        "output_path",
        "durations",
        "duration_ms",
        "worst_rows",
    ] {
        assert!(map.remove(key).is_some(), "{key}");
    }
    numbers
}

#[test]
fn the_same_run_twice_shows_no_difference_and_a_planted_improvement_is_found() {
    let workspace = Workspace::new(PLAIN, SEVENS_WRONG, &echo_rows(80));
    let first = submit(&workspace, "first", &[]);
    let again = submit(&workspace, "again", &["--max-in-flight", "3"]);
    assert_eq!(timeless(first.clone()), timeless(again));
    assert_eq!(first["passed"], 72, "{first}");

    let ran = compare(&workspace, &["first", "again", "--plain"]).expect(0);
    assert!(
        ran.stdout
            .contains("No difference: all 80 compared rows have the same passes and rewards."),
        "{}",
        ran.stdout
    );
    let same = compared(&workspace, &["first", "again"]);
    assert_eq!(same["verdict"], "no_difference");
    assert_eq!(same["finding"], "identical");
    assert!(
        ran.stdout.contains("failures    0 of 80 → 0 of 80\n"),
        "{}",
        ran.stdout
    );
    assert_eq!(same["pass_rate"]["p"], 1.0);
    assert_eq!(same["pass_rate"]["ci95"], Value::Null);
    assert_eq!(same["fixed"]["count"], 0);
    assert_eq!(same["differences"], serde_json::json!([]));

    workspace.write("policies/p.toml", ECHO_SCRIPT);
    submit(&workspace, "better", &[]);
    let ran = compare(&workspace, &["first", "better", "--plain"]).expect(0);
    assert!(
        ran.stdout
            .contains("`better` is better: pass rate +10.0 points"),
        "{}",
        ran.stdout
    );
    for row in [7, 17, 27, 37, 47, 57, 67, 77] {
        let command = format!("osmosis eval show better {row}\n");
        assert!(ran.stdout.contains(&command), "{command}{}", ran.stdout);
    }
    let found = compared(&workspace, &["first", "better"]);
    assert_eq!(found["verdict"], "better");
    assert_eq!(found["fixed"]["rows"], "7,17,27,37,47,57,67,77");
    assert_eq!(found["broken"]["count"], 0);
    // 8 rows for the better and none for the worse: 2 / 2^8.
    let p = found["pass_rate"]["p"].as_f64().unwrap();
    assert!((p - 2.0 / 256.0).abs() < 1e-12, "{p}");
    assert_eq!(found["pass_rate"]["test"], "mcnemar_exact");
    assert_eq!(found["differences"][0]["fact"], "model");

    let back = compared(&workspace, &["better", "first"]);
    assert_eq!(
        (&back["verdict"], &back["broken"]["count"]),
        (&"worse".into(), &8.into())
    );

    let three = compare(&workspace, &["first", "again", "better", "--json"])
        .expect(0)
        .json();
    let others = three["data"]["others"].as_array().unwrap();
    assert_eq!(others.len(), 2);
    let adjusted = others[1]["pass_rate"]["p_adjusted"].as_f64().unwrap();
    assert!((adjusted - 2.0 * p).abs() < 1e-12, "{adjusted}");
}

/// An agent whose rollouts have rewards of their own, below 1, and that does something with low ones.
fn graded(on_low_rewards: &str) -> String {
    format!(
        r#"
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

class Graded(AgentWorkflow):
    async def run(self, ctx):
        row, run = get_rollout_context().rollout_id[1:].split("-")
        reward = (3 * int(row) + int(run)) * 37 % 100 / 100
        if reward < 0.36:
            {on_low_rewards}
        return [*ctx.prompt, {{"role": "assistant", "content": str(reward)}}]

class Value(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"]))
"#
    )
}

#[test]
fn a_run_that_only_raises_on_low_rewards_is_not_better() {
    let workspace = Workspace::new(&graded("pass"), ECHO_SCRIPT, &echo_rows(80));
    workspace.config("[evaluation]\nn = 3\n");
    submit(&workspace, "a-run", &[]);
    workspace.write("rollouts/r/main.py", &graded("raise ValueError('low')"));
    submit(&workspace, "b-run", &[]);

    let ran = compare(&workspace, &["a-run", "b-run", "--plain"]).expect(0);
    for told in [
        "failures    0 of 240 → 86 of 240   +35.8 points [",
        "            agent failed 0 → 86\n",
        "not the same rollouts: not part of the verdict",
        "fails more  78 rows: fail more often",
        "Inconclusive: `b-run` fails more often, 0 of 240 → 86 of 240 (p < 0.001), and the pass rates differ by \
         no more than chance: pass rate +0.0 points (p 1). The reward, +0.1",
    ] {
        assert!(ran.stdout.contains(told), "{told}\n{}", ran.stdout);
    }
    assert!(!ran.stdout.contains("better"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("higher reward"), "{}", ran.stdout);

    for (runs, failed) in [(["a-run", "b-run"], [0, 86]), (["b-run", "a-run"], [86, 0])] {
        let document = compare(&workspace, &[&runs[..], &["--json"]].concat()).json();
        let data = &document["data"];
        let found = &data["others"][0];
        assert_eq!(found["verdict"], "inconclusive", "{found}");
        assert_eq!(found["finding"], "failures_differ");
        assert_eq!(found["reward_decides"], false);
        assert!(found["failures"]["p_adjusted"].as_f64().unwrap() < 0.001);
        for (run, failed) in [&data["first"], found].iter().zip(failed) {
            let outcomes = serde_json::json!({
                "scored": 240 - failed, "agent_failed": failed, "timed_out": 0, "ungraded": 0,
                "rejected": 0, "infrastructure_failed": 0, "cancelled": 0,
            });
            assert_eq!(run["outcomes"], outcomes);
        }
    }
}

#[test]
fn rewards_decide_where_everything_is_scored_and_stay_in_their_range() {
    let workspace = Workspace::new(&graded("pass"), ECHO_SCRIPT, &echo_rows(40));
    workspace.config("[evaluation]\nreward_range = [0, 1]\n");
    submit(&workspace, "low", &[]);
    workspace.write("rollouts/r/main.py", &graded("reward = 0.99"));
    submit(&workspace, "high", &[]);
    let found = compared(&workspace, &["low", "high"]);
    assert_eq!(found["verdict"], "better", "{found}");
    assert_eq!(found["reward_decides"], true);
    let [low, high] = [0, 1].map(|end| found["reward"]["ci95"][end].as_f64().unwrap());
    assert!(-1.0 < low && low < high && high < 1.0, "{found}");
    let back = compared(&workspace, &["high", "low"]);
    assert_eq!(back["verdict"], "worse");
    let ran = compare(&workspace, &["low", "high", "--plain"]).expect(0);
    assert!(
        ran.stdout
            .contains("`high` is better: pass rate +0.0 points (p 1), reward +0."),
        "{}",
        ran.stdout
    );
}

#[test]
fn runs_that_took_other_rows_are_compared_over_the_rows_they_share() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(6));
    workspace.config("[evaluation]\nn = 2\n");
    submit(&workspace, "some", &["--rows", "0-3"]);
    submit(&workspace, "others", &["--rows", "2-5"]);
    let found = compared(&workspace, &["some", "others"]);
    assert_eq!(found["rows"]["compared"], 2);
    assert_eq!(
        (
            &found["rows"]["only_in_first"],
            &found["rows"]["only_in_this"]
        ),
        (&2.into(), &2.into())
    );
    assert!(
        found["cautions"][0]
            .as_str()
            .unwrap()
            .contains("different rows"),
        "{found}"
    );

    workspace.write("policies/p.toml", &SEVENS_WRONG.replace("7$", "3$"));
    submit(&workspace, "three-wrong", &["--rows", "0-3"]);
    let found = compared(&workspace, &["some", "three-wrong"]);
    assert_eq!(found["verdict"], "no_difference");
    assert_eq!(
        (&found["broken"]["rows"], &found["pass_rate"]["p"]),
        (&"3".into(), &1.0.into())
    );
    assert_eq!(found["pass_rate"]["test"], "sign_flip_exact");
    let summary = found["summary"].as_str().unwrap();
    assert!(
        summary.contains("1 row changed; fewer than 6 can always be chance"),
        "{summary}"
    );
    workspace.write("policies/p.toml", ECHO_SCRIPT);

    submit(&workspace, "last", &["--rows", "4-5"]);
    let refused = compare(&workspace, &["some", "last", "--json"])
        .expect(1)
        .error();
    assert_eq!(refused["code"], "no_shared_rows");

    // The same rows at other places of another file, and one of them changed.
    let rows = echo_rows(6);
    let mut lines: Vec<&str> = rows.lines().skip(1).collect();
    lines.reverse();
    workspace.write(
        "data/d.jsonl",
        &(lines.join("\n").replace("say 5", "say five") + "\n"),
    );
    submit(&workspace, "moved", &[]);
    let refused = compare(&workspace, &["some", "moved", "--json"])
        .expect(1)
        .error();
    assert_eq!(refused["code"], "datasets_differ");
    assert_eq!(refused["details"]["shared_rows"], 3);
    assert!(
        refused["details"]["hint"]
            .as_str()
            .unwrap()
            .contains("--shared-rows"),
        "{refused}"
    );
    let found = compared(&workspace, &["some", "moved", "--shared-rows"]);
    assert_eq!(found["rows"]["compared"], 3, "{found}");
    assert_eq!(found["verdict"], "no_difference");
}

#[test]
fn what_can_not_be_compared_says_why() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    submit(&workspace, "baseline", &[]);
    let unknown = compare(&workspace, &["baseline", "basline", "--json"])
        .expect(1)
        .error();
    assert_eq!(unknown["code"], "run_not_found");
    let hint = unknown["details"]["hint"].as_str().unwrap();
    assert!(hint.contains("did you mean `baseline`?"), "{hint}");
    compare(&workspace, &["baseline"]).expect(2);
    compare(&workspace, &["baseline", "baseline"]).expect(2);
}

#[test]
fn another_threshold_or_grader_and_missing_results_are_told() {
    let mut workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(3));
    submit(&workspace, "one", &[]);
    workspace.config("[evaluation]\npass_threshold = 0.5\n");
    workspace.write(
        "rollouts/r/main.py",
        &PLAIN.replace("else 0.0", "else 0.25"),
    );
    submit(&workspace, "two", &[]);
    // As if it had been stopped before its last row.
    let database = rusqlite::Connection::open(workspace.run_folder("two").join("run.db")).unwrap();
    database
        .execute_batch(
            "UPDATE rollouts SET state = 'queued', outcome = NULL WHERE row_index = 2;
             UPDATE run SET status = 'interrupted'",
        )
        .unwrap();
    drop(database);
    workspace.forget_key();
    let found = compared(&workspace, &["one", "two"]);
    let cautions = found["cautions"].to_string();
    for told in [
        "`two` is interrupted: 1 of its 3 rollouts have no result yet",
        "the threshold differs",
        "the rollout's code differs",
    ] {
        assert!(cautions.contains(told), "{told}: {cautions}");
    }
    assert_eq!(
        (&found["rows"]["shared"], &found["rows"]["compared"]),
        (&3.into(), &2.into())
    );
}

#[test]
fn failures_that_differ_in_values_are_one_group_whose_command_runs_just_those() {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        "        word = ctx.prompt[-1]['content'].split()[-1]\n        \
         if int(word) % 3 == 0:\n            \
         raise LookupError(f'no entry for {word} in /tmp/{word}/table.json')\n        \
         return [*ctx.prompt",
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(13));
    let resource = submit(&workspace, "t", &[]);
    let groups = resource["failures"].as_array().unwrap();
    assert_eq!(groups.len(), 1, "{groups:?}");
    let group = &groups[0];
    assert_eq!(group["count"], 5);
    assert_eq!(group["type"], "LookupError");
    assert_eq!(group["message"], "no entry for <n> in <path>");
    assert_eq!(group["frame"], "r/main.py:20 in run");
    assert_eq!(group["examples"], serde_json::json!(["0.0", "3.0", "6.0"]));
    assert_eq!(group["rows"], "0,3,6,9,12");
    let info = workspace
        .osmosis(&["eval", "info", "t", "--plain"])
        .expect(0);
    for told in [
        "5 × agent failed: LookupError: no entry for <n> in <path>",
        "at r/main.py:20 in run",
        "osmosis eval show t 6.0",
        "again: osmosis eval submit configs/eval/c.toml --rows 0,3,6,9,12",
    ] {
        assert!(info.stdout.contains(told), "{told}\n{}", info.stdout);
    }

    // The mistake is corrected; the command runs the rows that had it, and no other.
    workspace.write("rollouts/r/main.py", PLAIN);
    let command = group["rerun"].as_str().unwrap();
    let mut arguments: Vec<&str> = command.split(' ').skip(1).collect();
    let python = python_environment::python();
    arguments.extend(["--python", python.as_str(), "--json"]);
    let again = workspace.osmosis(&arguments).expect(0).json();
    assert_eq!(again["resource"]["passed"], 5);
    assert_eq!(again["resource"]["total_rollouts"], 5);
}
