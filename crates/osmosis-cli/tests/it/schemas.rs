//! What the program prints with `--json`, and what it leaves in a run's folder, is what `docs/schema/` says.

use std::io::Write as _;
use std::process::{Command, Stdio};

use camino::Utf8Path;
use osmosis_testkit::python_environment;
use serde_json::{Value, json};

use crate::training::{OFTEN, SHORT};
use crate::workspace::{CHECKSUM, ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// Documents to be held against the schemas, all by one process.
#[derive(Default)]
struct Documents(Vec<Value>);

impl Documents {
    fn add(&mut self, schema: &str, document: Value) {
        let mut pair = json!({"schema": schema});
        pair["document"] = document;
        self.0.push(pair);
    }

    fn add_lines(&mut self, schema: &str, lines: &str) {
        assert!(!lines.is_empty(), "no {schema}");
        for line in lines.lines() {
            self.add(schema, serde_json::from_str(line).unwrap());
        }
    }

    fn add_all(&mut self, schema: &str, documents: &Value) {
        let documents = documents.as_array().unwrap();
        assert!(!documents.is_empty(), "no {schema}");
        for document in documents {
            self.add(schema, document.clone());
        }
    }

    /// What the validator says; empty when all is well.
    fn complaints(&self) -> String {
        let schemas = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
        let mut python = Command::new(python_environment::python())
            .args(["-c", include_str!("validate.py"), schemas.as_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let documents = serde_json::to_vec(&self.0).unwrap();
        let mut input = python.stdin.take().unwrap();
        input.write_all(&documents).unwrap();
        drop(input);
        let output = python.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[test]
fn documents_of_an_evaluation_are_as_their_schemas_say() {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        "        if ctx.prompt[-1]['content'] == 'say 1':\n            raise RuntimeError('broken')\n        \
         return [*ctx.prompt",
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(4));
    workspace.config("[evaluation]\nn = 2\n");
    let python = python_environment::python();
    let osmosis = |arguments: &[&str]| workspace.osmosis(arguments).json();
    let mut documents = Documents::default();

    let prices = ["--price-prompt", "1", "--price-completion", "2"];
    let gates = ["--fail-under", "reward=0.1", "--fail-under", "pass@2=0.1"];
    let report = workspace.submit_json(&[&prices[..], &gates[..]].concat());
    assert_eq!(report["gates"][1]["holds"], true, "{report}");
    documents.add("run-report", report);
    let metrics = workspace.read(".osmosis/evals/t/metrics.json");
    documents.add("run-report", serde_json::from_str(&metrics).unwrap());
    documents.add_lines(
        "rollout-line",
        &workspace.read(".osmosis/evals/t/index.jsonl"),
    );
    documents.add(
        "run-info",
        osmosis(&["eval", "info", "t", "--json"])["data"].clone(),
    );
    let judged = [&["eval", "info", "t", "--json"], &gates[..]].concat();
    documents.add("run-info", osmosis(&judged)["data"].clone());
    for row in ["0", "1"] {
        let shown = osmosis(&["eval", "show", "t", row, "--json"]);
        documents.add_all("rollout-details", &shown["data"]);
    }
    documents.add_all(
        "run-summary",
        &osmosis(&["eval", "list", "--json"])["items"],
    );

    // Two models, one of them as before.
    workspace.write("policies/q.toml", "[[reply]]\ntext = \"0\"\n");
    let models = "script:policies/p.toml,script:policies/q.toml";
    let compared = workspace.submit_json(&["--model", models]);
    assert_eq!(compared["comparisons"][0]["first"], "t-1", "{compared}");
    documents.add("model-runs-report", compared);

    // Another grader.
    let stricter = main.replace(
        "1.0 if ctx.label in",
        "1.0 if int(ctx.label) % 2 == 0 and ctx.label in",
    );
    workspace.write("rollouts/r/main.py", &stricter);
    let regrade = [
        "eval",
        "regrade",
        "t",
        "--name",
        "g",
        "--json",
        "--python",
        python.as_str(),
    ];
    let regraded = osmosis(&regrade)["resource"].clone();
    assert_eq!(regraded["flips"]["broken"], 2, "{regraded}");
    documents.add("run-report", regraded);
    documents.add_lines("flip", &workspace.read(".osmosis/evals/g/flips.jsonl"));
    documents.add(
        "run-info",
        osmosis(&["eval", "info", "g", "--json"])["data"].clone(),
    );
    let shown = osmosis(&["eval", "show", "g", "3", "--json"]);
    documents.add_all("rollout-details", &shown["data"]);
    let compared = osmosis(&["eval", "compare", "t", "g", "--json"]);
    assert_ne!(compared["data"]["others"][0]["broken"]["count"], 0);
    documents.add("comparison", compared["data"].clone());

    let shared = osmosis(&["eval", "report", "g", "--compare", "t", "--json"]);
    documents.add("shared-report", shared["data"].clone());
    let written = osmosis(&["eval", "report", "t", "--out", "t.html", "--json"]);
    documents.add("written-report", written["resource"].clone());
    let preview = osmosis(&["dataset", "preview", "d", "--json"]);
    documents.add("dataset-preview", preview["data"].clone());
    let exported = osmosis(&["export", "t", "--format", "sft", "--json"]);
    documents.add("export-report", exported["resource"].clone());
    let verified = osmosis(&["run", "verify", "eval/t", "--json"]);
    documents.add("verified-run", verified["resource"].clone());
    let salvaged = osmosis(&["run", "salvage", "eval/t", "--json"]);
    documents.add("salvaged-run", salvaged["resource"].clone());
    let elsewhere = tempfile::tempdir().unwrap();
    let elsewhere = elsewhere.path().to_str().unwrap();
    let copied = osmosis(&["run", "copy", "eval/t", "--to", elsewhere, "--json"]);
    documents.add("copied-run", copied["resource"].clone());
    assert_eq!(documents.complaints(), "");
}

#[test]
fn documents_of_a_training_are_as_their_schemas_say() {
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &echo_rows(8));
    workspace.training(
        "builtin/tiny",
        &format!("{SHORT}max_staleness = 1\n"),
        OFTEN,
    );
    let osmosis = |arguments: &[&str]| workspace.osmosis(arguments).json();
    let mut documents = Documents::default();
    let checked = workspace.train(&["--dry-run", "--json"]).expect(0).json();
    documents.add("train-dry-run", checked["resource"].clone());
    let report = workspace.train(&["--json"]).expect(0).json()["resource"].clone();
    assert!(report["staleness"].is_object(), "{report}");
    documents.add("training-report", report);
    let metrics = workspace.read(".osmosis/training/t/metrics.json");
    documents.add("training-report", serde_json::from_str(&metrics).unwrap());
    documents.add(
        "training-info",
        osmosis(&["train", "info", "t", "--json"])["data"].clone(),
    );
    documents.add_all(
        "run-summary",
        &osmosis(&["train", "list", "--json"])["items"],
    );
    let shown = osmosis(&["train", "show", "t", "0", "--json"]);
    documents.add_all("rollout-details", &shown["data"]);
    let exported = osmosis(&["export", "t", "--format", "verl", "--json"]);
    documents.add("export-report", exported["resource"].clone());
    let verified = osmosis(&["run", "verify", "training/t", "--json"]);
    documents.add("verified-run", verified["resource"].clone());
    assert_eq!(documents.complaints(), "");
}

#[test]
fn the_schemas_reject_what_is_no_report() {
    let mut documents = Documents::default();
    let summary = json!({
        "run_name": "t", "status": "finished", "done": 1, "total": 1, "created_at": "now",
        "output_path": "/x", "model": null, "dataset": null, "pass_rate": null, "reward": null,
        "cost": null, "tags": [],
    });
    documents.add("run-summary", summary.clone());
    assert_eq!(documents.complaints(), "");
    for (key, value) in [
        ("done", json!("1")),
        ("status", json!("asleep")),
        ("of_tomorrow", json!(1)),
    ] {
        let mut documents = Documents::default();
        let mut other = summary.clone();
        other[key] = value;
        documents.add("run-summary", other);
        assert!(documents.complaints().contains("run-summary"), "{key}");
    }
}

#[test]
fn documents_of_runs_that_are_over_are_as_their_schemas_say() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    workspace.submit(&[]).expect(0);
    let resource = |arguments: &[&str]| {
        let ran = workspace.osmosis(&[arguments, &["--json"]].concat());
        ran.expect(0).json()["resource"].clone()
    };
    let mut documents = Documents::default();
    documents.add("tagged-run", resource(&["run", "tag", "t", "good"]));
    documents.add("moved-run", resource(&["run", "rename", "t", "u"]));
    let archived = resource(&["run", "archive", "u"]);
    documents.add_all("moved-run", &archived["runs"]);
    documents.add("archival-report", archived);
    documents.add("moved-run", resource(&["run", "restore", "u"]));
    let prune = ["run", "prune", "--keep", "0", "--dry-run"];
    documents.add("removal-report", resource(&prune));
    documents.add("removal-report", resource(&["run", "rm", "u", "--dry-run"]));
    let sizes = workspace.osmosis(&["run", "du", "--json"]).expect(0).json();
    documents.add_all("run-size", &sizes["items"]);
    assert_eq!(documents.complaints(), "");
}

#[test]
fn what_commands_say_without_a_run_is_as_its_schema_says() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    let progress = workspace.root.join("progress.jsonl");
    workspace
        .submit(&["--progress", &format!("ndjson:{progress}")])
        .expect(0);
    let resource = |arguments: &[&str]| {
        let ran = workspace.osmosis(&[arguments, &["--json"]].concat());
        ran.expect(0).json()["resource"].clone()
    };
    let mut documents = Documents::default();
    documents.add_lines("progress-line", &std::fs::read_to_string(progress).unwrap());
    documents.add("eval-dry-run", workspace.submit_json(&["--dry-run"]));
    workspace.write("policies/q.toml", "[[reply]]\ntext = \"0\"\n");
    let models = "script:policies/p.toml,script:policies/q.toml";
    documents.add(
        "model-dry-runs",
        workspace.submit_json(&["--dry-run", "--model", models]),
    );
    let python = python_environment::python();
    documents.add(
        "regrade-dry-run",
        resource(&[
            "eval",
            "regrade",
            "t",
            "--dry-run",
            "--python",
            python.as_str(),
        ]),
    );
    documents.add("stopped-run", resource(&["eval", "stop", "t"]));
    documents.add("written-pages", resource(&["man", "pages"]));
    let failed = |arguments: &[&str]| {
        let ran = workspace.osmosis(&[arguments, &["--json"]].concat());
        let mut error = ran.error();
        let mut details = error["details"].take();
        // Added to whatever details there are.
        details.as_object_mut().unwrap().remove("hint");
        (error["code"].clone(), details)
    };
    workspace.write("configs/eval/wrong.toml", "[experiment]\nrollot = 1\n");
    let (code, details) = failed(&["eval", "submit", "configs/eval/wrong.toml"]);
    assert_eq!(code, "config_invalid");
    assert!(!details["problems"].as_array().unwrap().is_empty());
    documents.add("error-details", details);
    workspace.write("data/d.jsonl", "{\n");
    let (code, details) = failed(&["eval", "submit", "configs/eval/c.toml", "--name", "v"]);
    assert_eq!(code, "dataset_invalid");
    assert_eq!(details["rows"][0]["line"], 1);
    documents.add("error-details", details);
    assert_eq!(documents.complaints(), "");
}
