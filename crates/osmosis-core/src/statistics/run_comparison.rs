use serde::{Deserialize, Serialize};

use super::{Comparison, Pair, RowPair, holm, sign_flip};
use crate::RewardRange;

/// A p value at or below this speaks of a difference.
const LEVEL: f64 = 0.05;

/// A number of two runs, compared, with its p value adjusted for all that were tested beside it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Endpoint {
    #[serde(flatten)]
    pub comparison: Comparison,
    /// By Holm's correction; `None` when it is no question of its own and was not tested.
    pub p_adjusted: Option<f64>,
    /// Which of the tests it is; endpoints that always agree share one.
    #[serde(skip)]
    test: Option<usize>,
}

/// In which direction a number moved, beyond chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Not,
    Up,
    Down,
    /// The rows moved one way and the rollouts the other.
    Unclear,
}

impl Endpoint {
    fn new(comparison: Comparison, test: Option<usize>) -> Self {
        Self {
            comparison,
            p_adjusted: Some(comparison.p),
            test,
        }
    }

    fn moved(&self) -> Moved {
        if self.p_adjusted.is_none_or(|p| p > LEVEL) {
            return Moved::Not;
        }
        let rows = self.comparison.tested_difference;
        let rollouts = self.comparison.difference.difference;
        if rows > 0.0 && rollouts > 0.0 {
            Moved::Up
        } else if rows < 0.0 && rollouts < 0.0 {
            Moved::Down
        } else {
            Moved::Unclear
        }
    }

    /// Whether more than chance makes it larger in the second run.
    pub fn is_up(&self) -> bool {
        self.moved() == Moved::Up
    }

    /// Whether more than chance makes it smaller in the second run.
    pub fn is_down(&self) -> bool {
        self.moved() == Moved::Down
    }
}

/// What a comparison comes to, in one of four words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Better,
    Worse,
    NoDifference,
    Inconclusive,
}

/// The verdict with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Every compared row came out the same.
    Identical,
    NoDifference,
    Better,
    Worse,
    /// Pass rate and reward moved in opposite directions.
    Mixed,
    /// One run fails more often, and the pass rates do not differ.
    FailuresDiffer,
    /// The rewards differ, but not the same rollouts have one in both runs; the pass rates do not differ.
    RewardNotComparable,
    NothingToCompare,
}

impl Finding {
    pub fn verdict(self) -> Verdict {
        match self {
            Self::Better => Verdict::Better,
            Self::Worse => Verdict::Worse,
            Self::Identical | Self::NoDifference => Verdict::NoDifference,
            Self::Mixed
            | Self::FailuresDiffer
            | Self::RewardNotComparable
            | Self::NothingToCompare => Verdict::Inconclusive,
        }
    }
}

/// Two runs over the same rows.
///
/// The pass rate, over all that ran, is the primary number: a failure counts as not passed, so a run gains
/// nothing by failing. The reward is a mean over the rollouts that were scored. When one run fails where the
/// other does not, these are different rollouts, and their means differ even if nothing else does. No choice
/// of rows mends that: rows that a run scored throughout are those where it happened not to fail. So the reward
/// decides only when every row is scored throughout in both runs, or not at all in both.
#[derive(Debug, Clone, PartialEq)]
pub struct RunComparison {
    /// Passed / ran.
    pub pass: Option<Endpoint>,
    /// Rollouts that ran without being scored / ran.
    pub failures: Option<Endpoint>,
    /// Over scored rollouts.
    pub reward: Option<Endpoint>,
    /// Whether the reward can decide between the runs.
    pub reward_decides: bool,
    /// The p values of the different tests.
    tests: Vec<f64>,
}

impl RunComparison {
    /// `range` is where the rewards of both runs lie, when that is known. To compare several runs with one,
    /// see [`RunComparison::adjust`].
    pub fn of(rows: &[RowPair], range: Option<RewardRange>) -> Self {
        Self::drawn(rows, range, sign_flip::DRAWS)
    }

    pub(super) fn drawn(rows: &[RowPair], range: Option<RewardRange>, draws: u64) -> Self {
        let pairs = |cluster| -> Vec<Pair> { rows.iter().map(|row| row.pair(cluster)).collect() };
        let passes = pairs(|row| (row.ran, row.passed as f64));
        let failures = pairs(|row| (row.ran, row.failed() as f64));
        let rewards = pairs(|row| (row.scored, row.reward_sum));
        let reward_decides = rows.iter().all(RowPair::is_scored_alike);
        let width = range.map(RewardRange::width);

        let mut tests = Tests::default();
        let pass = Comparison::shares_by(&passes, draws)
            .map(|found| Endpoint::new(found, Some(tests.add(&found, &passes))));
        let failed =
            Comparison::shares_by(&failures, draws).map(|found| tests.endpoint(found, &failures));
        let reward = Comparison::means_by(&rewards, width, draws).map(|found| {
            if !reward_decides && rows.iter().all(RowPair::rewards_are_passes) {
                // The pass rate once more, without the failures that belong to it.
                return Endpoint {
                    p_adjusted: None,
                    ..Endpoint::new(found, None)
                };
            }
            tests.endpoint(found, &rewards)
        });
        let mut compared = Self {
            pass,
            failures: failed,
            reward,
            reward_decides,
            tests: tests.0.into_iter().map(|test| test.p).collect(),
        };
        Self::adjust(std::slice::from_mut(&mut compared));
        compared
    }

    /// Adjusts the p values of several comparisons with one run for each other: one Holm correction over every
    /// test of every comparison, so that the chance of any false alarm among all of them is at most 5%.
    pub fn adjust(compared: &mut [Self]) {
        let p_values: Vec<f64> = compared
            .iter()
            .flat_map(|one| &one.tests)
            .copied()
            .collect();
        let adjusted = holm(&p_values);
        let mut before = 0;
        for one in compared {
            let endpoints = [&mut one.pass, &mut one.failures, &mut one.reward];
            for endpoint in endpoints.into_iter().flatten() {
                if let Some(test) = endpoint.test {
                    endpoint.p_adjusted = Some(adjusted[before + test]);
                }
            }
            before += one.tests.len();
        }
    }

    pub fn finding(&self) -> Finding {
        let Some(pass) = &self.pass else {
            return Finding::NothingToCompare;
        };
        let endpoints = [self.pass, self.failures, self.reward];
        if endpoints.iter().flatten().all(|e| e.comparison.is_same()) {
            return Finding::Identical;
        }
        let moved = |endpoint: Option<Endpoint>| endpoint.map_or(Moved::Not, |e| e.moved());
        let reward = moved(self.reward);
        let decisive = [
            pass.moved(),
            if self.reward_decides {
                reward
            } else {
                Moved::Not
            },
        ];
        let up = decisive
            .iter()
            .any(|m| matches!(m, Moved::Up | Moved::Unclear));
        let down = decisive
            .iter()
            .any(|m| matches!(m, Moved::Down | Moved::Unclear));
        match (up, down) {
            (true, true) => Finding::Mixed,
            (true, false) => Finding::Better,
            (false, true) => Finding::Worse,
            (false, false) if moved(self.failures) != Moved::Not => Finding::FailuresDiffer,
            (false, false) if reward != Moved::Not => Finding::RewardNotComparable,
            (false, false) => Finding::NoDifference,
        }
    }

    pub fn verdict(&self) -> Verdict {
        self.finding().verdict()
    }

    /// The most rows that any of the numbers changed in.
    pub fn rows_changed(&self) -> u64 {
        [self.pass, self.failures, self.reward]
            .iter()
            .flatten()
            .map(|endpoint| endpoint.comparison.rows_up + endpoint.comparison.rows_down)
            .max()
            .unwrap_or(0)
    }
}

/// The different tests of a comparison. Two numbers whose rows differ in proportion (0/1 rewards and passes)
/// are one question: correcting for two would only cost power.
#[derive(Debug, Default)]
struct Tests(Vec<Test>);

#[derive(Debug)]
struct Test {
    p: f64,
    kind: super::PairedTest,
    differences: Vec<f64>,
}

impl Tests {
    fn add(&mut self, found: &Comparison, pairs: &[Pair]) -> usize {
        self.0.push(Test {
            p: found.p,
            kind: found.test,
            differences: pairs.iter().map(Pair::difference).collect(),
        });
        self.0.len() - 1
    }

    fn endpoint(&mut self, mut found: Comparison, pairs: &[Pair]) -> Endpoint {
        if found.is_same() {
            return Endpoint::new(found, None);
        }
        let differences: Vec<f64> = pairs.iter().map(Pair::difference).collect();
        let same = self
            .0
            .iter()
            .position(|test| are_proportional(&test.differences, &differences));
        if let Some(test) = same {
            found.p = self.0[test].p;
            found.test = self.0[test].kind;
            return Endpoint::new(found, Some(test));
        }
        let test = self.add(&found, pairs);
        Endpoint::new(found, Some(test))
    }
}

/// Whether one is the other times a number that is not 0.
fn are_proportional(first: &[f64], second: &[f64]) -> bool {
    let Some(largest) = (0..first.len()).max_by(|a, b| first[*a].abs().total_cmp(&first[*b].abs()))
    else {
        return false;
    };
    let factor = second[largest] / first[largest];
    let scale = second.iter().fold(0.0, |most: f64, d| most.max(d.abs()));
    factor.is_finite()
        && factor != 0.0
        && first
            .iter()
            .zip(second)
            .all(|(one, other)| (other - factor * one).abs() <= 1e-9 * scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::RowOutcome;

    /// A row of scored rollouts with these rewards, of which those of at least 1 pass; `None` failed.
    fn row(rewards: &[Option<f64>]) -> RowOutcome {
        let scored: Vec<f64> = rewards.iter().copied().flatten().collect();
        RowOutcome {
            ran: rewards.len() as u64,
            passed: scored.iter().filter(|r| **r >= 1.0).count() as u64,
            scored: scored.len() as u64,
            reward_sum: scored.iter().sum(),
            lost: 0,
        }
    }

    fn compared(rows: impl IntoIterator<Item = (RowOutcome, RowOutcome)>) -> RunComparison {
        let rows: Vec<RowPair> = rows
            .into_iter()
            .map(|(first, second)| RowPair { first, second })
            .collect();
        RunComparison::of(&rows, None)
    }

    fn back(rows: &[(RowOutcome, RowOutcome)]) -> RunComparison {
        compared(rows.iter().map(|(one, other)| (*other, *one)))
    }

    #[track_caller]
    fn check(endpoint: Option<Endpoint>, p_adjusted: f64) {
        let found = endpoint.unwrap().p_adjusted.unwrap();
        assert!(
            (found - p_adjusted).abs() < 1e-12,
            "{found} is not {p_adjusted}"
        );
    }

    /// 80 rows of 3 rollouts with rewards below 1; every reward below 0.36 is a failure in the second run.
    fn raises_on_low_rewards() -> Vec<(RowOutcome, RowOutcome)> {
        (0..80u32)
            .map(|i| {
                let rewards = [0u32, 1, 2].map(|j| f64::from((i * 3 + j) * 37 % 100) / 100.0);
                let second = rewards.map(|r| (r >= 0.36).then_some(r));
                (row(&rewards.map(Some)), row(&second))
            })
            .collect()
    }

    #[test]
    fn a_run_that_only_raises_on_low_rewards_is_not_better() {
        let rows = raises_on_low_rewards();
        let failed: u64 = rows.iter().map(|(_, second)| second.failed()).sum();
        assert_eq!(failed, 86);
        let found = compared(rows.clone());
        // What made it better: over those that are left, the reward is higher beyond any doubt.
        let reward = found.reward.unwrap();
        assert!(reward.comparison.difference.difference > 0.1 && reward.is_up());
        assert!(!found.reward_decides);
        assert!(found.failures.unwrap().is_up());
        assert_eq!(found.finding(), Finding::FailuresDiffer);
        assert_eq!(found.verdict(), Verdict::Inconclusive);
        assert_eq!(back(&rows).verdict(), Verdict::Inconclusive);
    }

    #[test]
    fn a_single_failure_keeps_the_reward_from_deciding() {
        let mut rows: Vec<_> = (0..40)
            .map(|_| (row(&[Some(0.2)]), row(&[Some(0.4)])))
            .collect();
        let all_scored = compared(rows.clone());
        assert!(all_scored.reward_decides);
        assert_eq!(all_scored.verdict(), Verdict::Better);
        rows[7].1 = row(&[None]);
        assert_eq!(
            compared(rows.clone()).finding(),
            Finding::RewardNotComparable
        );
        // A failure outside the agent leaves a gap just the same.
        rows[7].1 = RowOutcome {
            lost: 1,
            ..RowOutcome::default()
        };
        assert_eq!(
            compared(rows.clone()).finding(),
            Finding::RewardNotComparable
        );
        // What fails in both is compared in neither.
        rows[7] = (row(&[None]), row(&[None]));
        assert_eq!(compared(rows.clone()).verdict(), Verdict::Better);
        // The same number of failures, of other rollouts.
        rows[7] = (row(&[Some(0.9), None]), row(&[None, Some(0.9)]));
        assert_eq!(compared(rows).finding(), Finding::RewardNotComparable);
    }

    #[test]
    fn a_better_pass_rate_decides_whatever_fails() {
        // 20 rows pass now that did not; 30 others raise instead of being wrong.
        let mut rows = vec![(row(&[Some(0.0)]), row(&[Some(1.0)])); 20];
        rows.extend(vec![(row(&[Some(0.0)]), row(&[None])); 30]);
        rows.extend(vec![(row(&[Some(1.0)]), row(&[Some(1.0)])); 30]);
        let found = compared(rows.clone());
        assert_eq!(found.verdict(), Verdict::Better);
        assert!(found.failures.unwrap().is_up(), "and it is told");
        let found = back(&rows);
        assert_eq!(found.verdict(), Verdict::Worse);
        assert!(found.failures.unwrap().is_down());
    }

    #[test]
    fn numbers_that_say_the_same_are_tested_once() {
        let mut rows = vec![(row(&[Some(0.0)]), row(&[Some(1.0)])); 6];
        rows.extend(vec![(row(&[Some(1.0)]), row(&[Some(1.0)])); 30]);
        let found = compared(rows.clone());
        // 0/1 rewards are the passes: 2 / 2^6 once, not twice that.
        check(found.pass, 2.0 / 64.0);
        check(found.reward, 2.0 / 64.0);
        assert_eq!(found.verdict(), Verdict::Better);
        // Rewards that say more are another question.
        rows[30] = (row(&[Some(1.0)]), row(&[Some(1.5)]));
        let found = compared(rows.clone());
        check(found.pass, 2.0 / 64.0);
        check(found.reward, 2.0 * 2.0 / 128.0);
        // 0/1 rewards of the rollouts that did not fail are no further question beside passes and failures.
        rows[30].1 = row(&[None]);
        let found = compared(rows);
        assert_eq!(found.reward.unwrap().p_adjusted, None);
        check(found.failures, 1.0);
        check(found.pass, 2.0 * 16.0 / 128.0);
    }

    #[test]
    fn passing_or_failing_is_one_question() {
        let mut rows = vec![(row(&[None]), row(&[Some(1.0)])); 8];
        rows.extend(vec![(row(&[Some(1.0)]), row(&[Some(1.0)])); 8]);
        let found = compared(rows);
        check(found.pass, 2.0 / 256.0);
        check(found.failures, 2.0 / 256.0);
        assert_eq!(found.verdict(), Verdict::Better);
    }

    #[test]
    fn opposite_directions_decide_nothing() {
        // Passes get fewer and the rewards of the rest much higher.
        let mut rows = vec![(row(&[Some(1.0)]), row(&[Some(0.99)])); 12];
        rows.extend(vec![(row(&[Some(0.1)]), row(&[Some(0.9)])); 40]);
        assert_eq!(compared(rows).finding(), Finding::Mixed);
        // Most rows pass less often, but the one with most rollouts passes more often.
        let mut rows = vec![(row(&[Some(1.0)]), row(&[Some(0.0)])); 10];
        rows.push((row(&[Some(0.0); 2]), row(&[Some(1.0); 200])));
        let found = compared(rows);
        assert!(found.pass.unwrap().p_adjusted.unwrap() < 0.05);
        assert_eq!(found.finding(), Finding::Mixed);
    }

    #[test]
    fn the_same_and_nothing_have_words_of_their_own() {
        let same = vec![(row(&[Some(0.3), None]), row(&[None, Some(0.3)])); 9];
        assert_eq!(compared(same).finding(), Finding::Identical);
        let nothing = compared([(row(&[]), row(&[Some(1.0)]))]);
        assert_eq!(nothing.finding(), Finding::NothingToCompare);
        assert_eq!(nothing.verdict(), Verdict::Inconclusive);
        assert_eq!(Finding::Identical.verdict(), Verdict::NoDifference);
    }

    #[test]
    fn several_comparisons_pay_for_every_test_of_each_other() {
        let binary = compared(vec![(row(&[Some(0.0)]), row(&[Some(1.0)])); 7]);
        let graded = compared((0..9u32).map(|i| {
            (
                row(&[Some(0.0)]),
                row(&[Some(if i < 8 { 1.0 } else { 0.5 })]),
            )
        }));
        let mut all = [binary, graded];
        RunComparison::adjust(&mut all);
        let expected = holm(&[2.0 / 128.0, 2.0 / 256.0, 2.0 / 512.0]);
        check(all[0].pass, expected[0]);
        check(all[0].reward, expected[0]);
        check(all[1].pass, expected[1]);
        check(all[1].reward, expected[2]);
    }
}
