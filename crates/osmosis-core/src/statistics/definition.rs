//! What every number counts, in words for reports.

pub const RAN: &str = "rollouts that ran: scored, agent failed, timed out, ungraded or rejected; \
    infrastructure failures and cancellations are listed apart";
pub const PASS_RATE: &str = "passed / all that ran";
pub const REWARD: &str = "over scored rollouts; a rollout's reward is the mean of its kept samples";
pub const CI95: &str = "95% interval of the mean, clustered by dataset row (cluster-robust \
    standard error, Student's t with rows - 1 degrees of freedom); none with fewer than two rows";
pub const PASS_AT_K: &str = "chance that at least one of k rollouts of a row passes (unbiased), \
    mean over the rows with at least k rollouts that ran";
pub const PASS_HAT_K: &str = "chance that all of k rollouts of a row pass (unbiased), \
    mean over the rows with at least k rollouts that ran";
pub const CALLS: &str = "summed over all rollouts with a result, whatever it is";
pub const WITHOUT_MODEL_CALLS: &str = "rollouts that ran and never called the model";
pub const DURATIONS: &str = "queue and agent over rollouts that ran, model over those of them \
    that called the model, grade over those that reached the grader";
