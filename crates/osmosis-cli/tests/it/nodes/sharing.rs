//! Controller and nodes, when nothing goes wrong.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;

use camino::Utf8PathBuf;
use osmosis_testkit::waiting::wait_until;

use super::{Cluster, Process, SOON, files_with, report, secrets_of, undisturbed};

#[test]
fn two_nodes_and_the_controller_share_a_run() {
    let rows = 60;
    let cluster = Cluster::new(rows);
    let controller = cluster.controller(&["--max-in-flight", "4"]);
    let invitation = controller.invitation();
    let nodes = ["a", "b"].map(|name| cluster.node(name, &invitation, &["--max-in-flight", "4"]));
    for node in &nodes {
        cluster.until_held(node, 4);
    }
    cluster.open_gate();
    let ran = controller.ends().expect(0);
    assert_eq!(ran.json()["resource"]["outcomes"]["scored"], rows);
    let finished = nodes.map(|node| report(node.ends()));
    assert!(
        finished
            .iter()
            .all(|(end, count)| *count >= 4 && end != "drained"),
        "{finished:?}"
    );
    let elsewhere: u64 = finished.iter().map(|(_, count)| count).sum();
    assert!(
        elsewhere < rows,
        "the controller ran some too: {finished:?}"
    );
    assert_eq!(cluster.results(), undisturbed(rows));
    assert_eq!(cluster.attempts(), vec![1; 60]);

    // The log of the run tells of every rollout, wherever it ran.
    let log = cluster.workspace.read(".osmosis/evals/t/logs.txt");
    for row in 0..rows {
        assert!(log.contains(&format!(" r{row}-0 | scored")), "{row}\n{log}");
    }
    // What opens the run is in one file that its owner alone can read, beside what was printed.
    let folder = cluster.workspace.run_folder("t");
    let token = folder.join("join-token");
    let mode = token.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let [_, password, key] = secrets_of(&invitation.join);
    for secret in [&password, &key, &"s3cret".to_owned()] {
        assert_eq!(files_with(&folder, secret), Vec::<Utf8PathBuf>::new());
    }
    assert_eq!(files_with(&folder, &invitation.join), [token]);
    cluster.workspace.osmosis(&["run", "verify", "t"]).expect(0);
}

const METRICS_KEY: &str = "metrics-key";

/// The page of metrics that a process said it serves.
fn metrics_of(process: &Process) -> String {
    let mut address = None;
    wait_until("it serves metrics", SOON, || {
        let said = process.stderr();
        let found = said.split("Metrics at http://").nth(1);
        address = found.and_then(|rest| Some(rest.split_once('/')?.0.to_owned()));
        address.is_some()
    });
    let mut stream = TcpStream::connect(address.unwrap()).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {METRICS_KEY}\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn metrics_tell_of_the_queue_and_of_the_nodes() {
    let cluster = Cluster::new(5);
    let metrics = ["--metrics-listen", "127.0.0.1:0", "--nodes-only"];
    let python = osmosis_testkit::python_environment::python();
    let submit = ["eval", "submit", "configs/eval/c.toml", "--name", "t"];
    let arguments = [&submit[..], &metrics, &["--python", python.as_str()]].concat();
    let mut controller = cluster.workspace.command(&arguments);
    controller.env("OSMOSIS_CONTROL_KEY", METRICS_KEY);
    let controller = cluster.begin("controller", &mut controller);
    let mut command = None;
    wait_until("the controller takes nodes", SOON, || {
        let said = controller.stderr();
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix("More machines: "));
        command = line.map(str::to_owned);
        command.is_some()
    });
    // By what is in the environment, as supervisors start it.
    let words: Vec<String> = command
        .unwrap()
        .split_whitespace()
        .map(|word| word.trim_matches('\'').to_owned())
        .collect();
    let after = |option: &str| {
        let at = words.iter().position(|word| word == option).unwrap();
        words[at + 1].clone()
    };
    let listen = ["--max-in-flight", "3", "--metrics-listen", "127.0.0.1:0"];
    let mut node = cluster.node_command(&listen);
    node.env("OSMOSIS_STORE", after("--store"))
        .env("OSMOSIS_JOIN", after("--join"))
        .env("OSMOSIS_CONTROL_KEY", METRICS_KEY);
    let node = cluster.begin("node", &mut node);
    cluster.until_held(&node, 3);
    for process in [&controller, &node] {
        let pid = node.child.id();
        let leases = format!("pid=\"{pid}\"}} 3\n");
        wait_until("the numbers are fresh", SOON, || {
            let page = metrics_of(process);
            page.contains("osmosis_queue_rollouts{state=\"queued\"} 2\n")
                && page.contains("osmosis_queue_rollouts{state=\"leased\"} 3\n")
                && page.contains("osmosis_nodes{state=\"working\"} 1\n")
                && page.contains("osmosis_node_seen_seconds{")
                && page.contains(&leases)
                && page.contains("osmosis_gateway_")
                && page.ends_with("# EOF\n")
        });
    }
    cluster.open_gate();
    controller.ends().expect(0);
    let ran = node.ends().expect(0);
    assert!(
        ran.stdout.contains("This node finished 5 rollouts"),
        "{}",
        ran.stdout
    );
    assert_eq!(cluster.results(), undisturbed(5));
}
