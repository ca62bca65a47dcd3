//! What every number counts, in words for reports.

pub const RAN: &str = "rollouts that ran: scored, agent failed, timed out, ungraded or rejected; \
    infrastructure failures and cancellations are listed apart";
pub const PASS_RATE: &str = "passed / all that ran";
pub const REWARD: &str = "over scored rollouts; a rollout's reward is the mean of its kept samples";
pub const CI95: &str = "95% interval, clustered by dataset row, with Student's t at rows - 1 degrees \
    of freedom: of rates (pass rate, pass@k, pass^k) the score interval at the effective number of \
    rollouts; the same of rewards with a range (stated, or 0 to 1 when all are 0 or 1), other rewards \
    mean ± t standard errors; none with fewer than two rows, nor where rewards without a range agree in \
    all rows, which is no certainty";
pub const CI95_BOOTSTRAP: &str = "95% interval by drawing dataset rows with replacement, 4,000 times \
    with fixed random numbers, percentiles expanded for few rows; none with fewer than two rows, nor \
    where all rows agree";
pub const PASS_AT_K: &str = "chance that at least one of k rollouts of a row passes (unbiased), \
    mean over the rows with at least k rollouts that ran; where that hardly ever fails, the 95% interval covers 90%";
pub const PASS_HAT_K: &str = "chance that all of k rollouts of a row pass (unbiased), \
    mean over the rows with at least k rollouts that ran; where that is rare, the 95% interval covers 90%";
pub const CALLS: &str = "summed over all rollouts with a result, whatever it is";
pub const WITHOUT_MODEL_CALLS: &str = "rollouts that ran and never called the model";
pub const DURATIONS: &str = "queue and agent over rollouts that ran, model over those of them \
    that called the model, grade over those that reached the grader";

/// How two runs are compared.
pub const COMPARED: &str = "over the rows that both runs have and that ran in both; a row's value is the \
    mean of its rollouts and every row counts the same, so rollouts of one row count as one piece of evidence";
pub const COMPARED_CI95: &str = "95% interval of the difference, which excludes 0 exactly when the adjusted p value is \
    at most 0.05; of rates, and of rewards with a range, put together from the score intervals of both runs \
    (Newcombe), and inside what is possible; of others Student's t with rows - 1 degrees of freedom; none where all rows \
    differ by the same amount";
pub const PASS_TEST: &str = "two-sided; McNemar's exact test on the rows whose result changed when every \
    row has one rollout, otherwise a permutation test on the rows' pass rates: rollouts are permuted between the runs \
    within each row (where both have as many: the sign of the row's difference is flipped)";
pub const FAILURES: &str = "agent failed, timed out, ungraded or rejected / all that ran; tested as the pass \
    rate is";
pub const REWARD_TEST: &str = "the same permutation test on the rows' mean rewards, over rows with a scored rollout \
    in both runs; where rows differ as in the pass rate, the test of the pass rate";
pub const REWARD_DECIDES: &str = "true when every row is scored throughout in both runs, or not at all in \
    both, and no rollout was lost outside the agent unless both runs declare a reward range; otherwise not the same \
    rollouts have a reward, and the reward is shown but is not part of the verdict";
pub const VERDICT: &str = "better or worse: the pass rate differs, or the reward does and decides; \
    inconclusive: they contradict each other, or only failures or a reward that can't decide differ, or rollouts that \
    were lost outside the agent could turn the verdict, or no row ran in both; no_difference otherwise. At 5%, by the \
    adjusted p values";
pub const HOLM: &str = "Holm's correction over all tests of all comparisons with the first run; numbers \
    whose rows differ in proportion (passes and 0/1 rewards) are one test; null: not tested";
