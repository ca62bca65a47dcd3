//! How much longer a run takes, as a range, or not at all.

/// Fewer results than this say nothing about the rest.
const FEWEST_RESULTS: u64 = 3;

/// What is known of the time that rollouts take. All times in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observed<'a> {
    /// Rollouts that finished here, and how long they took together.
    pub(super) finished: u64,
    pub(super) finished_seconds: f64,
    /// For how long each of those under way has been so.
    pub(super) ages: &'a [f64],
    /// Rollouts that were not begun yet.
    pub(super) waiting: u64,
}

/// From when to when the end can be expected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Eta {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// Short rollouts finish first, so the mean of those that have finished is too low. Time that others
/// have been under way counts as well: all time spent, divided by the results it brought.
///
/// The low end takes every rollout for an average one; the high end takes their times for as scattered
/// as those of a memoryless process, whose slowest of `c` takes `1 + ln c` means. Both widen with the
/// square root of how little is known.
pub(super) fn eta(observed: &Observed<'_>) -> Option<Eta> {
    if observed.finished < FEWEST_RESULTS {
        return None;
    }
    let under_way = observed.ages.len() as f64;
    let spent = observed.finished_seconds + observed.ages.iter().sum::<f64>();
    let mean = spent / observed.finished as f64;
    let at_once = under_way.max(1.0);
    let queue = observed.waiting as f64 * mean / at_once;
    let last = observed
        .ages
        .iter()
        .map(|age| (mean - age).max(0.0))
        .fold(0.0, f64::max);
    let slowest = if observed.ages.is_empty() && observed.waiting == 0 {
        0.0
    } else {
        mean * (1.0 + at_once.ln())
    };
    let doubt = 1.0 / (observed.finished as f64).sqrt();
    Some(Eta {
        low: (queue + last) * (1.0 - doubt),
        high: (queue + slowest) * (1.0 + doubt),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_knowledge_gives_no_range() {
        let observed = Observed {
            finished: 2,
            finished_seconds: 4.0,
            ages: &[1.0],
            waiting: 10,
        };
        assert_eq!(eta(&observed), None);
    }

    #[test]
    fn a_steady_run_ends_within_the_range() {
        // 100 finished in 5 s each, 10 at once, 200 wait: 100 s and the rest of those under way.
        let observed = Observed {
            finished: 100,
            finished_seconds: 500.0,
            ages: &[0.0; 10],
            waiting: 200,
        };
        let Eta { low, high } = eta(&observed).unwrap();
        assert!(low < 105.0 && 105.0 < high, "{low} {high}");
        assert!(high < 135.0, "{high}");
    }

    #[test]
    fn old_ones_under_way_make_the_rest_longer() {
        let young = Observed {
            finished: 20,
            finished_seconds: 20.0,
            ages: &[0.5; 4],
            waiting: 40,
        };
        let old = Observed {
            ages: &[60.0; 4],
            ..young
        };
        let (young, old) = (eta(&young).unwrap(), eta(&old).unwrap());
        assert!(old.low > 5.0 * young.high, "{young:?} {old:?}");
    }

    #[test]
    fn nothing_left_takes_no_time() {
        let observed = Observed {
            finished: 5,
            finished_seconds: 5.0,
            ages: &[],
            waiting: 0,
        };
        assert_eq!(
            eta(&observed),
            Some(Eta {
                low: 0.0,
                high: 0.0
            })
        );
    }
}
