//! Commands whose reader has read enough: `osmosis … | head`.

use crate::workspace::{ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(3));
    workspace.submit(&[]).expect(0);
    for arguments in [
        &["export", "t", "-o", "-"][..],
        &["export", "t", "--format", "messages", "-o", "-"],
        &["export", "t", "--format", "sft", "-o", "-"],
        &["eval", "list"],
        &["eval", "info", "t", "--json"],
        &["eval", "show", "t", "0"],
        &["eval", "logs", "t"],
        &["eval", "report", "t", "--markdown"],
        &["dataset", "preview", "d"],
        &["completions", "bash"],
        &["--help"],
    ] {
        // Nobody ever reads.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = workspace
            .command(arguments)
            .stdout(writer)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let ran = Ran::of(&child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stderr, "", "{arguments:?}");
    }
}
