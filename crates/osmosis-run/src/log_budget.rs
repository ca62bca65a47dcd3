//! How much of what user code prints is kept: so much for each rollout, so much for the run.

use std::collections::HashMap;

use osmosis_core::RolloutId;
use osmosis_core::config::LogLimits;

/// Who printed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Printer<'a> {
    Rollout(&'a RolloutId),
    /// A process that a worker started, or the worker while it ran no rollout. All of them share a budget: that
    /// of one rollout at first, and of another with each rollout that begins.
    Unknown,
}

/// What becomes of a piece of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Keep,
    /// It is cut, and so is what follows; nobody has been told yet.
    FirstCut(Limit),
    Cut,
}

/// Which limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Rollout(u64),
    Run(u64),
}

/// What was not kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CutOutput {
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
}

#[derive(Debug, Default)]
struct Account {
    kept: u64,
    cut: CutOutput,
}

/// Counts what is written and what is not.
#[derive(Debug)]
pub(crate) struct LogBudget {
    limits: LogLimits,
    /// Everything in the file, our own lines included.
    written: u64,
    /// Rollouts that have printed and not finished.
    rollouts: HashMap<RolloutId, Account>,
    unknown: Account,
    begun: u64,
    run_limit_told: bool,
}

impl LogBudget {
    /// For a file that holds `written` bytes already.
    pub(crate) fn new(limits: LogLimits, written: u64) -> Self {
        Self {
            limits,
            written,
            rollouts: HashMap::new(),
            unknown: Account::default(),
            begun: 1,
            run_limit_told: false,
        }
    }

    pub(crate) fn rollout_began(&mut self) {
        self.begun = self.begun.saturating_add(1);
    }

    /// Whether `bytes` more may be written, which are then counted.
    pub(crate) fn admit(&mut self, printer: Printer<'_>, bytes: u64, lines: u64) -> Admission {
        let per_rollout = self.limits.max_bytes_per_rollout;
        let (account, limit) = match printer {
            Printer::Rollout(id) => {
                if !self.rollouts.contains_key(id) {
                    self.rollouts.insert(id.clone(), Account::default());
                }
                (self.rollouts.get_mut(id), per_rollout)
            }
            Printer::Unknown => (
                Some(&mut self.unknown),
                per_rollout.saturating_mul(self.begun),
            ),
        };
        let Some(account) = account else {
            return Admission::Cut;
        };
        // Once cut stays cut: a log with holes would mislead. The budget of unknown printers grows again.
        let over_run = self.run_limit_told
            || self.written.saturating_add(bytes) > self.limits.max_bytes_per_run;
        let was_cut = account.cut != CutOutput::default();
        let over_rollout = account.kept.saturating_add(bytes) > limit
            || (was_cut && matches!(printer, Printer::Rollout(_)));
        if !over_run && !over_rollout {
            account.kept += bytes;
            self.written += bytes;
            return Admission::Keep;
        }
        account.cut.bytes = account.cut.bytes.saturating_add(bytes);
        account.cut.lines = account.cut.lines.saturating_add(lines);
        if over_run && !self.run_limit_told {
            self.run_limit_told = true;
            return Admission::FirstCut(Limit::Run(self.limits.max_bytes_per_run));
        }
        if was_cut || over_run {
            return Admission::Cut;
        }
        Admission::FirstCut(Limit::Rollout(limit))
    }

    /// Counts a line of our own, which is written whatever the limits.
    pub(crate) fn count_own(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// Whether it is plain that `bytes` more will not be admitted.
    pub(crate) fn is_spent(&self, printer: Printer<'_>, bytes: u64) -> bool {
        let per_rollout = self.limits.max_bytes_per_rollout;
        self.run_limit_told
            || match printer {
                Printer::Rollout(id) => self
                    .rollouts
                    .get(id)
                    .is_some_and(|account| account.cut != CutOutput::default()),
                Printer::Unknown => {
                    self.unknown.kept.saturating_add(bytes) > per_rollout.saturating_mul(self.begun)
                }
            }
    }

    /// Closes a rollout's account; what was cut of it.
    pub(crate) fn rollout_finished(&mut self, id: &RolloutId) -> Option<CutOutput> {
        let account = self.rollouts.remove(id)?;
        (account.cut != CutOutput::default()).then_some(account.cut)
    }

    /// Closes all accounts; what was cut, with the rollout where it is known.
    pub(crate) fn close(&mut self) -> Vec<(Option<RolloutId>, CutOutput)> {
        let rollouts = std::mem::take(&mut self.rollouts);
        let mut cut: Vec<(Option<RolloutId>, CutOutput)> = rollouts
            .into_iter()
            .map(|(id, account)| (Some(id), account.cut))
            .collect();
        cut.push((None, std::mem::take(&mut self.unknown).cut));
        cut.retain(|(_, cut)| *cut != CutOutput::default());
        cut.sort_by(|(one, _), (other, _)| one.cmp(other));
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(per_rollout: u64, per_run: u64) -> LogBudget {
        let limits = LogLimits {
            max_bytes_per_rollout: per_rollout,
            max_bytes_per_run: per_run,
        };
        LogBudget::new(limits, 0)
    }

    #[test]
    fn a_rollout_is_cut_at_its_limit_and_its_neighbour_is_not() {
        let (one, other) = (RolloutId::of(1, 0), RolloutId::of(2, 0));
        let mut budget = budget(100, 1000);
        let (one, other) = (Printer::Rollout(&one), Printer::Rollout(&other));
        assert_eq!(budget.admit(one, 100, 1), Admission::Keep);
        assert!(!budget.is_spent(one, 1));
        assert_eq!(
            budget.admit(one, 5, 1),
            Admission::FirstCut(Limit::Rollout(100))
        );
        assert!(budget.is_spent(one, 1));
        assert_eq!(budget.admit(one, 7, 2), Admission::Cut);
        assert_eq!(budget.admit(other, 100, 1), Admission::Keep);
        let Printer::Rollout(id) = one else {
            unreachable!()
        };
        let cut = CutOutput {
            bytes: 12,
            lines: 3,
        };
        assert_eq!(budget.rollout_finished(id), Some(cut));
        assert_eq!(budget.rollout_finished(id), None);
    }

    #[test]
    fn a_small_line_after_the_cut_is_cut_too() {
        let id = RolloutId::of(1, 0);
        let mut budget = budget(100, 1000);
        let printer = Printer::Rollout(&id);
        assert_eq!(budget.admit(printer, 90, 1), Admission::Keep);
        assert!(matches!(
            budget.admit(printer, 20, 1),
            Admission::FirstCut(_)
        ));
        assert_eq!(budget.admit(printer, 1, 1), Admission::Cut);
    }

    #[test]
    fn the_run_has_a_limit_that_is_told_once() {
        let ids = [1, 2, 3].map(|row| RolloutId::of(row, 0));
        let mut budget = budget(100, 150);
        assert_eq!(
            budget.admit(Printer::Rollout(&ids[0]), 100, 1),
            Admission::Keep
        );
        assert_eq!(
            budget.admit(Printer::Rollout(&ids[1]), 60, 1),
            Admission::FirstCut(Limit::Run(150))
        );
        let small = Printer::Rollout(&ids[2]);
        assert!(budget.is_spent(small, 1));
        assert_eq!(budget.admit(small, 1, 1), Admission::Cut);
        let cut: Vec<u64> = budget.close().iter().map(|(_, cut)| cut.bytes).collect();
        assert_eq!(cut, [60, 1]);
    }

    #[test]
    fn what_can_not_be_attributed_has_the_budget_of_the_rollouts_begun() {
        let mut budget = budget(100, 1000);
        assert_eq!(budget.admit(Printer::Unknown, 100, 1), Admission::Keep);
        assert!(matches!(
            budget.admit(Printer::Unknown, 1, 1),
            Admission::FirstCut(Limit::Rollout(100))
        ));
        budget.rollout_began();
        assert_eq!(budget.admit(Printer::Unknown, 100, 1), Admission::Keep);
        assert_eq!(budget.admit(Printer::Unknown, 1, 1), Admission::Cut);
    }

    #[test]
    fn what_was_written_before_a_resume_counts() {
        let limits = LogLimits {
            max_bytes_per_rollout: 100,
            max_bytes_per_run: 1000,
        };
        let mut budget = LogBudget::new(limits, 950);
        assert!(matches!(
            budget.admit(Printer::Unknown, 60, 1),
            Admission::FirstCut(Limit::Run(1000))
        ));
    }
}
