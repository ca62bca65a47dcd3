use std::os::unix::fs::PermissionsExt;

use crate::workspace::{AGENT, TOOL_SCRIPT, Workspace, product_rows};

#[test]
fn an_openai_agents_workflow_goes_from_dataset_to_report() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(6));
    workspace.config("[evaluation]\nn = 2\n");
    let ran = workspace.submit(&[]).expect(0);
    // Nothing that only whoever serves the project needs.
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    assert!(ran.stdout.contains("100.0%"), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("12 passed of 12 that ran"),
        "{}",
        ran.stdout
    );

    let index = workspace.index();
    assert_eq!(index.len(), 12);
    assert_eq!(index[3]["row_index"], 1);
    assert_eq!(index[3]["run_index"], 1);
    assert_eq!(index[3]["rollout_id"], "r1-1");
    assert_eq!(index[3]["outcome"], "scored");
    assert_eq!(index[3]["reward"], 1.0);
    assert_eq!(index[3]["samples"]["calc"], 1.0);
    assert_eq!(index[3]["model_calls"], 2);
    assert_eq!(index[3]["error"], serde_json::Value::Null);
    assert!(index[3]["durations"]["agent_ms"].as_f64().unwrap() > 0.0);

    let metrics: serde_json::Value =
        serde_json::from_str(&workspace.read(".osmosis/evals/t/metrics.json")).unwrap();
    assert_eq!(metrics["outcomes"]["scored"], 12);
    assert_eq!(metrics["pass_rate"], 1.0);
    assert_eq!(metrics["reward"]["mean"], 1.0);
    assert_eq!(metrics["pass_at_k"]["2"], 1.0);
    assert_eq!(metrics["model_calls"], 24);
    assert!(metrics["prompt_tokens"].as_u64().unwrap() > 0);

    let shown = workspace
        .osmosis(&["eval", "show", "t", "1.0", "--calls"])
        .expect(0);
    for part in [
        "What is 4 times 7?",
        "multiply(",
        "28",
        "reward 1",
        "model calls",
    ] {
        assert!(
            shown.stdout.contains(part),
            "no `{part}` in\n{}",
            shown.stdout
        );
    }

    let logs = workspace
        .osmosis(&["eval", "logs", "t", "--rollout", "r1-0"])
        .expect(0);
    assert!(
        logs.stdout.contains("r1-0 agent | multiplying 4 and 7"),
        "{}",
        logs.stdout
    );
    let mode = workspace
        .run_folder("t")
        .join("logs.txt")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_label_is_nowhere_in_what_the_agent_sees() {
    let spying = AGENT.replace(
        "        agent = OsmosisAgent(",
        "        assert not hasattr(ctx, 'label') and 'SECRETLABEL' not in repr(vars(ctx))\n        \
         agent = OsmosisAgent(",
    );
    let rows = "{\"user_prompt\": \"What is 2 times 3?\", \"ground_truth\": \"SECRETLABEL\"}\n";
    let workspace = Workspace::new(&spying, TOOL_SCRIPT, rows);
    let resource = workspace.submit_json(&[]);
    assert_eq!(resource["outcomes"]["scored"], 1);
    assert_eq!(resource["pass_rate"], 0.0);
    let calls = workspace
        .osmosis(&["eval", "show", "t", "0", "--calls", "--json"])
        .expect(0)
        .json();
    let mut shown = calls["data"][0].clone();
    let ground_truth = shown.as_object_mut().unwrap().remove("ground_truth");
    assert_eq!(ground_truth.unwrap()["label"], "SECRETLABEL");
    assert!(!shown.to_string().contains("SECRETLABEL"), "{shown}");
}

#[test]
fn json_output_is_one_envelope_with_the_promised_fields() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(2));
    let ran = workspace.submit(&["--json"]).expect(0);
    let envelope = ran.json();
    assert_eq!(envelope["schema_version"], 1);
    assert_eq!(envelope["status"], "completed");
    assert_eq!(envelope["operation"], "eval submit");
    let resource = envelope["resource"].as_object().unwrap();
    for field in [
        "run_name",
        "output_path",
        "outcomes",
        "pass_rate",
        "reward",
        "pass_at_k",
        "model_calls",
        "prompt_tokens",
        "completion_tokens",
        "resumed",
        "duration_ms",
    ] {
        assert!(resource.contains_key(field), "no `{field}`");
    }
    for outcome in [
        "scored",
        "agent_failed",
        "timed_out",
        "ungraded",
        "rejected",
        "infrastructure_failed",
        "cancelled",
    ] {
        assert!(
            resource["outcomes"].get(outcome).is_some(),
            "no `{outcome}`"
        );
    }
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_dry_run_checks_everything_and_leaves_no_run_behind() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(2));
    let ran = workspace.submit(&["--dry-run"]).expect(0);
    assert!(
        ran.stdout.contains("2 rows × 1 = 2 rollouts"),
        "{}",
        ran.stdout
    );
    assert!(!workspace.root.join(".osmosis/evals/t").exists());
}

#[test]
fn rows_and_limit_choose_what_is_run() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(10));
    workspace
        .submit(&["--rows", "1,4-7", "--limit", "3"])
        .expect(0);
    let rows: Vec<u64> = workspace
        .index()
        .iter()
        .map(|line| line["row_index"].as_u64().unwrap())
        .collect();
    assert_eq!(rows, [1, 4, 5]);
}

#[test]
fn results_are_copied_where_the_user_wants_them() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(1));
    workspace.submit(&["-o", "out/here"]).expect(0);
    assert_eq!(
        workspace.read("out/here/metrics.json"),
        workspace.read(".osmosis/evals/t/metrics.json")
    );
    assert_eq!(workspace.read("out/here/index.jsonl").lines().count(), 1);
}

#[test]
fn no_key_is_in_clear_below_the_run_folder() {
    let leaking = AGENT.replace(
        "        agent = OsmosisAgent(",
        "        from osmosis_ai.rollout import get_rollout_context\n        \
         print('key', get_rollout_context().api_key)\n        agent = OsmosisAgent(",
    );
    let workspace = Workspace::new(&leaking, TOOL_SCRIPT, &product_rows(1));
    workspace.submit(&[]).expect(0);
    let logs = workspace.read(".osmosis/evals/t/logs.txt");
    assert!(logs.contains("r0-0 agent | key [redacted]"), "{logs}");
    let mut folders = vec![workspace.root.join(".osmosis")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.into_path());
                continue;
            }
            files += 1;
            let text = String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned();
            let redactor = osmosis_core::Redactor::default();
            assert_eq!(redactor.clean(&text), text, "a key in {}", entry.path());
        }
    }
    assert!(files >= 4, "only {files} files were looked at");
}

#[test]
fn a_csv_dataset_gives_the_same_results_as_jsonl() {
    let workspace = Workspace::new(AGENT, TOOL_SCRIPT, "");
    std::fs::remove_file(workspace.root.join("data/d.jsonl")).unwrap();
    workspace.write(
        "data/d.csv",
        "user_prompt,ground_truth,metadata\n\"What is 3 times 5?\",15,\"{\"\"level\"\": 1}\"\nWhat is 4 times 7?,28,\n",
    );
    let resource = workspace.submit_json(&[]);
    assert_eq!(resource["outcomes"]["scored"], 2, "{resource:#}");
    assert_eq!(resource["pass_rate"], 1.0);
}

#[test]
fn the_users_own_limit_of_executions_holds_over_all_workers() {
    // Each execution makes a file of its own and takes it away again; nobody may ever see two.
    let main = crate::workspace::PLAIN.replace(
        "        return [*ctx.prompt",
        "        import pathlib, uuid\n        here = pathlib.Path('../../here')\n        \
         here.mkdir(exist_ok=True)\n        mine = here / uuid.uuid4().hex\n        mine.touch()\n        \
         answer = await ask(ctx.prompt)\n        found = len(list(here.iterdir()))\n        \
         mine.unlink()\n        assert found == 1, f'{found} at once'\n        \
         return [*ctx.prompt, answer]\n        return [*ctx.prompt",
    ) + "\nfrom osmosis_ai.rollout import AgentWorkflowConfig, ConcurrencyConfig\n\
         config = AgentWorkflowConfig(name='one', concurrency=ConcurrencyConfig(max_concurrent=1))\n";
    let script = format!("{}delay_ms = 20\n", crate::workspace::ECHO_SCRIPT);
    let workspace = Workspace::new(&main, &script, &crate::workspace::echo_rows(8));
    workspace
        .submit(&["--workers", "2", "--max-in-flight", "8"])
        .expect(0);
    assert_eq!(
        workspace.outcomes(),
        ["scored"; 8],
        "{:?}",
        workspace.index()
    );
}
