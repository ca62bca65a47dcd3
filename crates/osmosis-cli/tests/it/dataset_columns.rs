//! Datasets as people have them: with other columns, in several files.

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// `say N` with other names for its columns.
fn questions(from: u64, to: u64) -> String {
    let line = |i| format!("{{\"question\": \"say {i}\", \"answer\": {i}, \"id\": \"q{i}\"}}");
    let lines: Vec<String> = (from..to).map(line).collect();
    format!("{}\n", lines.join("\n"))
}

const COLUMNS: &str = "[dataset.columns]\nuser_prompt = \"question\"\nground_truth = \"answer\"\n";

#[test]
fn a_preview_shows_columns_and_rows_as_the_agent_gets_them() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, "");
    workspace.write(
        "data/d.jsonl",
        "{\"system_prompt\": \"Be brief.\", \"user_prompt\": \"say 1\", \"label\": 1, \"metadata\": {\"a\": [1, 2]}}\n\
         {\"user_prompt\": \"two\\nlines\", \"label\": \"2\", \"metadata\": null, \"extra\": true}\n\
         {\"user_prompt\": 3, \"label\": \"3\"}\n",
    );
    let ran = workspace
        .osmosis(&["dataset", "preview", "data/d.jsonl"])
        .expect(0);
    insta::assert_snapshot!(ran.stdout.replace(workspace.root.as_str(), ""));
    let ran = workspace
        .osmosis(&["dataset", "preview", "d", "--rows", "1", "--json"])
        .expect(0);
    let data = &ran.json()["data"];
    assert_eq!(data["rows"], 3);
    assert_eq!(data["items"].as_array().unwrap().len(), 1);
    assert_eq!(data["items"][0]["prompt"][1]["content"], "say 1");
    assert_eq!(data["items"][0]["label"], "1");
    assert_eq!(data["columns"][2]["read_as"], "ground_truth");
}

#[test]
fn a_preview_of_other_columns_says_how_to_name_them() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &questions(0, 5000));
    let root = workspace.root.to_string();
    let ran = workspace
        .osmosis(&["dataset", "preview", "d", "--rows", "1"])
        .expect(0);
    insta::assert_snapshot!(ran.stdout.replace(&root, ""));
    let named = [
        "--column",
        "user_prompt=question",
        "--column",
        "ground_truth=answer",
    ];
    let preview = [&["dataset", "preview", "d", "--rows", "1"][..], &named].concat();
    let ran = workspace.osmosis(&preview).expect(0);
    insta::assert_snapshot!(ran.stdout.replace(&root, ""));
    let validate = [&["dataset", "validate", "d"][..], &named].concat();
    workspace.osmosis(&validate).expect(0);
    let ran = workspace
        .osmosis(&["dataset", "validate", "d", "--column", "prompt=question"])
        .expect(2);
    insta::assert_snapshot!(ran.stderr);
}

#[test]
fn a_missing_column_is_one_line_and_a_hint() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &questions(0, 5000));
    let ran = workspace.submit(&[]).expect(1);
    let told: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| line.contains("column"))
        .collect();
    insta::assert_snapshot!(told.join("\n").replace(workspace.root.as_str(), ""));
}

#[test]
fn a_config_names_the_columns_of_its_dataset_and_a_run_is_pinned_to_them() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &questions(0, 3));
    workspace.config(COLUMNS);
    let resource = workspace.submit_json(&[]);
    assert_eq!(resource["pass_rate"], 1.0, "{resource:#}");
    let info = workspace
        .osmosis(&["eval", "info", "t", "--json"])
        .expect(0)
        .json();
    assert_eq!(
        info["data"]["pinned"]["dataset.columns"],
        serde_json::json!({"user_prompt": "question", "ground_truth": "answer"}),
        "{:#}",
        info["data"]["pinned"]
    );
    workspace.config(&COLUMNS.replace("\"answer\"", "\"id\""));
    let ran = workspace.submit(&[]).expect(1);
    assert!(ran.stderr.contains("dataset.columns"), "{}", ran.stderr);
}

#[test]
fn a_pattern_and_a_folder_of_datasets_are_evaluated() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, "");
    workspace.write("data/part-2.jsonl", &questions(2, 4));
    workspace.write("data/part-1.jsonl", &questions(0, 2));
    workspace.config(COLUMNS);
    let config = workspace.read("configs/eval/c.toml");
    assert!(config.contains("dataset = \"d\""), "{config}");
    let with = |dataset: &str| {
        let dataset = format!("dataset = \"{dataset}\"");
        workspace.write(
            "configs/eval/c.toml",
            &config.replace("dataset = \"d\"", &dataset),
        );
    };
    with("data/part-*.jsonl");
    let resource = workspace.submit_json(&[]);
    assert_eq!(resource["outcomes"]["scored"], 4, "{resource:#}");
    let prompts: Vec<String> = (0..4)
        .map(|row| {
            workspace
                .osmosis(&["eval", "show", "t", &row.to_string()])
                .expect(0)
                .stdout
        })
        .collect();
    assert!(prompts[3].contains("say 3"), "{}", prompts[3]);

    // What `save_to_disk` of Hugging Face's `datasets` wrote.
    let saved = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../osmosis-data/fixtures/saved"
    );
    let folder = workspace.root.join("data/saved");
    std::fs::create_dir(&folder).unwrap();
    for file in std::fs::read_dir(saved).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        std::fs::copy(file.path(), folder.join(name)).unwrap();
    }
    with("saved");
    workspace.write("policies/p.toml", "[[reply]]\ntext = \"7\"\n");
    let resource = workspace.submit_json(&["--fresh"]);
    assert_eq!(resource["outcomes"]["scored"], 5, "{resource:#}");
    assert_eq!(resource["pass_rate"], 0.2, "{resource:#}");
}

#[test]
fn a_training_reads_both_datasets_by_these_names() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &questions(0, 4));
    workspace.write("data/held.jsonl", &questions(4, 6));
    workspace.training(
        "builtin/tiny",
        "eval_dataset = \"held\"\nsteps = 1\n",
        COLUMNS,
    );
    workspace.train(&["--dry-run"]).expect(0);
    // A row that both have is found under these names, too.
    workspace.write("data/held.jsonl", &questions(3, 5));
    let ran = workspace.train(&["--dry-run"]).expect(1);
    assert!(ran.stderr.contains("held out"), "{}", ran.stderr);
    workspace.write("data/held.jsonl", &echo_rows(2));
    let ran = workspace.train(&["--dry-run"]).expect(1);
    assert!(
        ran.stderr.contains("missing column `question`"),
        "{}",
        ran.stderr
    );
}
