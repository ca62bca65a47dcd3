//! Simulated comparisons of two runs of the same policy, or of one that passes more often by a known amount.

use osmosis_core::RewardRange;
use osmosis_core::statistics::{
    Comparison, Generator, Interval, RewardBounds, RowOutcome, RowPair, RowValues, RunComparison,
    Verdict,
};

/// What two runs of the same policy report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Rewards of 0 and 1.
    Passes,
    /// Rewards between 0 and 1; the range is declared.
    Rewards,
    /// Rewards as above and no declared range; one rollout in ten fails.
    FailuresAtRandom,
    /// Three in ten of those that would not pass fail.
    FailuresByOutcome,
    /// One in ten of the second run's rollouts is lost outside the agent.
    LossesAtRandom,
    /// Three in ten of the second run's rollouts that would not pass are lost outside the agent.
    LossesByOutcome,
    /// The same with rewards between 0 and 1, in a declared range.
    RewardsLostByOutcome,
    /// Tokens or seconds: a figure that is not part of the verdict, and has a long tail. Its interval excludes 0.
    Cost,
}

/// Numbers of rollouts per row of the two runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    Of(u64, u64),
    /// From 1 to 16 in each run, drawn for each pair of runs.
    Any,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) kind: Kind,
    pub(crate) rows: u32,
    pub(crate) counts: Counts,
    /// The mean chance of a rollout to pass; in every other pair of runs it differs by row.
    pub(crate) chance: f64,
    /// The second run passes more often by this share of what it did not pass.
    pub(crate) gain: f64,
}

/// How many of the simulated comparisons came out how.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) pairs: u32,
    pub(crate) better: u32,
    pub(crate) worse: u32,
    pub(crate) inconclusive: u32,
    pub(crate) intervals: u32,
    /// Intervals of the difference that hold the true one.
    pub(crate) covering: u32,
    /// Intervals that exclude 0 beside *no difference*, or whose test rejects while they include it.
    pub(crate) disagreeing: u32,
}

impl Tally {
    /// `better` or `worse`.
    pub(crate) fn decided(self) -> f64 {
        share(self.better + self.worse, self.pairs)
    }

    pub(crate) fn inconclusive(self) -> f64 {
        share(self.inconclusive, self.pairs)
    }

    pub(crate) fn coverage(self) -> f64 {
        share(self.covering, self.intervals)
    }
}

fn share(part: u32, whole: u32) -> f64 {
    f64::from(part) / f64::from(whole.max(1))
}

pub(crate) fn simulated(cell: Cell, pairs: u32, draws: u64, seed: u64) -> Tally {
    let mut generator = Generator::new(seed);
    let mut tally = Tally {
        pairs,
        ..Tally::default()
    };
    for pair in 0..pairs {
        let mut count = |fixed| match cell.counts {
            Counts::Of(..) => fixed,
            Counts::Any => 1 + generator.index(16) as u64,
        };
        let counts = match cell.counts {
            Counts::Of(first, second) => (count(first), count(second)),
            Counts::Any => (count(1), count(1)),
        };
        let rows = rows(cell, counts, pair % 2 == 1, &mut generator);
        if cell.kind == Kind::Cost {
            tally.cost(&rows, cell, &mut generator);
        } else {
            tally.compare(&rows, cell, draws);
        }
    }
    tally
}

impl Tally {
    fn compare(&mut self, rows: &[RowPair], cell: Cell, draws: u64) {
        let found = RunComparison::with_draws(rows, cell.kind.bounds(), draws);
        match found.verdict() {
            Verdict::Better => self.better += 1,
            Verdict::Worse => self.worse += 1,
            Verdict::Inconclusive => self.inconclusive += 1,
            Verdict::NoDifference => {}
        }
        for endpoint in [found.pass, found.failures, found.reward]
            .into_iter()
            .flatten()
        {
            let rejects = endpoint.is_up() || endpoint.is_down();
            let excludes = endpoint.comparison.difference.ci95.is_some_and(excludes_0);
            let has_interval = endpoint.comparison.difference.ci95.is_some();
            let untested = endpoint.p_adjusted.is_none();
            self.disagreeing += u32::from(has_interval && !untested && rejects != excludes);
        }
        let truth = cell.gain * (1.0 - cell.chance);
        self.covers(
            found.pass.and_then(|pass| pass.comparison.difference.ci95),
            truth,
        );
    }

    /// A reader takes an interval without 0 for a difference.
    fn cost(&mut self, rows: &[RowPair], cell: Cell, generator: &mut Generator) {
        let mut values = |row: &RowOutcome| -> Vec<f64> {
            let value = |generator: &mut Generator| (-(1.0 - generator.unit()).ln()).powi(2);
            (0..row.ran).map(|_| value(generator)).collect()
        };
        let rows: Vec<RowValues> = rows
            .iter()
            .map(|row| RowValues {
                first: values(&row.first),
                second: values(&row.second)
                    .into_iter()
                    .map(|value| value * (1.0 + 4.0 * cell.gain))
                    .collect(),
            })
            .collect();
        let Some(found) = Comparison::of_means(&rows, None) else {
            return;
        };
        let interval = found.difference.ci95;
        match interval.is_some_and(excludes_0) {
            true if found.difference.difference > 0.0 => self.better += 1,
            true => self.worse += 1,
            false => {}
        }
        // The mean of a squared exponential number is 2.
        self.covers(interval, 8.0 * cell.gain);
    }

    fn covers(&mut self, interval: Option<Interval>, truth: f64) {
        if let Some(interval) = interval {
            self.intervals += 1;
            self.covering += u32::from(interval.low <= truth && truth <= interval.high);
        }
    }
}

fn excludes_0(interval: Interval) -> bool {
    interval.low > 0.0 || interval.high < 0.0
}

impl Kind {
    fn bounds(self) -> RewardBounds {
        match self {
            Self::Rewards | Self::RewardsLostByOutcome => RewardBounds::Declared(RewardRange::UNIT),
            Self::Passes | Self::LossesAtRandom | Self::LossesByOutcome => {
                RewardBounds::Implied(RewardRange::UNIT)
            }
            Self::FailuresAtRandom | Self::FailuresByOutcome | Self::Cost => RewardBounds::Unknown,
        }
    }

    fn is_binary(self) -> bool {
        matches!(
            self,
            Self::Passes | Self::LossesAtRandom | Self::LossesByOutcome
        )
    }
}

fn rows(cell: Cell, counts: (u64, u64), differ: bool, generator: &mut Generator) -> Vec<RowPair> {
    (0..cell.rows)
        .map(|_| {
            let chance = if differ {
                // Some rows are hard and others easy, with the same mean.
                generator.unit().powf((1.0 - cell.chance) / cell.chance)
            } else {
                cell.chance
            };
            let gained = chance + cell.gain * (1.0 - chance);
            RowPair {
                first: outcome(cell.kind, counts.0, chance, false, generator),
                second: outcome(cell.kind, counts.1, gained, true, generator),
            }
        })
        .collect()
}

fn outcome(kind: Kind, n: u64, chance: f64, second: bool, generator: &mut Generator) -> RowOutcome {
    let mut row = RowOutcome::default();
    for _ in 0..n {
        let passes = generator.unit() < chance;
        let (fate, level) = (generator.unit(), generator.unit());
        let is_lost = second
            && match kind {
                Kind::LossesAtRandom => fate < 0.1,
                Kind::LossesByOutcome | Kind::RewardsLostByOutcome => !passes && fate < 0.3,
                Kind::Passes
                | Kind::Rewards
                | Kind::FailuresAtRandom
                | Kind::FailuresByOutcome
                | Kind::Cost => false,
            };
        if is_lost {
            row.lost += 1;
            continue;
        }
        row.ran += 1;
        let fails = match kind {
            Kind::FailuresAtRandom => fate < 0.1,
            Kind::FailuresByOutcome => !passes && fate < 0.3,
            Kind::Passes
            | Kind::Rewards
            | Kind::LossesAtRandom
            | Kind::LossesByOutcome
            | Kind::RewardsLostByOutcome
            | Kind::Cost => false,
        };
        if fails {
            row.failed += 1;
            continue;
        }
        row.passed += u64::from(passes);
        let passed = f64::from(u8::from(passes));
        row.rewards.push(if kind.is_binary() {
            passed
        } else {
            f64::midpoint(passed, level)
        });
    }
    row
}
