//! Files that user code leaves in `ctx.artifacts_dir`.

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// Agent and grader leave a file each; the agent also leaves traps.
fn main_py() -> String {
    let agent = PLAIN.replace(
        "        return [*ctx.prompt",
        "        folder = ctx.artifacts_dir\n        \
         (folder / 'notes').mkdir()\n        \
         (folder / 'notes' / 'a\\x1b[2Jb.txt').write_text('hello')\n        \
         (folder / 'out').symlink_to('/etc')\n        \
         return [*ctx.prompt",
    );
    agent.replace(
        "        ctx.set_reward(",
        "        assert (ctx.artifacts_dir / 'notes').is_dir()\n        \
         (ctx.artifacts_dir / 'verdict.txt').write_text('fine')\n        ctx.set_reward(",
    )
}

#[test]
fn artifacts_stay_with_the_run_and_are_listed() {
    let workspace = Workspace::new(&main_py(), ECHO_SCRIPT, &echo_rows(2));
    workspace.submit(&[]).expect(0);
    assert_eq!(
        workspace.outcomes(),
        ["scored"; 2],
        "{:?}",
        workspace.index()
    );
    let id = workspace.index()[0]["rollout_id"].clone();
    let folder = workspace
        .run_folder("t")
        .join("artifacts")
        .join(id.as_str().unwrap());
    assert_eq!(
        std::fs::read_to_string(folder.join("verdict.txt")).unwrap(),
        "fine"
    );

    let shown = workspace
        .osmosis(&["eval", "show", "t", "0"])
        .expect(0)
        .stdout;
    let (_, listed) = shown.split_once("\nartifacts  ").unwrap();
    let (listed, _) = listed.split_once("\n\n").unwrap();
    assert_eq!(
        listed,
        format!(
            "{folder}\n  notes/a\\u{{1b}}[2Jb.txt  5 bytes\n  out  link to /etc, not followed\n  \
             verdict.txt  4 bytes"
        )
    );

    let json = workspace
        .osmosis(&["eval", "show", "t", "0", "--json"])
        .expect(0)
        .json();
    let artifacts = &json["data"][0]["artifacts"];
    assert_eq!(artifacts["folder"], folder.as_str());
    assert_eq!(artifacts["total_count"], 3);
    let expected = serde_json::json!([
        {"path": "notes/a\u{1b}[2Jb.txt", "kind": "file", "bytes": 5},
        {"path": "out", "kind": "link", "to": "/etc"},
        {"path": "verdict.txt", "kind": "file", "bytes": 4},
    ]);
    assert_eq!(artifacts["items"], expected);
}

#[test]
fn a_rollout_without_artifacts_shows_none() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    workspace.submit(&[]).expect(0);
    let shown = workspace
        .osmosis(&["eval", "show", "t", "0"])
        .expect(0)
        .stdout;
    assert!(!shown.contains("artifacts"), "{shown}");
}
