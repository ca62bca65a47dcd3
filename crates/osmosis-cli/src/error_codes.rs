//! `docs/errors.md` is made of this, and of nothing else: a test compares, and `OSMOSIS_UPDATE_DOCS=1`
//! writes it anew. A code that the program uses and that is not here fails the test.

use std::fmt::Write as _;

use camino::{Utf8Path, Utf8PathBuf};

use crate::error::Exit;

/// The codes in `error.code` of `--json`, in order.
const CODES: &[(&str, &str)] = &[
    (
        "config_invalid",
        "the config has problems; `details.problems` lists all of them with their places",
    ),
    (
        "dataset_changed",
        "the dataset was changed while it was read",
    ),
    (
        "dataset_invalid",
        "rows of the dataset can't be used; every one is named with its line",
    ),
    (
        "datasets_differ",
        "runs that are to be compared have different datasets; `--shared-rows` compares what they share",
    ),
    ("declined", "you answered no"),
    (
        "engine",
        "the run could not go on; what has a result keeps it, and a resume goes on",
    ),
    (
        "engine_unusable",
        "the settings of the inference engine do not go together",
    ),
    (
        "entrypoint_invalid",
        "the rollout's code can't be used: no or several workflows or graders, import errors; `details.problems`",
    ),
    ("entrypoint_not_found", "the entrypoint's file is not there"),
    (
        "environment",
        "the rollout's Python environment can't be made",
    ),
    (
        "file_exists",
        "a file is there already and is not overwritten",
    ),
    ("file_not_found", "a file that was named is not there"),
    ("gateway", "the gateway can't listen"),
    (
        "held_out_overlap",
        "rows are trained on and held out at once; the first ones are named with both places",
    ),
    ("internal", "a fault of this program; please report it"),
    (
        "interrupted",
        "stopped by a signal before there was anything to resume",
    ),
    ("io", "a file or folder can't be read or written"),
    ("model_invalid", "the model can't be opened"),
    ("model_key_refused", "the model server turned the key away"),
    (
        "model_not_found",
        "the model server has no model of that name",
    ),
    (
        "model_not_trainable",
        "a model behind an endpoint is trained by its own trainer",
    ),
    (
        "model_unconfigured",
        "`model_path` needs an environment variable that is not set",
    ),
    (
        "model_unreachable",
        "no model server answers at the address",
    ),
    (
        "no_grader",
        "the rollout grades itself, so there is nothing to grade a run again with",
    ),
    (
        "no_rollout_server",
        "the entrypoint makes no rollout server",
    ),
    (
        "no_shared_rows",
        "runs that are to be compared have no row in common",
    ),
    (
        "no_training_rows",
        "no rollout of the run has a reward and tokens to train on; `details.left_out`",
    ),
    ("no_workers", "no worker could be started"),
    (
        "nothing_to_grade",
        "no rollout of the run, among the rows asked for, has a result",
    ),
    ("rollout_exists", "a rollout of that name is there already"),
    (
        "rollout_not_found",
        "there is no such rollout, in the workspace or in the run",
    ),
    (
        "run_ambiguous",
        "runs of two kinds have that name; write `eval/NAME`, `train/NAME` or `serve/NAME`",
    ),
    (
        "run_damaged",
        "the files of the run are damaged; `osmosis run verify` lists what is, `osmosis run salvage` saves the rest",
    ),
    (
        "run_elsewhere",
        "the run is held by a process on another machine",
    ),
    ("run_held", "another process has the run"),
    ("run_not_found", "there is no run of that name"),
    (
        "run_pinned",
        "the run was made with another model, dataset, config or source; `details.differences`",
    ),
    ("runtime", "the program could not start its threads"),
    ("script_invalid", "the scripted policy has problems"),
    ("sdk_not_found", "the Python SDK is not where it should be"),
    ("secret_missing", "a name in `[secrets]` has no value"),
    ("secrets_file", "the secrets file can't be read"),
    ("serve", "the rollout server can't run"),
    ("signals", "signals can't be listened to"),
    (
        "source_mismatch",
        "`branch` or `commit_sha` is not what is checked out",
    ),
    (
        "state_key",
        "the key that `osmosis serve` keeps accepted rollouts with can't be used",
    ),
    ("stop_failed", "the run could not be stopped"),
    ("store", "the run's database can't be read or written"),
    ("tokenizer_invalid", "the tokenizer folder can't be used"),
    (
        "tracker_unavailable",
        "the package that `--log` needs is not there, or can't be used",
    ),
    ("training", "the training could not go on"),
    (
        "usage",
        "the command line makes no sense; the exit code is 2",
    ),
    (
        "worker_protocol",
        "the worker speaks another version of the protocol",
    ),
    ("worker_socket", "the socket for workers can't be made"),
    ("worker_start", "a worker died or fell silent as it started"),
    ("workspace_invalid", "the folder is no workspace"),
    ("workspace_not_found", "no folder above holds `rollouts/`"),
];

const EXITS: [(Exit, &str); 6] = [
    (
        Exit::Ok,
        "done; an evaluation is complete, whatever its scores",
    ),
    (Exit::Failed, "failed: the message says why, and what to do"),
    (Exit::Usage, "wrong usage"),
    (
        Exit::Incomplete,
        "incomplete: infrastructure failures or rollouts without a result remain, or `--max-cost` is reached; the command that goes on is printed. It goes before 4: what is incomplete is not judged",
    ),
    (Exit::Gate, "complete, and below a `--fail-under`"),
    (
        Exit::Interrupted,
        "interrupted; the command that resumes is printed",
    ),
];

fn page() -> String {
    let mut page =
        "# Exit and error codes\n\nMade from the code; `crates/osmosis-cli/src/error_codes.rs` \
        says how.\n\n## Exit codes\n\n| code | meaning |\n|---|---|\n"
            .to_owned();
    for (exit, meaning) in EXITS {
        let _ = writeln!(page, "| {} | {meaning} |", exit.code());
    }
    page.push_str(
        "\n## Error codes\n\nWith `--json`, an error is one document on standard error: \
         `{\"schema_version\": 1, \"command\": …, \"error\": {\"code\": …, \"message\": …, \
         \"details\": …}}`. The code is stable, the message is for people, and `details.hint` says what \
         to do. Errors exit with 1, those of usage with 2.\n\n| code | meaning |\n|---|---|\n",
    );
    for (code, meaning) in CODES {
        let _ = writeln!(page, "| `{code}` | {meaning} |");
    }
    page
}

/// The program's own sources, without this file.
fn sources(folder: &Utf8Path, text: &mut String) {
    for entry in folder.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            sources(entry.path(), text);
        } else if entry.file_name() != "error_codes.rs" {
            text.push_str(&std::fs::read_to_string(entry.path()).unwrap());
        }
    }
}

/// The literals that errors are made with: `failed("code", …)`.
fn used(text: &str) -> Vec<&str> {
    let mut found = vec![];
    for start in ["::failed(", "::usage("] {
        for rest in text.split(start).skip(1) {
            let literal = rest.trim_start().strip_prefix('"');
            found.extend(literal.and_then(|rest| rest.split('"').next()));
        }
    }
    found
}

#[test]
fn every_code_is_documented_and_every_documented_code_is_used() {
    let mut text = String::new();
    sources(
        Utf8Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")),
        &mut text,
    );
    let undocumented: Vec<&str> = used(&text)
        .into_iter()
        .filter(|code| CODES.iter().all(|(known, _)| known != code))
        .collect();
    assert!(undocumented.is_empty(), "add to CODES: {undocumented:?}");
    for (code, _) in CODES {
        assert!(
            text.contains(&format!("\"{code}\"")),
            "nothing fails with `{code}`"
        );
    }
    assert!(CODES.is_sorted_by_key(|(code, _)| *code));
}

#[test]
fn the_page_of_codes_says_what_the_code_says() {
    let path = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md"));
    if std::env::var_os("OSMOSIS_UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page(),
        "docs/errors.md is not what the code says; run this test with OSMOSIS_UPDATE_DOCS=1"
    );
}
