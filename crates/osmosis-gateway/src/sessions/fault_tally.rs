//! Which faults the calls of a task met: the last call of each sample decides.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use osmosis_core::{SampleId, TaskClock};

use crate::policy::Fault;

/// What a call says about the policy behind the gateway.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// It works.
    Answered,
    /// The call itself is wrong, which is the caller's own doing.
    Refused,
    /// It does not work.
    Faulty(Fault),
    /// It had not answered when the caller went away, or its time was over.
    Unanswered { fault: Fault, waited: Waited },
    /// Nothing: the caller went away from a policy that was answering.
    Unknown,
}

/// What a caller waited for in vain.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Waited {
    /// For a policy that said nothing for so long.
    InSilence(Duration),
    /// For one that was known to fail.
    WhileItFailed,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: CallOutcome,
    pub(crate) began: Instant,
    /// From when it was sent until its answer began.
    pub(crate) first_byte_after: Option<Duration>,
    /// How a try of it failed, whatever became of the call.
    pub(crate) trouble: Option<Fault>,
}

/// The calls of one task, by sample.
#[derive(Debug, Default)]
pub(crate) struct FaultTally {
    /// The samples whose last call failed.
    standing: HashMap<SampleId, Standing>,
    /// When each sample was last answered.
    answered: HashMap<SampleId, Instant>,
    slowest_answer: Duration,
    last_trouble: Option<Fault>,
    noted: u64,
}

#[derive(Debug)]
struct Standing {
    fault: Fault,
    /// It could be a server that is slow, as it was before, and a task that came to its end.
    maybe_slow: bool,
    number: u64,
}

impl FaultTally {
    /// Takes up a call that has ended.
    pub(crate) fn note(&mut self, sample: &SampleId, ended: Ended, clock: Option<&TaskClock>) {
        self.noted += 1;
        if ended.trouble.is_some() {
            self.last_trouble = ended.trouble;
        }
        let now = Instant::now();
        match ended.outcome {
            CallOutcome::Answered => {
                self.standing.remove(sample);
                self.answered.insert(sample.clone(), now);
                let took = ended.first_byte_after.unwrap_or_default();
                self.slowest_answer = self.slowest_answer.max(took);
            }
            CallOutcome::Refused => {
                self.standing.remove(sample);
            }
            CallOutcome::Faulty(fault) => self.stands(sample, fault, false),
            CallOutcome::Unanswered { fault, waited } => {
                // Whoever asks twice and takes the first answer needs no other.
                if self
                    .answered
                    .get(sample)
                    .is_some_and(|at| *at >= ended.began)
                {
                    return;
                }
                let maybe_slow = match (waited, clock) {
                    (Waited::InSilence(silence), Some(clock)) => {
                        clock.may_be_over(now) && silence < clock.patience(self.slowest_answer)
                    }
                    (Waited::InSilence(_), None) | (Waited::WhileItFailed, _) => false,
                };
                self.stands(sample, fault, maybe_slow);
            }
            CallOutcome::Unknown => {}
        }
    }

    fn stands(&mut self, sample: &SampleId, fault: Fault, maybe_slow: bool) {
        let standing = Standing {
            fault,
            maybe_slow,
            number: self.noted,
        };
        self.standing.insert(sample.clone(), standing);
    }

    pub(crate) fn last_fault(&self) -> Option<Fault> {
        self.last(false)
    }

    pub(crate) fn slow_fault(&self) -> Option<Fault> {
        self.last(true)
    }

    fn last(&self, maybe_slow: bool) -> Option<Fault> {
        let standing = self.standing.values();
        let of_kind = standing.filter(|standing| standing.maybe_slow == maybe_slow);
        let last = of_kind.max_by_key(|standing| standing.number);
        last.map(|standing| standing.fault.clone())
    }

    /// How a try failed last, also one that another made good.
    pub(crate) fn last_trouble(&self) -> Option<Fault> {
        self.last_trouble.clone()
    }

    /// The longest that an answer let itself be waited for.
    pub(crate) fn slowest_answer(&self) -> Duration {
        self.slowest_answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::FaultKind;

    fn fault(message: &str) -> Fault {
        Fault {
            kind: FaultKind::ServerError,
            status: 500,
            message: message.to_owned(),
        }
    }

    fn sample(name: &str) -> SampleId {
        SampleId::new(name).unwrap()
    }

    fn ended(outcome: CallOutcome) -> Ended {
        Ended {
            outcome,
            began: Instant::now(),
            first_byte_after: None,
            trouble: None,
        }
    }

    fn unanswered(waited: Duration) -> CallOutcome {
        CallOutcome::Unanswered {
            fault: fault("silent"),
            waited: Waited::InSilence(waited),
        }
    }

    #[test]
    fn the_last_call_of_each_sample_decides() {
        let mut faults = FaultTally::default();
        let (a, b) = (sample("a"), sample("b"));
        faults.note(&a, ended(CallOutcome::Faulty(fault("a"))), None);
        faults.note(&b, ended(CallOutcome::Answered), None);
        assert_eq!(
            faults.last_fault(),
            Some(fault("a")),
            "another sample's answer"
        );
        faults.note(&b, ended(CallOutcome::Faulty(fault("b"))), None);
        assert_eq!(faults.last_fault(), Some(fault("b")));
        faults.note(&a, ended(CallOutcome::Answered), None);
        assert_eq!(faults.last_fault(), Some(fault("b")));
        faults.note(&b, ended(CallOutcome::Unknown), None);
        assert_eq!(faults.last_fault(), Some(fault("b")));
        faults.note(&b, ended(CallOutcome::Refused), None);
        assert_eq!(faults.last_fault(), None);
    }

    #[test]
    fn whoever_gives_up_on_silence_suffered_it_unless_another_call_was_answered_meanwhile() {
        let mut faults = FaultTally::default();
        let a = sample("a");
        let call = ended(unanswered(Duration::ZERO));
        faults.note(&a, ended(CallOutcome::Answered), None);
        faults.note(&a, call, None);
        assert_eq!(faults.last_fault(), None, "the slower one of two");
        faults.note(&a, ended(unanswered(Duration::ZERO)), None);
        assert_eq!(faults.last_fault(), Some(fault("silent")));
    }

    #[test]
    fn at_the_deadline_a_slow_answer_is_told_from_silence_by_those_before_it() {
        let clock = TaskClock::new(Duration::from_secs(100));
        clock.start(Instant::now());
        let over = TaskClock::new(Duration::ZERO);
        over.start(Instant::now());
        let a = sample("a");
        let cut_off = |slowest, waited, clock: &TaskClock| {
            let mut faults = FaultTally::default();
            let answered = Ended {
                first_byte_after: Some(Duration::from_secs(slowest)),
                ..ended(CallOutcome::Answered)
            };
            faults.note(&a, answered, Some(clock));
            let call = ended(unanswered(Duration::from_secs(waited)));
            faults.note(&a, call, Some(clock));
            (faults.last_fault().is_some(), faults.slow_fault().is_some())
        };
        assert_eq!(cut_off(10, 15, &over), (false, true));
        assert_eq!(cut_off(10, 25, &over), (true, false));
        assert_eq!(
            cut_off(10, 15, &clock),
            (true, false),
            "long before the deadline"
        );
    }
}
