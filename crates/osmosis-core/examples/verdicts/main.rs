//! How often equal policies get a verdict, and how often a true difference is found: the table in `docs/compare.md`.
//!
//! `cargo xtask bench verdicts [-- PAIRS]`; 1,000 pairs of runs in each cell take half an hour on one core.
#![expect(clippy::print_stdout, reason = "a program that reports")]

use std::fmt::Write as _;
use std::io;

mod simulation;

use simulation::{Cell, Counts, Kind, Tally, simulated};

const CHANCES: [f64; 5] = [0.03, 0.1, 0.5, 0.9, 0.97];
const ROWS: [u32; 3] = [8, 40, 100];
/// Permutations for each test; the program takes 9,999. The level is exact with any number of them.
const DRAWS: u64 = 119;

const ALL: [Counts; 8] = [
    Counts::Of(1, 1),
    Counts::Of(4, 4),
    Counts::Of(1, 2),
    Counts::Of(1, 8),
    Counts::Of(8, 1),
    Counts::Of(1, 16),
    Counts::Of(16, 3),
    Counts::Any,
];
const SOME: [Counts; 3] = [Counts::Of(4, 4), Counts::Of(1, 8), Counts::Any];

const KINDS: [(Kind, &str, &[Counts]); 8] = [
    (Kind::Passes, "0/1 rewards", &ALL),
    (Kind::Rewards, "graded rewards", &SOME),
    (Kind::Cost, "tokens, times: interval without 0", &SOME),
    (Kind::FailuresAtRandom, "10% fail at random", &SOME),
    (Kind::FailuresByOutcome, "30% of the wrong fail", &SOME),
    (Kind::LossesAtRandom, "10% of `after` lost at random", &SOME),
    (
        Kind::LossesByOutcome,
        "30% of the wrong of `after` lost",
        &SOME,
    ),
    (
        Kind::RewardsLostByOutcome,
        "the same, graded rewards",
        &SOME,
    ),
];

/// The table stands between these lines.
const BEGIN: &str = "<!-- cargo xtask bench verdicts -->";
const END: &str = "<!-- end -->";

/// `[PAIRS] [FILE]`: prints the table, and puts it into the file.
fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    let pairs: u32 = arguments
        .next_if(|text| text.parse::<u32>().is_ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_000);
    let mut table = format!(
        "{pairs} pairs of runs in each of {} cells: {ROWS:?} rows, chance to pass {CHANCES:?}.\n\n",
        ROWS.len() * CHANCES.len(),
    );
    table.push_str(
        "| two runs of one policy | n | `better` or `worse` | worst cell | `inconclusive` | interval covers | worst cell | \
         true gain found | `inconclusive` |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut seed = 0;
    for (kind, name, counts) in KINDS {
        for counts in counts {
            seed += 1;
            let line = line(kind, name, *counts, pairs, seed);
            println!("{line}");
            let _ = writeln!(table, "{line}");
        }
    }
    let Some(file) = arguments.next() else {
        return Ok(());
    };
    let text = std::fs::read_to_string(&file)?;
    let parts = text
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = parts else {
        let message = format!("`{file}` has no `{BEGIN}` with an `{END}` after it");
        return Err(io::Error::other(message));
    };
    std::fs::write(&file, format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

fn line(kind: Kind, name: &str, counts: Counts, pairs: u32, seed: u64) -> String {
    let cell = |rows, chance, gain| Cell {
        kind,
        rows,
        counts,
        chance,
        gain,
    };
    let mut cells: Vec<(Cell, Tally)> = vec![];
    for rows in ROWS {
        for chance in CHANCES {
            let cell = cell(rows, chance, 0.0);
            let seed = 1_000 * seed + cells.len() as u64;
            cells.push((cell, simulated(cell, pairs, DRAWS, seed)));
        }
    }
    let mut all = Tally::default();
    for (_, tally) in &cells {
        all.pairs += tally.pairs;
        all.better += tally.better;
        all.worse += tally.worse;
        all.inconclusive += tally.inconclusive;
        all.intervals += tally.intervals;
        all.covering += tally.covering;
    }
    // The extreme of many is far out by chance alone: what is printed is measured again.
    let again = |by: fn(&Tally) -> f64| {
        let worst = cells.iter().max_by(|a, b| by(&a.1).total_cmp(&by(&b.1)));
        worst.map(|(cell, _)| simulated(*cell, 10 * pairs, DRAWS, 1_000 * seed + 999))
    };
    let decided = again(|tally| tally.decided()).unwrap_or_default();
    let covered = again(|tally| 1.0 - tally.coverage()).unwrap_or_default();
    let found = simulated(cell(40, 0.3, 0.4), pairs, DRAWS, seed);
    // What selects its rollouts is off by more than chance: the verdict knows, and the interval is of what ran.
    let selects = matches!(kind, Kind::LossesByOutcome | Kind::RewardsLostByOutcome);
    let coverage = |tally: Tally| {
        if selects {
            "–".to_owned()
        } else {
            percent(tally.coverage())
        }
    };
    let n = match counts {
        Counts::Of(first, second) => format!("{first}, {second}"),
        Counts::Any => "1 to 16".to_owned(),
    };
    format!(
        "| {name} | {n} | {} | {} | {} | {} | {} | {} | {} |",
        percent(all.decided()),
        percent(decided.decided()),
        percent(all.inconclusive()),
        coverage(all),
        coverage(covered),
        percent(f64::from(found.better) / f64::from(found.pairs)),
        percent(found.inconclusive()),
    )
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}
