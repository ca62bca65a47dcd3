//! What another grader made of the same samples, for people.

use std::fmt::Write as _;

use osmosis_core::RunName;
use osmosis_run::reports::{FlipsReport, Grade, GradeChange, MOST_OF_A_KIND};
use owo_colors::Style;

use crate::figures::{number, thousands};
use crate::output::paint;

pub(super) fn render(flips: &FlipsReport, source: &RunName) -> String {
    let mut text = format!(
        "\n{}  {} fixed · {} broken · {} with another reward or outcome · {} as in `{source}`\n",
        paint("flips", Style::new().bold()),
        thousands(flips.fixed),
        thousands(flips.broken),
        thousands(flips.other),
        thousands(flips.unchanged),
    );
    if flips.no_longer_scored + flips.newly_scored > 0 {
        let _ = writeln!(
            text,
            "  of these, {} no longer have a reward and {} have one now: the mean rewards of the two runs are \
             over different rollouts",
            thousands(flips.no_longer_scored),
            thousands(flips.newly_scored),
        );
    }
    for (change, name, count) in [
        (GradeChange::Fixed, "fixed", flips.fixed),
        (GradeChange::Broken, "broken", flips.broken),
        (GradeChange::Other, "changed", flips.other),
    ] {
        let these = flips.items.iter().filter(|flip| flip.change == change);
        for flip in these.take(MOST_OF_A_KIND) {
            let place = format!("{}.{}", flip.row_index, flip.run_index);
            let grades = format!("{} → {}", grade_text(&flip.before), grade_text(&flip.after));
            let _ = writeln!(
                text,
                "  {name:<8} {place:<8} {grades:<22} {}",
                paint(&flip.show, Style::new().dimmed())
            );
        }
        if count > MOST_OF_A_KIND as u64 {
            let _ = writeln!(
                text,
                "  and {} more {name}",
                thousands(count - MOST_OF_A_KIND as u64)
            );
        }
    }
    let _ = write!(text, "  all of them  {}", flips.path);
    text
}

fn grade_text(grade: &Grade) -> String {
    match grade.reward {
        Some(reward) => number(reward),
        None => grade.outcome.as_str().replace('_', " "),
    }
}
