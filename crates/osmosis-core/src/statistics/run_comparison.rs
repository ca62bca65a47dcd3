use super::endpoint::{Moved, Tests};
use super::lost::{self, Favoured};
use super::permutation::{DRAWS, permuted, permuted_shares};
use super::row_pair::share;
use super::{Comparison, Endpoint, Finding, RowPair, RowValues, Verdict, holm};
use crate::RewardRange;

/// Permutations for each step of the search for the lost rollouts that would turn a verdict.
const SEARCH_DRAWS: u64 = 999;

/// Where the rewards of both runs lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RewardBounds {
    /// As their configs declare.
    Declared(RewardRange),
    /// As those that were seen imply, which bounds no reward that was not seen.
    Implied(RewardRange),
    Unknown,
}

impl RewardBounds {
    fn range(self) -> Option<RewardRange> {
        match self {
            Self::Declared(range) | Self::Implied(range) => Some(range),
            Self::Unknown => None,
        }
    }

    fn declared(self) -> Option<RewardRange> {
        match self {
            Self::Declared(range) => Some(range),
            Self::Implied(_) | Self::Unknown => None,
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
///
/// Rollouts that failed outside the agent ran in neither sense. If those are others than the rest (the long ones), every
/// number is of a selection. So the verdict has to be the same with all of them counted for the one run and for the other:
/// as passed or not, with the highest and the lowest reward. Where rewards have no declared range, one lost rollout
/// keeps the reward from deciding.
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
    /// The comparison with the lost rollouts counted for the first and for the second run; empty when none was lost.
    with_lost: Vec<Self>,
}

/// What does not change with the lost rollouts that are counted.
#[derive(Debug, Clone, Copy)]
struct Question {
    range: Option<RewardRange>,
    reward_decides: bool,
    /// Whether the reward is the pass rate once more.
    reward_is_pass: bool,
    draws: u64,
}

impl Question {
    fn new(rows: &[RowPair], rewards: RewardBounds, draws: u64) -> Self {
        let is_bounded = rewards.declared().is_some() || !rows.iter().any(RowPair::has_lost);
        Self {
            range: rewards.range(),
            reward_decides: is_bounded && rows.iter().all(RowPair::is_scored_alike),
            reward_is_pass: rows.iter().all(RowPair::rewards_are_passes),
            draws,
        }
    }
}

impl RunComparison {
    /// To compare several runs with one, see [`RunComparison::adjust`].
    pub fn of(rows: &[RowPair], rewards: RewardBounds) -> Self {
        Self::with_draws(rows, rewards, DRAWS)
    }

    /// With so many permutations for each test, for simulations.
    pub fn with_draws(rows: &[RowPair], rewards: RewardBounds, draws: u64) -> Self {
        let question = Question::new(rows, rewards, draws);
        let mut compared = Self::asked(rows, question);
        if lost::count(rows) > 0 {
            compared.with_lost = Favoured::BOTH
                .map(|favoured| {
                    let rows = lost::counted(rows, favoured, rewards.declared(), u64::MAX);
                    Self::asked(&rows, question)
                })
                .into();
        }
        compared
    }

    /// How many of the lost rollouts are enough to turn the verdict of these two runs alone, if those of the one had passed
    /// and those of the other had not; `None` when all of them are not enough.
    pub fn lost_to_turn(rows: &[RowPair], rewards: RewardBounds) -> Option<u64> {
        let compared = Self::of(rows, rewards);
        let verdict = compared.counted().verdict();
        let question = Question::new(rows, rewards, SEARCH_DRAWS);
        let turns = |favoured, most| {
            let rows = lost::counted(rows, favoured, rewards.declared(), most);
            Self::asked(&rows, question).counted().verdict() != verdict
        };
        Favoured::BOTH
            .into_iter()
            .zip(&compared.with_lost)
            .filter(|(_, all)| all.counted().verdict() != verdict)
            .map(|(favoured, _)| least(lost::count(rows), |most| turns(favoured, most)))
            .min()
    }

    fn asked(rows: &[RowPair], question: Question) -> Self {
        let values = |of| -> Vec<RowValues> { rows.iter().map(|row| row.values(of)).collect() };
        let passes = values(|row| share(row.passed, row.ran));
        let failures = values(|row| share(row.failed, row.ran));
        let rewards = values(|row| row.rewards.clone());
        let Question {
            range,
            reward_decides,
            reward_is_pass,
            draws,
        } = question;
        let unit = Some(RewardRange::UNIT);
        let mut tests = Tests::default();
        let pass = tests.endpoint(&passes, unit, |rows| permuted_shares(rows, draws));
        let failed = tests.endpoint(&failures, unit, |rows| permuted_shares(rows, draws));
        let reward = if !reward_decides && reward_is_pass {
            // The pass rate once more, without the failures that belong to it.
            Comparison::of_means(&rewards, range).map(|found| Endpoint {
                p_adjusted: None,
                ..Endpoint::new(found, None)
            })
        } else {
            tests.endpoint(&rewards, range, |rows| permuted(rows, draws))
        };
        let mut compared = Self {
            pass,
            failures: failed,
            reward,
            reward_decides,
            tests: tests.p_values(),
            with_lost: vec![],
        };
        let adjusted = holm(&compared.tests);
        compared.assign(&adjusted);
        compared
    }

    /// Adjusts the p values of several comparisons with one run for each other: one Holm correction over every
    /// test of every comparison, so that the chance of any false alarm among all of them is at most 5%.
    pub fn adjust(compared: &mut [Self]) {
        let adjusted = Self::adjusted(compared, |one| one);
        for (one, adjusted) in compared.iter_mut().zip(adjusted) {
            one.assign(&adjusted);
        }
        for place in 0..Favoured::BOTH.len() {
            let adjusted = Self::adjusted(compared, |one| one.with_lost.get(place).unwrap_or(one));
            for (one, adjusted) in compared.iter_mut().zip(adjusted) {
                if let Some(with_lost) = one.with_lost.get_mut(place) {
                    with_lost.assign(&adjusted);
                }
            }
        }
    }

    /// The adjusted p values of each.
    fn adjusted(compared: &[Self], of: impl Fn(&Self) -> &Self) -> Vec<Vec<f64>> {
        let p_values: Vec<f64> = compared
            .iter()
            .flat_map(|one| of(one).tests.iter().copied())
            .collect();
        let mut adjusted = holm(&p_values).into_iter();
        let each = compared.iter().map(|one| of(one).tests.len());
        each.map(|tests| adjusted.by_ref().take(tests).collect())
            .collect()
    }

    fn assign(&mut self, adjusted: &[f64]) {
        let endpoints = [&mut self.pass, &mut self.failures, &mut self.reward];
        for endpoint in endpoints.into_iter().flatten() {
            if let Some(test) = endpoint.test {
                endpoint.adjust(adjusted[test]);
            }
        }
    }

    pub fn finding(&self) -> Finding {
        let found = self.counted();
        let verdict = found.verdict();
        let turned = |with: &Self| with.counted().verdict() != verdict;
        if verdict != Verdict::Inconclusive && self.with_lost.iter().any(turned) {
            Finding::LostRollouts
        } else {
            found
        }
    }

    /// Without a thought of what was lost.
    fn counted(&self) -> Finding {
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
        match (
            decisive.contains(&Moved::Up),
            decisive.contains(&Moved::Down),
        ) {
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

/// The smallest number up to `most` that does; `most` does.
fn least(most: u64, does: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while high - low > 1 {
        let middle = u64::midpoint(low, high);
        if does(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
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
            failed: (rewards.len() - scored.len()) as u64,
            rewards: scored,
            lost: 0,
        }
    }

    fn compared(rows: impl IntoIterator<Item = (RowOutcome, RowOutcome)>) -> RunComparison {
        let rows: Vec<RowPair> = rows
            .into_iter()
            .map(|(first, second)| RowPair { first, second })
            .collect();
        RunComparison::of(&rows, RewardBounds::Unknown)
    }

    fn back(rows: &[(RowOutcome, RowOutcome)]) -> RunComparison {
        compared(rows.iter().cloned().map(|(one, other)| (other, one)))
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
        let failed: u64 = rows.iter().map(|(_, second)| second.failed).sum();
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
        // What fails in both is compared in neither.
        rows[7] = (row(&[None]), row(&[None]));
        assert_eq!(compared(rows.clone()).verdict(), Verdict::Better);
        // The same number of failures, of other rollouts.
        rows[7] = (row(&[Some(0.9), None]), row(&[None, Some(0.9)]));
        assert_eq!(compared(rows).finding(), Finding::RewardNotComparable);
    }

    fn lost(count: u64) -> RowOutcome {
        RowOutcome {
            lost: count,
            ..RowOutcome::default()
        }
    }

    fn bounded(rows: &[(RowOutcome, RowOutcome)], rewards: RewardBounds) -> (Finding, Option<u64>) {
        let rows: Vec<RowPair> = rows
            .iter()
            .cloned()
            .map(|(first, second)| RowPair { first, second })
            .collect();
        let finding = RunComparison::of(&rows, rewards).finding();
        (finding, RunComparison::lost_to_turn(&rows, rewards))
    }

    #[test]
    fn a_lost_rollout_keeps_a_reward_without_bounds_from_deciding_and_no_other() {
        let mut rows: Vec<_> = (0..40)
            .map(|_| (row(&[Some(0.2)]), row(&[Some(0.4)])))
            .collect();
        rows[7].1 = lost(1);
        let declared = RewardBounds::Declared(RewardRange::UNIT);
        assert_eq!(bounded(&rows, declared), (Finding::Better, None));
        // The rewards that were seen bound none that was lost.
        for seen in [
            RewardBounds::Unknown,
            RewardBounds::Implied(RewardRange::UNIT),
        ] {
            assert_eq!(bounded(&rows, seen).0, Finding::RewardNotComparable);
        }
        // A range that is wide enough for one reward to outweigh the others.
        let wide = RewardBounds::Declared(RewardRange::new(-1e3, 1e3).unwrap());
        assert_eq!(bounded(&rows, wide), (Finding::LostRollouts, Some(1)));
    }

    #[test]
    fn lost_rollouts_that_could_turn_the_verdict_leave_it_open() {
        // 8 rows pass that did not, and 32 pass in both: p 0.008.
        let mut rows = vec![(row(&[Some(0.0)]), row(&[Some(1.0)])); 8];
        rows.extend(vec![(row(&[Some(1.0)]), row(&[Some(1.0)])); 32]);
        let implied = RewardBounds::Implied(RewardRange::UNIT);
        assert_eq!(bounded(&rows, implied), (Finding::Better, None));
        // One more row of 9 that goes down: p 0.04. Two of 10: p 0.11.
        rows[20].1 = lost(1);
        assert_eq!(bounded(&rows, implied), (Finding::Better, None));
        for row in &mut rows[21..25] {
            row.1 = lost(1);
        }
        assert_eq!(bounded(&rows, implied), (Finding::LostRollouts, Some(2)));
        // The other way around: those that were lost may have passed.
        let back: Vec<_> = rows
            .iter()
            .cloned()
            .map(|(one, other)| (other, one))
            .collect();
        assert_eq!(bounded(&back, implied), (Finding::LostRollouts, Some(2)));
        // Nothing is found, and six rows that passed could all have been better.
        let mut rows = vec![(row(&[Some(1.0)]), row(&[Some(1.0)])); 34];
        rows.extend(vec![(row(&[Some(0.0)]), lost(1)); 5]);
        assert_eq!(bounded(&rows, implied), (Finding::Identical, None));
        rows.push((row(&[Some(0.0)]), lost(1)));
        assert_eq!(bounded(&rows, implied), (Finding::LostRollouts, Some(6)));
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
