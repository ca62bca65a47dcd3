//! Running a run again: fresh, or only what failed. And secrets, which must survive neither.

use osmosis_testkit::python_environment;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

#[test]
fn fresh_puts_the_old_run_away_and_starts_anew() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    workspace.submit(&[]).expect(0);
    workspace.write("data/d.jsonl", &echo_rows(3));
    workspace.submit(&[]).expect(1);
    workspace.submit(&["--fresh"]).expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 3]);
    let archived: Vec<_> = workspace
        .root
        .join(".osmosis/archive")
        .read_dir_utf8()
        .unwrap()
        .map(|entry| entry.unwrap().into_path())
        .collect();
    assert_eq!(archived.len(), 1);
    let index = std::fs::read_to_string(archived[0].join("index.jsonl")).unwrap();
    assert_eq!(index.lines().count(), 2);
}

#[test]
fn retry_failed_runs_what_failed_and_keeps_the_rewards() {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        "        import pathlib\n        \
         if ctx.prompt[-1]['content'] == 'say 1' and pathlib.Path('../../broken').exists():\n            \
         raise RuntimeError('broken')\n        return [*ctx.prompt",
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(3));
    workspace.write("broken", "");
    workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["scored", "agent_failed", "scored"]);
    std::fs::remove_file(workspace.root.join("broken")).unwrap();

    workspace.submit(&[]).expect(0);
    assert_eq!(
        workspace.outcomes()[1],
        "agent_failed",
        "a plain resume keeps results"
    );

    let python = python_environment::python();
    workspace
        .osmosis(&[
            "eval",
            "resume",
            "t",
            "--retry-failed",
            "--python",
            python.as_str(),
        ])
        .expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 3]);
    let attempts: Vec<_> = workspace
        .index()
        .iter()
        .map(|line| line["attempts"].clone())
        .collect();
    assert_eq!(attempts, [1, 2, 1]);
}

#[test]
fn secrets_reach_the_worker_and_no_file_or_error_text() {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        "        import os\n        secret = os.environ['MY_SECRET']\n        \
         print('the secret is', secret, 'and', os.environ['MY_PLAIN'])\n        \
         if ctx.prompt[-1]['content'] == 'say 1':\n            raise RuntimeError('bad ' + secret)\n        \
         return [*ctx.prompt",
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(2));
    workspace.config("[env]\nMY_PLAIN = \"plain-value\"\n[secrets]\nrequired = [\"MY_SECRET\"]\n");
    workspace.write("my-secrets", "MY_SECRET=hunter2hunter2\n");
    let ran = workspace
        .submit(&["--secrets-file", "my-secrets"])
        .expect(0);
    assert!(!ran.stdout.contains("hunter2"), "{}", ran.stdout);
    let logs = workspace.read(".osmosis/evals/t/logs.txt");
    assert!(
        logs.contains("the secret is [redacted] and plain-value"),
        "{logs}"
    );
    let index = workspace.index();
    assert_eq!(index[1]["error"], "RuntimeError: bad [redacted]");
    let shown = workspace.osmosis(&["eval", "show", "t", "1"]).expect(0);
    assert!(!shown.stdout.contains("hunter2"), "{}", shown.stdout);
    for file in ["run.db", "metrics.json", "index.jsonl", "logs.txt"] {
        let bytes = std::fs::read(workspace.run_folder("t").join(file)).unwrap();
        assert!(
            !String::from_utf8_lossy(&bytes).contains("hunter2"),
            "in {file}"
        );
    }
}
