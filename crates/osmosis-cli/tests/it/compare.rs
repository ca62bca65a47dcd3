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
    for key in ["run_name", "output_path", "durations", "duration_ms"] {
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
    assert_eq!(same["verdict"], "identical");
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
    assert_eq!(found["verdict"], "identical");
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
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(3));
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
