//! What was done and what was looked at, counted when it happened and never before.

use std::collections::BTreeMap;
use std::fmt;

use super::faults::Fault;
use super::invariants::Invariant;

/// How often an invariant was looked at, and how often it did not hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Checks {
    pub(super) made: u64,
    pub(super) violated: u64,
}

/// The counts of a round, or of a campaign.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Table {
    faults: BTreeMap<Fault, u64>,
    checks: BTreeMap<Invariant, Checks>,
    /// What this machine can't do, and why.
    skipped: BTreeMap<&'static str, String>,
}

impl Table {
    pub(super) fn injected(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }

    pub(super) fn checked(&mut self, invariant: Invariant, holds: bool) {
        let checks = self.checks.entry(invariant).or_default();
        checks.made += 1;
        checks.violated += u64::from(!holds);
    }

    pub(super) fn skip(&mut self, what: &'static str, why: String) {
        self.skipped.insert(what, why);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        for (invariant, checks) in &other.checks {
            let all = self.checks.entry(*invariant).or_default();
            all.made += checks.made;
            all.violated += checks.violated;
        }
        for (what, why) in &other.skipped {
            self.skipped.insert(what, why.clone());
        }
    }

    pub(super) fn faults(&self) -> u64 {
        self.faults.values().sum()
    }

    pub(super) fn checks(&self) -> u64 {
        self.checks.values().map(|checks| checks.made).sum()
    }

    pub(super) fn violations(&self) -> u64 {
        self.checks.values().map(|checks| checks.violated).sum()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| fault | injected |\n|---|---:|")?;
        for (fault, count) in &self.faults {
            writeln!(f, "| {fault} | {count} |")?;
        }
        writeln!(f, "| **all** | {} |", self.faults())?;
        for (what, why) in &self.skipped {
            writeln!(f, "| {what} | skipped: {why} |")?;
        }
        writeln!(f, "\n| invariant | checked | violated |\n|---|---:|---:|")?;
        for (invariant, Checks { made, violated }) in &self.checks {
            writeln!(f, "| {invariant} | {made} | {violated} |")?;
        }
        write!(f, "| **all** | {} | {} |", self.checks(), self.violations())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::faults::{Blow, Victim};

    #[test]
    fn a_table_shows_what_happened_and_nothing_else() {
        let mut round = Table::default();
        round.injected(Fault::Signal(Blow::Kill, Victim::Eval));
        round.checked(Invariant::OneResult, true);
        round.checked(Invariant::OneResult, false);
        round.skip("clock jumps", "no libfaketime".to_owned());
        let mut all = Table::default();
        all.add(&round);
        all.add(&round);
        assert_eq!((all.faults(), all.checks(), all.violations()), (2, 4, 2));
        let text = all.to_string();
        assert!(text.contains("| SIGKILL of `eval submit` | 2 |"), "{text}");
        assert!(text.contains("| one accepted result for each rollout | 4 | 2 |"));
        assert!(text.contains("| clock jumps | skipped: no libfaketime |"));
        assert!(!text.contains("SIGTERM"));
    }
}
