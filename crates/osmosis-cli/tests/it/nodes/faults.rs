//! Nodes and controllers that are killed, paused, stopped and resumed.

use std::process::Stdio;

use osmosis_testkit::waiting::wait_until;
use rustix::process::Signal;

use super::{Cluster, SOON, gated_workspace, report, undisturbed};
use crate::workspace::Ran;

#[test]
fn a_node_that_is_killed_loses_nothing() {
    let cluster = Cluster::new(6);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let mut first = cluster.node("first", &invitation, &[]);
    cluster.until_held(&first, 6);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let second = cluster.node("second", &invitation, &[]);
    // When the leases of the first have run out.
    cluster.until_held(&second, 6);
    cluster.open_gate();
    controller.ends().expect(0);
    assert_eq!(report(second.ends()).1, 6);
    assert_eq!(cluster.results(), undisturbed(6));
    assert_eq!(cluster.attempts(), [2; 6]);
}

#[test]
fn a_node_that_drains_finishes_what_it_has_and_leaves() {
    let cluster = Cluster::new(6);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let first = cluster.node("first", &invitation, &["--max-in-flight", "3"]);
    cluster.until_held(&first, 3);
    first.signal(Signal::TERM);
    wait_until("it drains", SOON, || {
        cluster.info()["nodes"][0]["state"] == "draining"
    });
    cluster.open_gate();
    assert_eq!(report(first.ends()), ("drained".to_owned(), 3));
    let second = cluster.node("second", &invitation, &[]);
    controller.ends().expect(0);
    assert_eq!(report(second.ends()).1, 3);
    assert_eq!(cluster.results(), undisturbed(6));
    assert_eq!(cluster.attempts(), [1; 6]);
}

#[test]
fn a_node_that_was_stopped_past_its_lease_and_comes_back_is_fenced() {
    let cluster = Cluster::new(6);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let late = cluster.node("late", &invitation, &[]);
    cluster.until_held(&late, 6);
    late.signal(Signal::STOP);
    let other = cluster.node("other", &invitation, &[]);
    cluster.until_held(&other, 6);
    // Both have agents under way at the same rollouts now.
    late.signal(Signal::CONT);
    cluster.open_gate();
    controller.ends().expect(0);
    assert_eq!(report(other.ends()).1, 6);
    assert_eq!(report(late.ends()).1, 0);
    assert_eq!(cluster.results(), undisturbed(6));
    assert_eq!(cluster.attempts(), [2; 6]);
}

#[test]
fn nodes_go_on_without_their_controller_which_resumes_the_run() {
    let cluster = Cluster::new(12);
    let mut controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let node = cluster.node("node", &invitation, &["--max-in-flight", "4"]);
    cluster.until_held(&node, 4);
    controller.child.kill().unwrap();
    controller.child.wait().unwrap();
    let resumed = cluster.resume(&["--nodes-only"]);
    assert_eq!(resumed.invitation(), invitation, "the token is the same");
    cluster.until_held(&node, 4);
    cluster.open_gate();
    resumed.ends().expect(0);
    assert_eq!(report(node.ends()).1, 12);
    assert_eq!(cluster.results(), undisturbed(12));
    assert_eq!(cluster.attempts(), [1; 12], "its leases were left alone");
}

#[test]
fn nodes_end_a_run_whose_controller_is_gone_and_a_resume_reports_it() {
    let cluster = Cluster::new(6);
    let mut controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let node = cluster.node("node", &invitation, &[]);
    cluster.until_held(&node, 6);
    controller.child.kill().unwrap();
    controller.child.wait().unwrap();
    cluster.open_gate();
    assert_eq!(report(node.ends()), ("completed".to_owned(), 6));
    cluster.resume(&[]).ends().expect(0);
    assert_eq!(cluster.results(), undisturbed(6));
}

#[test]
fn a_run_is_stopped_from_another_machine_and_resumed() {
    let cluster = Cluster::new(8);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let node = cluster.node("node", &invitation, &["--max-in-flight", "3"]);
    cluster.until_held(&node, 3);
    // A workspace that never saw the run.
    let (mut elsewhere, _) = gated_workspace(1);
    let url = cluster.server.url();
    elsewhere.variable("OSMOSIS_STORE", &url);
    elsewhere.variable("OSMOSIS_LEASE_SECONDS", "3");
    let stopping = {
        let mut command = elsewhere.command(&["eval", "stop", "t", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    wait_until("the node drains", SOON, || {
        cluster.info()["nodes"][0]["state"] == "draining"
    });
    cluster.open_gate();
    controller.ends().expect(130);
    assert_eq!(report(node.ends()), ("run_over".to_owned(), 3));
    let stopped = Ran::of(&stopping.wait_with_output().unwrap()).expect(0);
    assert_eq!(stopped.json()["status"], "stopped");
    assert_eq!(cluster.info()["status"], "interrupted");

    // A run that is over takes no nodes, until it is resumed.
    let refused = cluster.node("refused", &invitation, &[]).ends().expect(1);
    assert_eq!(refused.error()["code"], "run_over");
    let resumed = cluster.resume(&["--nodes-only"]);
    let node = cluster.node("again", &resumed.invitation(), &[]);
    resumed.ends().expect(0);
    assert_eq!(report(node.ends()).1, 5);
    assert_eq!(cluster.results(), undisturbed(8));
    let refused = cluster.node("refused", &invitation, &[]).ends().expect(1);
    assert_eq!(refused.error()["code"], "run_over");
}

#[test]
fn a_controller_that_is_interrupted_waits_for_its_nodes() {
    let cluster = Cluster::new(8);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let node = cluster.node("node", &invitation, &["--max-in-flight", "3"]);
    cluster.until_held(&node, 3);
    controller.signal(Signal::INT);
    wait_until("the node drains", SOON, || {
        cluster.info()["nodes"][0]["state"] == "draining"
    });
    cluster.open_gate();
    let interrupted = controller.ends().expect(130);
    // What the node finished meanwhile is in the controller's report.
    let report_of_run = interrupted.json()["resource"].clone();
    assert_eq!(report_of_run["outcomes"]["scored"], 3, "{report_of_run}");
    assert_eq!(report(node.ends()), ("run_over".to_owned(), 3));
}

#[test]
fn a_node_waits_for_a_database_that_is_away_for_longer_than_its_leases() {
    let cluster = Cluster::new(4);
    let mut controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    // People read what it says.
    let named = ["--store", &invitation.store, "--join", &invitation.join];
    let node = cluster.begin("node", &mut cluster.node_command(&named));
    cluster.until_held(&node, 4);
    controller.child.kill().unwrap();
    controller.child.wait().unwrap();
    cluster.server.crash();
    wait_until("it gives up what it had", SOON, || {
        node.stderr()
            .contains("what was under way here is given up")
    });
    cluster.server.start_again();
    wait_until("it is back", SOON, || {
        node.stderr().contains("The database is back")
    });
    cluster.open_gate();
    node.ends().expect(0);
    cluster.resume(&[]).ends().expect(0);
    assert_eq!(cluster.results(), undisturbed(4));
}

#[test]
fn a_database_that_crashes_and_starts_again_costs_nothing() {
    let cluster = Cluster::new(40);
    let controller = cluster.controller(&["--max-in-flight", "2"]);
    let invitation = controller.invitation();
    let node = cluster.node("node", &invitation, &["--max-in-flight", "2"]);
    cluster.until_held(&node, 2);
    cluster.open_gate();
    cluster.server.crash();
    cluster.server.start_again();
    controller.ends().expect(0);
    assert!(report(node.ends()).1 > 0);
    assert_eq!(cluster.results(), undisturbed(40));
}
