//! Grading the samples of a run again: the same numbers for the same grader, every flip for another one,
//! and the run itself as it was.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use osmosis_testkit::python_environment;
use osmosis_testkit::waiting::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::judge::{database, regrade, regrade_json};
use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// Every file below a run's folder, by path. (Whoever reads a database leaves an empty log beside it.)
fn files(workspace: &Workspace, run: &str) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![workspace.run_folder(run)];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            if path.is_dir() {
                folders.push(path);
            } else if path.as_str().ends_with("-wal") {
                assert_eq!(path.metadata().unwrap().len(), 0, "{path}");
            } else if !path.as_str().ends_with("-shm") {
                found.insert(path.to_string(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// A run `t` of six rows: row 1 fails in the agent, the others are scored 1.
fn workspace() -> Workspace {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        "        if ctx.prompt[-1]['content'] == 'say 1':\n            raise RuntimeError('broken')\n        \
         return [*ctx.prompt",
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(6));
    workspace.submit(&[]).expect(0);
    workspace
}

/// From now on only even labels are right.
fn change_grader(workspace: &Workspace) {
    let main = workspace.read("rollouts/r/main.py");
    let changed = main.replace(
        "1.0 if ctx.label in",
        "1.0 if int(ctx.label) % 2 == 0 and ctx.label in",
    );
    assert_ne!(main, changed);
    workspace.write("rollouts/r/main.py", &changed);
}

#[test]
fn every_flip_is_listed_and_the_run_stays_as_it_was() {
    let workspace = workspace();
    let before = files(&workspace, "t");
    change_grader(&workspace);
    let resource = regrade_json(&workspace, "t", &["--name", "u"]);
    assert_eq!(files(&workspace, "t"), before, "the run was changed");

    assert_eq!(resource["regraded_from"], "t");
    assert_eq!(resource["outcomes"]["scored"], 5);
    assert_eq!(resource["outcomes"]["agent_failed"], 1, "carried over");
    assert_eq!(
        (&resource["ran"], &resource["passed"]),
        (&json!(6), &json!(3))
    );
    assert_eq!(resource["model_calls"], 0);
    assert_eq!(resource["without_model_calls"], Value::Null);
    assert!(resource["changes"]["source_sha256"].is_object());

    let flips = &resource["flips"];
    assert_eq!(
        (
            &flips["fixed"],
            &flips["broken"],
            &flips["other"],
            &flips["unchanged"]
        ),
        (&json!(0), &json!(2), &json!(0), &json!(4))
    );
    let rows: Vec<&Value> = flips["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|flip| &flip["row_index"])
        .collect();
    assert_eq!(rows, [3, 5]);
    let flip = &flips["items"][0];
    assert_eq!(flip["change"], "broken");
    assert_eq!(
        flip["before"],
        json!({"outcome": "scored", "reward": 1.0, "passed": true})
    );
    assert_eq!(
        flip["after"],
        json!({"outcome": "scored", "reward": 0.0, "passed": false})
    );
    assert_eq!(flip["show"], "osmosis eval show u 3.0");
    let written = workspace.read(".osmosis/evals/u/flips.jsonl");
    assert_eq!(written.lines().count(), 2);
    assert_eq!(
        serde_json::from_str::<Value>(written.lines().next().unwrap()).unwrap(),
        *flip
    );

    // The other way round, from the new run: what was broken is fixed.
    workspace.write(
        "rollouts/r/main.py",
        &workspace
            .read("rollouts/r/main.py")
            .replace("int(ctx.label) % 2 == 0 and ", ""),
    );
    let back = regrade(&workspace, "u", &["--name", "v"]).expect(0);
    assert!(
        back.stdout.contains("2 fixed · 0 broken"),
        "{}",
        back.stdout
    );
    assert!(
        back.stdout.contains("osmosis eval show v 5.0"),
        "{}",
        back.stdout
    );
    assert!(
        back.stdout.contains("the calls are those of `t`"),
        "{}",
        back.stdout
    );
    check_exports(&workspace);
}

/// What was said in `v`, which grades what `u` graded, is read from the calls of `t` while they are there.
#[track_caller]
fn check_exports(workspace: &Workspace) {
    let said = |run: &str| {
        let ran = workspace.osmosis(&["export", run, "--format", "messages", "-o", "-"]);
        let ran = ran.expect(0);
        let lines = ran.stdout.lines().map(serde_json::from_str::<Value>);
        let lines: Vec<Value> = lines.map(Result::unwrap).collect();
        let facts = |line: &Value, names: &[&str]| -> Vec<Value> {
            names.iter().map(|name| line[*name].clone()).collect()
        };
        let each = |names: &[&str]| -> Vec<Vec<Value>> {
            lines.iter().map(|line| facts(line, names)).collect()
        };
        (
            each(&["rollout_id", "messages"]),
            each(&["model_calls", "prompt_tokens"]),
            ran.stderr,
        )
    };
    let (messages, counted, _) = said("t");
    assert_eq!(counted[0][0], 1);
    let (same_messages, same_counted, warnings) = said("v");
    assert_eq!((&same_messages, &same_counted), (&messages, &counted));
    assert!(!warnings.contains("is not here"), "{warnings}");

    // Another run has its name now: the samples know what was said, and nothing else.
    workspace.submit(&["--fresh"]).expect(0);
    let (same_messages, uncounted, warnings) = said("v");
    assert_eq!(same_messages, messages);
    assert_eq!(uncounted[0][0], 0);
    assert!(
        warnings.contains("run `t`, which has the model calls, is not here as it was"),
        "{warnings}"
    );
}

#[test]
fn the_new_run_is_a_run_like_any_other() {
    let workspace = workspace();
    change_grader(&workspace);
    regrade(&workspace, "t", &["--name", "u"]).expect(0);
    let info = workspace
        .osmosis(&["eval", "info", "u", "--json"])
        .expect(0)
        .json();
    assert_eq!(info["data"]["status"], "finished");
    assert_eq!(info["data"]["pinned"]["regraded_from"], "t");
    assert_eq!(
        info["data"]["pinned"]["dataset_sha256"],
        workspace.osmosis(&["eval", "info", "t", "--json"]).json()["data"]["pinned"]["dataset_sha256"]
    );
    let shown = workspace.osmosis(&["eval", "show", "u", "3"]).expect(0);
    assert!(shown.stdout.contains("reward 0"), "{}", shown.stdout);
    assert!(
        shown.stdout.contains("osmosis eval show t 3.0 --calls"),
        "{}",
        shown.stdout
    );
    let listed = workspace
        .osmosis(&["eval", "list", "--json"])
        .expect(0)
        .json();
    assert_eq!(listed["total_count"], 2);
    workspace
        .osmosis(&["export", "u", "--output", "u.jsonl"])
        .expect(0);
    assert_eq!(workspace.read("u.jsonl").lines().count(), 6);
}

#[test]
fn the_same_grader_gives_the_same_grades() {
    let workspace = workspace();
    let ran = regrade(&workspace, "t", &["--name", "u"]).expect(0);
    assert!(
        ran.stdout.contains("0 fixed · 0 broken · 0 with another"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stderr.contains("are those that graded `t`"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_changed_config_is_taken_and_told() {
    let main = format!(
        "{}\nfrom osmosis_ai.rollout import GraderConfig\n\
         class Scale(GraderConfig):\n    factor: float = 1.0\n\
         grader_config = Scale(name='scale')\n",
        PLAIN
            .replace(
                "class Exact(Grader):\n",
                "class Exact(Grader):\n    \
             def __init__(self, config): self.config = config\n"
            )
            .replace("ctx.set_reward(1.0", "ctx.set_reward(self.config.factor")
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(2));
    workspace.submit(&[]).expect(0);
    // The config that the run was made with, as it is now.
    workspace.config("[evaluation]\npass_threshold = 0.75\n[grader]\nfactor = 0.5\n");
    let resource = regrade_json(&workspace, "t", &["--name", "u"]);
    assert_eq!(resource["reward"]["mean"], 0.5);
    assert_eq!(
        resource["changes"]["grader.factor"],
        json!({"before": null, "now": 0.5})
    );
    assert_eq!(
        resource["changes"]["evaluation.pass_threshold"],
        json!({"before": 1.0, "now": 0.75})
    );
    assert_eq!(resource["flips"]["broken"], 2);
    // A range that the rewards are outside of.
    let config = workspace.read("configs/eval/c.toml");
    let narrow = config.replace("0.75\n", "0.75\nreward_range = [0, 0.25]\n");
    workspace.write("configs/eval/narrow.toml", &narrow);
    let narrow = ["--config", "configs/eval/narrow.toml", "--name", "v"];
    let resource = regrade_json(&workspace, "t", &narrow);
    assert_eq!(
        resource["changes"]["evaluation.reward_range"],
        json!({"before": null, "now": [0.0, 0.25]})
    );
    assert_eq!(resource["outcomes"]["ungraded"], 2);
    assert_eq!(resource["flips"]["no_longer_scored"], 2);
    // Another one.
    workspace.write(
        "configs/eval/other.toml",
        &workspace
            .read("configs/eval/c.toml")
            .replace("0.5\n", "0.8\n")
            .replace("\"d\"", "\"e\""),
    );
    let ran = regrade(&workspace, "t", &["--config", "configs/eval/other.toml"]).expect(0);
    assert!(
        ran.stdout.contains("2 with another reward"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stderr.contains("grader.factor: null → 0.8"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("`experiment.dataset` is"),
        "{}",
        ran.stderr
    );
}

#[test]
fn rows_can_be_chosen_and_a_dry_run_writes_nothing() {
    let workspace = workspace();
    change_grader(&workspace);
    let dry = regrade_json(&workspace, "t", &["--dry-run", "--rows", "3-4"]);
    assert_eq!(dry["rollouts"], 2);
    let listed = workspace.osmosis(&["eval", "list", "--json"]).json();
    assert_eq!(listed["total_count"], 1);
    let resource = regrade_json(&workspace, "t", &["--rows", "3-4"]);
    assert_eq!(resource["total_rollouts"], 2);
    assert_eq!(resource["flips"]["broken"], 1);
    let none = regrade(&workspace, "t", &["--rows", "70", "--json"]).expect(1);
    assert_eq!(none.error()["code"], "nothing_to_grade");
    let itself = regrade(&workspace, "t", &["--name", "t"]).expect(2);
    assert!(
        itself.stderr.contains("is the run itself"),
        "{}",
        itself.stderr
    );
    let unknown = regrade(&workspace, "nobody", &["--json"]).expect(1);
    assert_eq!(unknown.error()["code"], "run_not_found");
}

#[test]
fn a_grader_gets_the_files_of_the_workflow_and_leaves_its_own_in_the_new_run() {
    let grader = "class Exact(Grader):\n    async def grade(self, ctx):\n        \
        note = (ctx.artifacts_dir / 'note.txt')\n        \
        ctx.set_reward(float(note.read_text() == 'left'))\n        note.write_text('graded')\n";
    let (agent, _) = PLAIN.split_once("class Exact").unwrap();
    let agent = agent.replace(
        "        return [*ctx.prompt",
        "        (ctx.artifacts_dir / 'note.txt').write_text('left')\n        return [*ctx.prompt",
    );
    let kept = grader.replace("note.write_text('graded')", "pass");
    let workspace = Workspace::new(&format!("{agent}{kept}"), ECHO_SCRIPT, &echo_rows(1));
    workspace.submit(&[]).expect(0);
    workspace.write("rollouts/r/main.py", &format!("{agent}{grader}"));
    let resource = regrade_json(&workspace, "t", &["--name", "u"]);
    assert_eq!(resource["reward"]["mean"], 1.0);
    let note = |run| workspace.read(&format!(".osmosis/evals/{run}/artifacts/r0-0/note.txt"));
    assert_eq!(
        (note("t"), note("u")),
        ("left".to_owned(), "graded".to_owned())
    );
}

#[test]
fn an_interrupted_regrade_goes_on_where_it_stopped() {
    let workspace = workspace();
    // Counted outside the rollout's folder, which the run is pinned to.
    let main = workspace.read("rollouts/r/main.py").replace(
        "        ctx.set_reward(",
        "        import asyncio, pathlib\n        \
         with open('../../graded', 'a') as file: file.write(ctx.label + '\\n')\n        \
         while not pathlib.Path('../../gate').exists():\n            await asyncio.sleep(0.02)\n        \
         ctx.set_reward(",
    );
    workspace.write("rollouts/r/main.py", &main);
    let python = python_environment::python();
    let mut child = workspace
        .command(&[
            "eval",
            "regrade",
            "t",
            "--name",
            "u",
            "--max-in-flight",
            "1",
            "--python",
            python.as_str(),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let graded = workspace.root.join("graded");
    wait_until("it grades", std::time::Duration::from_mins(2), || {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        graded.exists()
    });
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let mut said = String::new();
    while !said.contains("stopping: waiting for 1") {
        assert!(stderr.read_line(&mut said).unwrap() > 0, "{said}");
    }
    workspace.write("gate", "");
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("osmosis eval resume u"), "{said}");

    workspace
        .osmosis(&["eval", "resume", "u", "--python", python.as_str()])
        .expect(0);
    let graded = workspace.read("graded");
    let mut labels: Vec<&str> = graded.lines().collect();
    labels.sort_unstable();
    assert_eq!(labels, ["0", "2", "3", "4", "5"], "each once");
    // The same name goes on too, and finds nothing left.
    let again = regrade_json(&workspace, "t", &["--name", "u"]);
    assert_eq!(
        (&again["resumed"], &again["flips"]["unchanged"]),
        (&json!(true), &json!(6))
    );
    assert_eq!(workspace.read("graded"), graded);
    // Another grader is another run.
    workspace.write("rollouts/r/main.py", &format!("{main}\n# changed\n"));
    let other = regrade(&workspace, "t", &["--name", "u", "--json"]).expect(1);
    assert_eq!(other.error()["code"], "run_pinned");
}

#[test]
fn what_was_not_graded_is_graded_now_and_what_raises_now_is_ungraded() {
    let main = PLAIN.replace(
        "        ctx.set_reward(",
        "        if ctx.label == '0': raise ValueError('no zero')\n        \
         if ctx.label == '1': ctx.sample.remove_sample = True; return\n        ctx.set_reward(",
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(3));
    workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["ungraded", "rejected", "scored"]);
    let other = PLAIN.replace(
        "        ctx.set_reward(",
        "        assert ctx.sample.reward is None and not ctx.sample.remove_sample\n        \
         if ctx.label == '2': return\n        ctx.set_reward(",
    );
    workspace.write("rollouts/r/main.py", &other);
    let resource = regrade_json(&workspace, "t", &["--name", "u"]);
    assert_eq!(resource["flips"]["fixed"], 2);
    assert_eq!(resource["flips"]["broken"], 1);
    assert_eq!(resource["flips"]["no_longer_scored"], 1);
    assert_eq!(resource["flips"]["newly_scored"], 2);
    assert_eq!(resource["outcomes"]["ungraded"], 1);
    let left: i64 = database(&workspace, "u")
        .query_row(
            "SELECT count(*) FROM samples WHERE reward IS NULL",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(
        left, 1,
        "no old reward is left on a sample that was not graded"
    );
}

#[test]
fn a_workflow_that_grades_itself_can_not_be_graded_again() {
    let main = "class Own:\n    async def run(self, data, **extra):\n        return 1.0\n";
    let workspace = Workspace::new(main, ECHO_SCRIPT, "{\"x\": 1}\n");
    workspace.submit(&[]);
    let refused = regrade(&workspace, "t", &["--name", "u", "--json"]).expect(1);
    assert_eq!(refused.error()["code"], "no_grader");
    assert!(!workspace.run_folder("u").exists());
}
