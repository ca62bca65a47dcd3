//! `osmosis eval compare A B [C…]`: every other run beside the first, paired by dataset row.

mod changed_rows;
mod facts;
mod findings;
mod pairing;
mod render;
mod run_rows;

use osmosis_core::statistics::{RunComparison, definition};
use osmosis_run::{RunError, RunErrorKind};
use serde_json::{Value, json};

use self::findings::Findings;
use self::pairing::Paired;
use self::run_rows::ComparedRun;
use crate::arguments::CompareArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    arguments: &CompareArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let names = &arguments.runs;
    if let Some(twice) = names
        .iter()
        .enumerate()
        .find_map(|(place, name)| names[..place].contains(name).then_some(name))
    {
        return Err(
            RunError::usage(RunErrorKind::Usage, format!("run `{twice}` is given twice"))
                .hint("a run does not differ from itself; name two different runs"),
        );
    }
    let mut runs = vec![];
    for name in names {
        // All names are checked before anything large is read.
        runs.push(ComparedRun::open(workspace, name).await?);
    }
    let Some((first, others)) = runs.split_first_mut() else {
        return Err(RunError::usage(RunErrorKind::Usage, "no runs were given"));
    };
    first.read_rows().await?;
    let mut found = vec![];
    for other in others.iter_mut() {
        other.read_rows().await?;
        let paired = Paired::of(first, other, arguments.shared_rows).await?;
        found.push(Findings::of(first, other, &paired));
        // Only the first is needed again.
        other.drop_rows();
    }
    adjust(&mut found);
    for findings in &found {
        output.line(render::text(findings, workspace));
    }
    if found.len() > 1 {
        output.line(format_args!(
            "\n  {} comparisons with `{}`: p values are adjusted by Holm's correction over all of their tests",
            found.len(),
            first.name
        ));
    }
    output.line(render::DEFINITIONS);
    output.details(&json!({
        "first": first.json(),
        "others": found.iter().map(|findings| findings.json(workspace)).collect::<Vec<Value>>(),
        "definitions": {
            "rows": definition::COMPARED,
            "pass_rate": definition::PASS_RATE,
            "pass_test": definition::PASS_TEST,
            "failures": definition::FAILURES,
            "reward": definition::REWARD,
            "reward_test": definition::REWARD_TEST,
            "reward_decides": definition::REWARD_DECIDES,
            "verdict": definition::VERDICT,
            "ci95": "95% interval of the difference, clustered by dataset row, Student's t with rows - 1 \
                     degrees of freedom; of rates, and of rewards with a range, the score interval, which stays \
                     inside what is possible; none where all rows differ by the same amount",
            "p_adjusted": definition::HOLM,
            "usage": "means per rollout that ran, over the compared rows",
        },
    }));
    Ok(Exit::Ok)
}

/// Several runs beside the first: each p value pays for the others.
fn adjust(found: &mut [Findings]) {
    let mut tested: Vec<RunComparison> = found.iter().map(|f| f.tested.clone()).collect();
    RunComparison::adjust(&mut tested);
    for (findings, tested) in found.iter_mut().zip(tested) {
        findings.tested = tested;
    }
}
