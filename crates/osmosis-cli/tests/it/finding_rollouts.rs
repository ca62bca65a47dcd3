//! Finding the rollouts behind a bad score, and the runs they are in.

use serde_json::Value;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// Row 1 raises, row 2 answers wrongly, row 3 has a grader that raises.
fn with_bad_rows() -> Workspace {
    let main = PLAIN
        .replace(
            "        return [*ctx.prompt",
            "        print('asking', ctx.prompt[-1]['content'])\n        \
             if ctx.prompt[-1]['content'] == 'say 1':\n            raise RuntimeError('broken pipe dream')\n        \
             return [*ctx.prompt",
        )
        .replace(
            "        ctx.set_reward(",
            "        print('comparing with', ctx.label)\n        \
             if ctx.label == '3':\n            raise ValueError('no such label')\n        \
             ctx.set_reward(0.5 if ctx.label == '2' else ",
        );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(5));
    workspace.submit(&[]).expect(0);
    workspace
}

/// `ROW.RUN` of each item.
fn places(listed: &Value) -> Vec<String> {
    let items = listed["items"].as_array().unwrap().iter();
    items
        .map(|item| format!("{}.{}", item["row_index"], item["run_index"]))
        .collect()
}

#[test]
fn rollouts_are_listed_by_what_became_of_them() {
    let workspace = with_bad_rows();
    let list = |more: &[&str]| {
        let arguments = [&["eval", "show", "t", "--json"], more].concat();
        workspace.osmosis(&arguments).expect(0).json()
    };
    let all = list(&[]);
    assert_eq!(places(&all), ["0.0", "1.0", "2.0", "3.0", "4.0"]);
    assert_eq!(all["total_count"], 5);
    assert_eq!(all["next"], Value::Null);
    let failed = list(&["--failed"]);
    assert_eq!(places(&failed), ["1.0", "2.0", "3.0"]);
    assert_eq!(failed["items"][1]["answer"], "2");
    assert_eq!(failed["items"][1]["ground_truth"], "2");
    assert_eq!(places(&list(&["--outcome", "ungraded"])), ["3.0"]);
    assert_eq!(places(&list(&["--reward-below", "1"])), ["2.0"]);
    assert_eq!(places(&list(&["--grep", "PIPE"])), ["1.0"]);
    assert_eq!(places(&list(&["--grep", "say 4"])), ["4.0"]);

    let first = list(&["--sort", "reward", "--limit", "1"]);
    assert_eq!(places(&first), ["2.0"]);
    assert_eq!(first["total_count"], 5);
    let next = first["next"].as_str().unwrap();
    let second = list(&["--sort", "reward", "--limit", "1", "--after", next]);
    assert_eq!(places(&second), ["0.0"]);
}

#[test]
fn a_condition_that_is_no_condition_is_refused_with_the_choices() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    let refused = |more: &[&str]| {
        let arguments = [&["eval", "show", "t"], more].concat();
        workspace.osmosis(&arguments).expect(2).stderr
    };
    let told = refused(&["--outcome", "bad"]);
    assert!(told.contains("scored, agent_failed"), "{told}");
    let told = refused(&["--sort", "size"]);
    assert!(
        told.contains("row, reward, variance, length, time"),
        "{told}"
    );
    // Of one rollout there is nothing to choose.
    let told = refused(&["3", "--failed"]);
    assert!(told.contains("cannot be used with"), "{told}");
    refused(&["--raw", "0"]);
}

#[test]
fn the_report_names_the_worst_rows_and_what_to_do_about_each_failure() {
    let workspace = with_bad_rows();
    let told = workspace.osmosis(&["eval", "info", "t"]).expect(0).stdout;
    let (_, told) = told.split_once("  failures\n").unwrap();
    let (told, _) = told.split_once("\n  files").unwrap();
    insta::assert_snapshot!(told);
    // The numbers are explained where that is asked for.
    let definition = "infrastructure failures and cancelled rollouts are in no rate";
    assert!(!told.contains(definition), "{told}");
    let told = workspace.osmosis(&["eval", "info", "t", "-v"]).expect(0);
    assert!(told.stdout.contains(definition), "{}", told.stdout);

    let regrade = "osmosis eval regrade t --rows 3";
    let info = workspace.osmosis(&["eval", "info", "t", "--json"]).json();
    let failures = info["data"]["failures"].as_array().unwrap();
    let ungraded = failures.iter().find(|group| group["outcome"] == "ungraded");
    assert_eq!(ungraded.unwrap()["rerun"], regrade);
    // And it does what it says: the sample is graded, by a grader that was mended.
    let main = workspace.read("rollouts/r/main.py");
    workspace.write(
        "rollouts/r/main.py",
        &main.replace("ctx.label == '3'", "False"),
    );
    let python = osmosis_testkit::python_environment::python();
    let mut arguments: Vec<&str> = regrade.split(' ').skip(1).collect();
    arguments.extend(["--python", python.as_str(), "--json"]);
    let regraded = workspace.osmosis(&arguments).expect(0).json();
    assert_eq!(regraded["resource"]["outcomes"]["scored"], 1, "{regraded}");
}

#[test]
fn a_grader_that_times_out_is_advised_with_its_limit_and_graded_again_without_the_model() {
    let main = PLAIN.replace(
        "        ctx.set_reward(",
        "        import asyncio\n        \
         if ctx.label == '1':\n            await asyncio.sleep(3600)\n        ctx.set_reward(",
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(3));
    workspace.config("[evaluation]\ngrader_timeout_s = 1\n");
    workspace.submit(&[]).expect(0);
    let told = workspace.osmosis(&["eval", "info", "t"]).expect(0).stdout;
    let (_, told) = told.split_once("  failures\n").unwrap();
    let (told, _) = told.split_once("\n\n").unwrap();
    insta::assert_snapshot!(told, @r"
        1 × timed out: grade phase passed its deadline of 1 s
            osmosis eval show t 1.0
            advice: make the grader faster, or raise `grader_timeout_s` in [evaluation]
            again: osmosis eval regrade t --rows 1
    ");
}

#[test]
fn one_command_shows_what_explains_a_score() {
    let workspace = with_bad_rows();
    let shown = |row: &str, more: &[&str]| {
        let arguments = [&["eval", "show", "t", row], more].concat();
        workspace.osmosis(&arguments).expect(0)
    };
    let text = shown("2", &[]).stdout;
    let text: Vec<&str> = text
        .lines()
        // It has times.
        .filter(|line| !line.starts_with("queue "))
        .collect();
    insta::assert_snapshot!(text.join("\n"));

    let document = shown("2", &["--json"]).json();
    let rollout = &document["data"][0];
    assert_eq!(rollout["ground_truth"]["label"], "2");
    assert_eq!(rollout["agent_output"], serde_json::json!(["asking say 2"]));
    assert_eq!(
        rollout["grader_output"],
        serde_json::json!(["comparing with 2"])
    );
    assert_eq!(
        rollout["contexts"]["main"]["finish_reasons"],
        serde_json::json!(["stop"])
    );
    assert_eq!(rollout["calls"][0]["number"], 0);
    assert_eq!(rollout["calls"][0]["exchange"], Value::Null);

    let calls = shown("2", &["--calls", "--json"]).json();
    let exchange = &calls["data"][0]["calls"][0]["exchange"];
    assert_eq!(
        exchange["parameters"],
        serde_json::json!({"model": "osmosis-rollout"})
    );
    assert_eq!(exchange["request"][0]["text"], "say 2");
    assert_eq!(exchange["replies"][0][0]["text"], "2");
}

#[test]
fn a_raw_call_is_byte_for_byte_what_was_recorded() {
    let workspace = with_bad_rows();
    let raw = |more: &[&str]| {
        let arguments = [&["eval", "show", "t", "2.0"], more].concat();
        workspace.osmosis(&arguments)
    };
    let request = raw(&["--raw", "0", "--part", "request"]).expect(0).stdout;
    let reply = raw(&["--raw", "0", "--part", "reply"]).expect(0).stdout;
    assert_eq!(
        raw(&["--raw", "0"]).expect(0).stdout,
        format!("{request}\n{reply}")
    );
    let asked: Value = serde_json::from_str(&request).unwrap();
    assert_eq!(asked["messages"][0]["content"], "say 2");
    let document = raw(&["--raw", "0", "--json"]).expect(0).json();
    assert_eq!(document["data"]["request"], request);
    assert_eq!(document["data"]["reply"], reply);
    let missing = raw(&["--raw", "7"]).expect(1).stderr;
    assert!(
        missing.contains("has no call 7: it made 1 here"),
        "{missing}"
    );
}

#[test]
fn runs_are_named_by_their_age_or_their_beginning() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    let python = osmosis_testkit::python_environment::python();
    let config = "configs/eval/c.toml";
    for name in ["before", "after-1", "after-2"] {
        let arguments = [
            "eval",
            "submit",
            config,
            "--name",
            name,
            "--python",
            python.as_str(),
        ];
        workspace.osmosis(&arguments).expect(0);
    }
    let found = |text: &str| {
        let info = workspace
            .osmosis(&["eval", "info", text, "--json"])
            .expect(0);
        info.json()["data"]["run_name"].as_str().unwrap().to_owned()
    };
    assert_eq!(found("latest"), "after-2");
    assert_eq!(found("latest~2"), "before");
    assert_eq!(found("bef"), "before");
    assert_eq!(found("eval/bef"), "before");
    let refused = workspace
        .osmosis(&["eval", "info", "after", "--json"])
        .expect(2);
    let error = refused.error();
    assert_eq!(error["code"], "run_ambiguous");
    let message = "`after` is the beginning of 2 runs: `after-2`, `after-1`";
    assert_eq!(error["message"], message);
    for command in [
        &["eval", "show", "latest"][..],
        &["eval", "logs", "latest~1"],
        &["eval", "stop", "bef"],
        &["eval", "compare", "latest~1", "latest"],
        &["export", "bef", "-o", "-"],
        &["run", "verify", "latest"],
    ] {
        workspace.osmosis(command).expect(0);
    }
    let twice = workspace.osmosis(&["eval", "compare", "latest", "after-2"]);
    assert!(
        twice.stderr.contains("run `after-2` is given twice"),
        "{}",
        twice.stderr
    );

    let listed = workspace
        .osmosis(&["eval", "list", "--json"])
        .expect(0)
        .json();
    assert_eq!(listed["total_count"], 3);
    let newest = &listed["items"][0];
    assert_eq!(newest["run_name"], "after-2");
    assert_eq!(newest["model"], "script:policies/p.toml");
    assert_eq!(newest["dataset"], "d");
    assert_eq!(newest["pass_rate"], 1.0);
    assert_eq!(newest["reward"], 1.0);
    assert_eq!(newest["status"], "finished");
    // What the file of a finished run says is what its store says.
    std::fs::remove_file(workspace.run_folder("after-2").join("metrics.json")).unwrap();
    let again = workspace
        .osmosis(&["eval", "list", "--json"])
        .expect(0)
        .json();
    assert_eq!(&again["items"][0], newest);
}
