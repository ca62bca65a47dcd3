//! Watches how many groups are dropped: what is dropped was paid for and teaches nothing.

use std::collections::VecDeque;

use crate::StepReport;

/// Steps that are looked at together.
const STEPS: usize = 5;

/// The groups of the latest steps.
#[derive(Debug, Default)]
pub(super) struct DroppedGroups(VecDeque<StepGroups>);

#[derive(Debug, Clone, Copy)]
struct StepGroups {
    all: u64,
    incomplete: u64,
    stale: u64,
}

impl DroppedGroups {
    /// Takes note of a step. Returns what to tell when more than half of the groups of the latest steps
    /// were dropped; then it looks at as many new steps before it tells again.
    pub(super) fn note(&mut self, report: &StepReport) -> Option<String> {
        let stale = report
            .asynchronous
            .as_ref()
            .map_or(0, |numbers| numbers.groups_stale);
        self.0.push_back(StepGroups {
            all: report.groups_used + report.groups_no_variance + report.groups_incomplete + stale,
            incomplete: report.groups_incomplete,
            stale,
        });
        if self.0.len() > STEPS {
            self.0.pop_front();
        }
        if self.0.len() < STEPS {
            return None;
        }
        let sum = |of: fn(&StepGroups) -> u64| self.0.iter().map(of).sum::<u64>();
        let (all, incomplete, stale) = (
            sum(|step| step.all),
            sum(|step| step.incomplete),
            sum(|step| step.stale),
        );
        if (incomplete + stale) * 2 <= all {
            return None;
        }
        self.0.clear();
        Some(format!(
            "{} of the {all} groups of the last {STEPS} steps were dropped: {incomplete} because a rollout of \
             theirs has no reward, {stale} because they were too old.{}{}",
            incomplete + stale,
            if incomplete > 0 {
                " `osmosis train info` counts why rollouts failed; `incomplete_groups = \"keep\"` compares those \
                 that have rewards."
            } else {
                ""
            },
            if stale > 0 {
                " Groups become too old when rollouts take longer than updates: raise `max_staleness`, lower \
                 `--max-in-flight`, or see `stragglers`."
            } else {
                ""
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AsyncReport;

    fn step(used: u64, incomplete: u64, stale: u64) -> StepReport {
        StepReport {
            groups_used: used,
            groups_incomplete: incomplete,
            asynchronous: (stale > 0).then(|| AsyncReport {
                groups_stale: stale,
                ..AsyncReport::default()
            }),
            ..StepReport::default()
        }
    }

    fn told(steps: &[StepReport]) -> Vec<Option<String>> {
        let mut dropped = DroppedGroups::default();
        steps.iter().map(|step| dropped.note(step)).collect()
    }

    #[test]
    fn half_of_the_groups_is_no_reason_to_warn() {
        let all = told(&[
            step(4, 4, 0),
            step(4, 2, 2),
            step(4, 4, 0),
            step(4, 4, 0),
            step(4, 4, 0),
        ]);
        assert!(all.iter().all(Option::is_none), "{all:?}");
    }

    #[test]
    fn more_than_half_is_told_once_in_so_many_steps() {
        let mut steps = vec![step(4, 4, 0); STEPS];
        steps[2] = step(4, 2, 3);
        steps.extend(vec![step(1, 7, 0); STEPS]);
        let all = told(&steps);
        let places: Vec<usize> = (0..all.len()).filter(|at| all[*at].is_some()).collect();
        assert_eq!(places, [STEPS - 1, 2 * STEPS - 1]);
        let first = all[STEPS - 1].as_deref().unwrap();
        assert!(
            first.starts_with("21 of the 41 groups of the last 5 steps were dropped: 18 because"),
            "{first}"
        );
        assert!(first.contains("3 because they were too old"), "{first}");
        assert!(
            first.contains("max_staleness") && first.contains("incomplete_groups"),
            "{first}"
        );
        let second = all[2 * STEPS - 1].as_deref().unwrap();
        assert!(!second.contains("max_staleness"), "{second}");
    }

    #[test]
    fn older_steps_are_forgotten_and_flat_groups_are_not_dropped() {
        let mut flat = step(0, 1, 0);
        flat.groups_no_variance = 7;
        let mut steps = vec![flat; STEPS];
        steps.extend(vec![step(0, 8, 0); STEPS / 2]);
        assert!(told(&steps).iter().all(Option::is_none));
        steps.push(step(0, 8, 0));
        assert!(told(&steps).last().unwrap().is_some());
    }

    #[test]
    fn a_run_without_groups_is_no_reason_either() {
        assert!(
            told(&vec![step(0, 0, 0); 2 * STEPS])
                .iter()
                .all(Option::is_none)
        );
    }
}
