//! `--fail-under`: how the gates of a run turned out, for people.

use osmosis_run::reports::{GateResult, RunReport};

use crate::error::Exit;
use crate::figures::number;
use crate::output::Output;

/// Numbers of a run that is not complete may still move.
pub(crate) const NOT_JUDGED: &str = "--fail-under: not judged, the run is not complete";

/// Says how each gate turned out.
pub(crate) fn tell(report: &RunReport, output: &Output) -> Exit {
    for result in report.gates.iter().flatten() {
        output.note(format_args!("--fail-under: {}", text(result)));
    }
    if report.gates_hold() {
        Exit::Ok
    } else {
        Exit::Gate
    }
}

/// Tells the end of a complete run; `status` when nothing is below.
pub(crate) fn conclude(report: &RunReport, status: &str, output: &Output) -> Exit {
    let exit = tell(report, output);
    let status = if exit == Exit::Gate {
        "below_gate"
    } else {
        status
    };
    output.operation(status, report);
    exit
}

fn text(result: &GateResult) -> String {
    let GateResult {
        number: name,
        at_least,
        value,
        holds,
        without_reward,
    } = result;
    let at_least = number(*at_least);
    let Some(value) = value else {
        return format!("{name} is not known, and {at_least} is asked for");
    };
    let word = if *holds { "reaches" } else { "is below" };
    let text = format!("{name} {} {word} {at_least}", number(*value));
    match without_reward {
        None | Some(0) => text,
        Some(failed) => format!(
            "{text}; rollouts that failed and have no reward: {failed} (`--fail-under scored=LIMIT` limits them)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, value: Option<f64>, at_least: f64) -> GateResult {
        GateResult {
            number: name.to_owned(),
            at_least,
            value,
            holds: value.is_some_and(|value| value >= at_least),
            without_reward: None,
        }
    }

    #[test]
    fn a_reward_that_leaves_failures_out_says_so() {
        let reward = GateResult {
            without_reward: Some(86),
            ..result("reward", Some(0.9), 0.8)
        };
        assert_eq!(
            text(&reward),
            "reward 0.9 reaches 0.8; rollouts that failed and have no reward: 86 (`--fail-under scored=LIMIT` limits them)"
        );
        assert_eq!(
            text(&result("pass_rate", Some(0.5), 0.5)),
            "pass_rate 0.5 reaches 0.5"
        );
        assert_eq!(
            text(&result("scored", Some(154.0 / 240.0), 0.9)),
            "scored 0.642 is below 0.9"
        );
        assert_eq!(
            text(&result("pass@2", None, 0.9)),
            "pass@2 is not known, and 0.9 is asked for"
        );
    }
}
