//! Makes runs for tests and measurements of the viewer, through the store's own API:
//! `make_runs WORKSPACE KIND NAME [COUNT]`.
//!
//! Kinds: `every-outcome`, `large` (COUNT rollouts of four to a row), `long` (a rollout of 200 turns and 100,000
//! tokens), `hostile`, `training`, `live` and `live-training` (which take a result or a step each time a line comes
//! on standard input, and end with it).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a program for tests, which ends where it can't go on"
)]

#[path = "../../tests/support/made_run.rs"]
mod made_run;

use std::io::BufRead as _;

use camino::Utf8PathBuf;
use osmosis_store::RunKind;

use made_run::{MadeRun, Story};

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [workspace, kind, name, rest @ ..] = &arguments[..] else {
        panic!("make_runs WORKSPACE KIND NAME [COUNT]");
    };
    let workspace = Utf8PathBuf::from(workspace);
    std::fs::create_dir_all(workspace.join("rollouts")).unwrap();
    let count: u64 = rest.first().map_or(0, |count| count.parse().unwrap());
    let kind_of_run = if kind.ends_with("training") {
        RunKind::Training
    } else {
        RunKind::Evaluation
    };
    let run = MadeRun::begin(&workspace, kind_of_run, name).await;
    match kind.as_str() {
        "every-outcome" => run.every_outcome().await,
        "large" => run.large(count).await,
        "long" => run.long(200, 500).await,
        "hostile" => run.hostile().await,
        "training" => {
            for step in 1..=12 {
                run.step(step).await;
            }
        }
        "live" => {
            run.plan(8, 4).await;
            println!("ready");
            for (at, _) in std::io::stdin().lock().lines().enumerate() {
                run.next(&Story::plain((at % 2) as f64)).await;
                println!("done {at}");
            }
        }
        "live-training" => {
            run.step(1).await;
            println!("ready");
            for (at, _) in std::io::stdin().lock().lines().enumerate() {
                run.step(at as u64 + 2).await;
                println!("done {at}");
            }
        }
        other => panic!("no kind `{other}`"),
    }
    run.end().await;
}
