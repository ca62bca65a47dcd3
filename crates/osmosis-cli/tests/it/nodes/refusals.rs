//! What a token opens, and what nodes are refused.

use base64::Engine as _;
use osmosis_testkit::python_environment;
use serde_json::json;

use super::{Cluster, GATED, Invitation, secrets_of};
use crate::workspace::Ran;

#[test]
fn a_token_opens_its_run_and_no_other() {
    let cluster = Cluster::new(2);
    cluster.open_gate();
    let controller = cluster.controller(&[]);
    let invitation = controller.invitation();
    controller.ends().expect(0);
    let python = python_environment::python();
    let other = ["eval", "submit", "configs/eval/c.toml", "--name", "other"];
    let arguments = [&other[..], &["--python", python.as_str()]].concat();
    cluster.workspace.osmosis(&arguments).expect(0);

    let [role, password, _] = secrets_of(&invitation.join);
    let url = cluster
        .server
        .url_as(&format!("{role}:{password}"), "postgres");
    let osmosis = |arguments: &[&str]| {
        let arguments = [arguments, &["--store", &url, "--json"]].concat();
        cluster.workspace.osmosis(&arguments)
    };
    let listed = osmosis(&["eval", "list"]).expect(0).json();
    assert_eq!(listed["total_count"], 1, "{listed}");
    assert_eq!(listed["items"][0]["run_name"], "t");
    let missing = osmosis(&["eval", "info", "other"]).expect(1);
    assert_eq!(missing.error()["code"], "run_not_found");
    let refused = osmosis(&["run", "rm", "t", "--yes"]).expect(1);
    assert_eq!(refused.error()["code"], "store_denied");
    // Nor may it stop its run, or take it over.
    let refused = osmosis(&["eval", "resume", "t", "--python", python.as_str()]).expect(1);
    assert_eq!(refused.error()["code"], "store_denied");
}

#[test]
fn a_node_that_can_not_join_says_why() {
    let cluster = Cluster::new(1);
    cluster.open_gate();
    let controller = cluster.controller(&[]);
    let Invitation { store, join } = controller.invitation();
    controller.ends().expect(0);
    let [role, password, key] = secrets_of(&join);
    let forged =
        json!({"run": "t", "kind": "evaluation", "role": role, "password": "wrong", "key": key});
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let forged = format!("osn1_{}", engine.encode(forged.to_string()));
    let owner = cluster.server.url();
    let nowhere = "postgres://127.0.0.1:1/x";
    for (arguments, code, exit, text) in [
        (
            vec!["--store", &store, "--join", "hunter2"],
            "token_invalid",
            2,
            "osn1_",
        ),
        (
            vec!["--store", &store, "--join", &join[..60]],
            "token_invalid",
            2,
            "cut off",
        ),
        (
            vec!["--store", &store, "--join", &join, "--run", "other"],
            "token_invalid",
            2,
            "eval/t",
        ),
        (
            vec!["--store", &store, "--join", &forged],
            "store_denied",
            1,
            "token",
        ),
        (
            vec!["--store", &owner, "--run", "missing"],
            "run_not_found",
            1,
            "missing",
        ),
        (
            vec!["--store", &store, "--join", &join],
            "run_over",
            1,
            "finished",
        ),
        (
            vec!["--store", nowhere, "--join", &join],
            "store_unreachable",
            1,
            "127.0.0.1:1",
        ),
        (vec!["--join", &join], "usage", 2, "--store"),
        (vec!["--store", &owner], "usage", 2, "--run"),
    ] {
        let arguments = [&["node", "--json"], &arguments[..]].concat();
        let mut command = cluster.workspace.command(&arguments);
        let ran = Ran::of(&command.env("OSMOSIS_STORE", "").output().unwrap()).expect(exit);
        let error = ran.error();
        assert_eq!(error["code"], code, "{arguments:?}: {error}");
        assert!(error.to_string().contains(text), "{arguments:?}: {error}");
        for secret in [&password, &key] {
            assert!(!error.to_string().contains(secret), "{error}");
        }
    }
    // Without a database there is nothing that nodes could work on.
    let mut command = cluster.workspace.command(&[
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--nodes-only",
        "--json",
    ]);
    let ran = Ran::of(&command.env("OSMOSIS_STORE", "").output().unwrap()).expect(2);
    assert!(
        ran.error().to_string().contains("--store"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_node_runs_nothing_but_the_files_that_the_run_is_pinned_to() {
    let cluster = Cluster::new(1);
    // Files that no other test has left in the cache.
    let agent = format!("{GATED}\n# {:x}\n", rand::random::<u128>());
    cluster.workspace.write("rollouts/r/main.py", &agent);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    cluster.sql(
        "CREATE TABLE kept AS SELECT content FROM osmosis.package_files;
         UPDATE osmosis.package_files SET content = 'print(1)';",
    );
    let refused = cluster.node("node", &invitation, &[]).ends().expect(1);
    assert_eq!(refused.error()["code"], "run_damaged");
    assert!(
        refused.stderr.contains("other content"),
        "{}",
        refused.stderr
    );

    // Nor files that are whole, and are others.
    let sha256 = "9ea3ddb5ae5f1a4b9de8dcb5d2a1ee6a64c6f1a6b1a1f9a1b2c3d4e5f6a7b8c9";
    cluster.sql(&format!(
        "UPDATE osmosis.packages SET manifest = regexp_replace(manifest, '(main.py\":\\{{\"sha256\":\")[0-9a-f]+', '\\1{sha256}')"
    ));
    let refused = cluster.node("node", &invitation, &[]).ends().expect(1);
    assert_eq!(refused.error()["code"], "run_damaged");
    assert!(refused.stderr.contains("pinned to"), "{}", refused.stderr);

    // Tables of another version are nobody's to guess at.
    cluster.sql("UPDATE osmosis.schema_version SET version = 99");
    let refused = cluster.node("node", &invitation, &[]).ends().expect(1);
    let told = refused.error().to_string();
    assert!(
        told.contains("schema version 99") && told.contains("knows 3"),
        "{told}"
    );
    drop(controller);
}
