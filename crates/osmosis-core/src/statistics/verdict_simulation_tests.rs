//! Simulated comparisons of runs that are alike, or differ in a way that is known: how often is which verdict
//! given?

use std::cell::Cell;

use super::{Finding, Generator, RewardBounds, RowOutcome, RowPair, RunComparison, Verdict};

const RUNS: u32 = 2_000;
/// 5%, and what 2,000 simulations may be off by (2.33 standard errors: 1 time in 100).
const MOST_FALSE_ALARMS: f64 = 0.0614;
/// Sign patterns per test: with themselves 240, of which 2.5% and a half, a third and a sixth of that can be met
/// exactly. Fewer would make the tests more careful than those with 9,999 are.
const DRAWS: u64 = 239;

/// An agent on a dataset: how its rollouts are rewarded, and which of them fail.
#[derive(Debug, Clone, Copy)]
struct Agent {
    /// A passed rollout has reward 1 and another one 0.
    binary: bool,
    /// Added to every reward.
    gain: f64,
    fails: Fails,
}

#[derive(Debug, Clone, Copy)]
enum Fails {
    Never,
    /// One rollout in eight.
    AtRandom,
    /// Those that would have had a low reward.
    OnLowRewards,
}

const PLAIN: Agent = Agent {
    binary: false,
    gain: 0.0,
    fails: Fails::Never,
};

impl Agent {
    fn row(self, n: u64, level: f64, generator: &mut Generator) -> RowOutcome {
        let mut row = RowOutcome::default();
        for _ in 0..n {
            let reward = f64::midpoint(level, generator.unit()) + self.gain;
            let failed = match self.fails {
                Fails::Never => false,
                Fails::AtRandom => generator.unit() < 0.125,
                Fails::OnLowRewards => reward < 0.36,
            };
            row.ran += 1;
            if failed {
                row.failed += 1;
                continue;
            }
            let passed = reward >= 0.6;
            row.passed += u64::from(passed);
            row.rewards.push(if self.binary {
                f64::from(u8::from(passed))
            } else {
                reward
            });
        }
        row
    }
}

/// One run of each agent over the same rows, all compared with that of the first.
fn compared(
    agents: &[Agent],
    rows: usize,
    n: u64,
    generator: &mut Generator,
) -> Vec<RunComparison> {
    let levels: Vec<f64> = (0..rows).map(|_| generator.unit()).collect();
    let mut run = |agent: Agent| -> Vec<RowOutcome> {
        levels
            .iter()
            .map(|level| agent.row(n, *level, generator))
            .collect()
    };
    let first = run(agents[0]);
    let mut found: Vec<RunComparison> = agents[1..]
        .iter()
        .map(|agent| {
            let pairs: Vec<RowPair> = first
                .iter()
                .cloned()
                .zip(run(*agent))
                .map(|(first, second)| RowPair { first, second })
                .collect();
            RunComparison::with_draws(&pairs, RewardBounds::Unknown, DRAWS)
        })
        .collect();
    RunComparison::adjust(&mut found);
    found
}

/// The share of simulations in which something holds of what is found.
fn share(
    runs: u32,
    agents: &[Agent],
    (rows, n): (usize, u64),
    holds: impl Fn(&[RunComparison]) -> bool,
) -> f64 {
    let mut generator = Generator::new(31);
    let count = (0..runs)
        .filter(|_| holds(&compared(agents, rows, n, &mut generator)))
        .count();
    count as f64 / f64::from(runs)
}

/// Anything but "no difference", of any of the comparisons.
fn is_alarm(found: &[RunComparison]) -> bool {
    found
        .iter()
        .any(|found| found.verdict() != Verdict::NoDifference)
}

#[track_caller]
fn check_false_alarms(agent: Agent, runs: usize, shape: (usize, u64)) {
    let found = share(RUNS, &vec![agent; runs], shape, is_alarm);
    assert!(
        found <= MOST_FALSE_ALARMS,
        "{agent:?}, {runs} runs, {shape:?}: {found}"
    );
    // A test that never speaks is of no use.
    assert!(found >= 0.01, "{agent:?}, {runs} runs, {shape:?}: {found}");
}

#[test]
fn graded_rewards_of_runs_that_are_alike_raise_at_most_5_percent_false_alarms() {
    // With the same runs: what it was without a correction, either of two tests at 5%.
    let uncorrected = Cell::new(0u32);
    let found = share(RUNS, &[PLAIN; 2], (60, 2), |found| {
        let endpoints = [found[0].pass, found[0].reward];
        let either = endpoints.iter().flatten().any(|e| e.comparison.p <= 0.05);
        uncorrected.set(uncorrected.get() + u32::from(either));
        is_alarm(found)
    });
    assert!((0.01..=MOST_FALSE_ALARMS).contains(&found), "{found}");
    let uncorrected = f64::from(uncorrected.get()) / f64::from(RUNS);
    assert!(uncorrected > MOST_FALSE_ALARMS, "{uncorrected}");
}

#[test]
fn graded_rewards_of_single_rollouts_raise_at_most_5_percent_false_alarms() {
    check_false_alarms(PLAIN, 2, (60, 1));
}

#[test]
fn rewards_of_0_and_1_raise_at_most_5_percent_false_alarms_and_lose_no_power() {
    let binary = Agent {
        binary: true,
        ..PLAIN
    };
    check_false_alarms(binary, 2, (60, 2));
    // As often as the pass rate alone, without any correction.
    let better = Agent {
        gain: 0.1,
        ..binary
    };
    let both = share(500, &[binary, better], (60, 2), |found| {
        found[0].verdict() == Verdict::Better
    });
    let alone = share(500, &[binary, better], (60, 2), |found| {
        found[0].pass.is_some_and(|pass| {
            pass.comparison.p <= 0.05 && pass.comparison.difference.difference > 0.0
        })
    });
    assert_eq!(both.to_bits(), alone.to_bits());
    assert!(both > 0.5, "{both}");
}

#[test]
fn failures_at_random_raise_at_most_5_percent_false_alarms() {
    let flaky = Agent {
        fails: Fails::AtRandom,
        ..PLAIN
    };
    check_false_alarms(flaky, 2, (60, 2));
}

#[test]
fn failures_on_low_rewards_in_both_runs_raise_at_most_5_percent_false_alarms() {
    let raising = Agent {
        fails: Fails::OnLowRewards,
        ..PLAIN
    };
    check_false_alarms(raising, 2, (60, 2));
}

#[test]
fn three_comparisons_with_one_run_raise_at_most_5_percent_false_alarms_together() {
    check_false_alarms(PLAIN, 4, (60, 2));
}

#[test]
fn a_run_that_raises_on_low_rewards_is_hardly_ever_called_better() {
    let raising = Agent {
        fails: Fails::OnLowRewards,
        ..PLAIN
    };
    let shape = (80, 3);
    let better = share(500, &[PLAIN, raising], shape, |found| {
        found[0].verdict() == Verdict::Better
    });
    // Half of the alarms that the pass rate raises by chance.
    assert!(better <= 0.04, "{better}");
    let told = share(500, &[PLAIN, raising], shape, |found| {
        found[0].finding() == Finding::FailuresDiffer
    });
    assert!(told > 0.95, "{told}");
}

#[test]
fn a_gain_in_reward_alone_is_found_where_all_is_scored() {
    // Rewards rise by 0.1, but hardly any passes the threshold that did not.
    let better = Agent { gain: 0.1, ..PLAIN };
    let found = share(500, &[PLAIN, better], (60, 2), |found| {
        found[0].verdict() == Verdict::Better
    });
    assert!(found > 0.8, "{found}");
    let worse = share(500, &[better, PLAIN], (60, 2), |found| {
        found[0].verdict() == Verdict::Worse
    });
    assert!(worse > 0.8, "{worse}");
}
