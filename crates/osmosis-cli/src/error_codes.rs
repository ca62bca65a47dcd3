//! `docs/errors.md` is made of this, and of nothing else: a test compares, and `OSMOSIS_UPDATE_DOCS=1`
//! writes it anew. A kind of error that nothing fails with fails the test.

use std::fmt::Write as _;

use camino::{Utf8Path, Utf8PathBuf};

use osmosis_run::RunErrorKind;

use crate::error::Exit;

const EXITS: [(Exit, &str); 6] = [
    (
        Exit::Ok,
        "done; an evaluation is complete, whatever its scores",
    ),
    (Exit::Failed, "failed: the message says why, and what to do"),
    (Exit::Usage, "wrong usage"),
    (
        Exit::Incomplete,
        "incomplete: infrastructure failures or rollouts without a result remain, or `--max-cost` is reached; the command that continues the run is printed. For a training: no update was made, or it ended before its planned steps were done, and its conclusion gives the reason. An incomplete evaluation exits with 3 even if it is below a `--fail-under`",
    ),
    (Exit::Gate, "complete, and below a `--fail-under`"),
    (
        Exit::Interrupted,
        "interrupted; the command that resumes is printed",
    ),
];

fn page() -> String {
    let mut page =
        "# Exit and error codes\n\nGenerated from the code by `crates/osmosis-cli/src/error_codes.rs`.\n\n## Exit codes\n\n| code | meaning |\n|---|---|\n"
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
    for kind in RunErrorKind::ALL {
        let _ = writeln!(page, "| `{kind}` | {} |", kind.meaning());
    }
    page
}

/// The program's own sources, without this file and the list of kinds.
fn sources(folder: &Utf8Path, text: &mut String) {
    for entry in folder.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            sources(entry.path(), text);
        } else if entry.file_name() != "error_codes.rs" && entry.file_name() != "error_kind.rs" {
            text.push_str(&std::fs::read_to_string(entry.path()).unwrap());
        }
    }
}

#[test]
fn every_kind_of_error_is_used() {
    let mut text = String::new();
    for folder in ["/src", "/../osmosis-run/src", "/../osmosis-server/src"] {
        let folder = format!("{}{folder}", env!("CARGO_MANIFEST_DIR"));
        sources(Utf8Path::new(&folder), &mut text);
    }
    for kind in RunErrorKind::ALL {
        assert!(
            text.contains(&format!("RunErrorKind::{kind:?}")),
            "nothing fails with `{kind}`"
        );
    }
    assert!(RunErrorKind::ALL.is_sorted_by_key(|kind| kind.code()));
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
