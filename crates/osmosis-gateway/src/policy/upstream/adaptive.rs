//! How many calls an endpoint takes at once, learnt from its complaints: a little more while all is
//! well, much less when it says it has too many.

/// What remains of a limit after a complaint.
const CUT: f64 = 0.7;

/// A limit between 1 and a ceiling that moves with what the endpoint says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Adaptive {
    limit: f64,
    ceiling: u32,
    /// Goes up with each cut: the complaints of all calls that were sent under one limit cut it once.
    epoch: u64,
}

impl Adaptive {
    pub(super) fn new(ceiling: u32) -> Self {
        let ceiling = ceiling.max(1);
        Self {
            limit: f64::from(ceiling),
            ceiling,
            epoch: 0,
        }
    }

    pub(super) fn limit(&self) -> u32 {
        // In 1..=ceiling, see below.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the limit lies between 1 and a u32"
        )]
        let limit = self.limit as u32;
        limit
    }

    /// What a call that starts now says its result belongs to.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A call was answered while `in_flight` were under way, itself included. The limit grows by one for
    /// each limit's worth of answers, when it is being made use of.
    pub(super) fn answered(&mut self, in_flight: u32) {
        if f64::from(in_flight) * 2.0 >= self.limit.floor() {
            self.limit = (self.limit + 1.0 / self.limit).min(f64::from(self.ceiling));
        }
    }

    /// A call of this epoch was refused for overload while `in_flight` were under way, itself included.
    pub(super) fn overloaded(&mut self, epoch: u64, in_flight: u32) {
        if epoch == self.epoch {
            self.limit = (self.limit.min(f64::from(in_flight)) * CUT)
                .floor()
                .max(1.0);
            self.epoch += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_of_complaints_cuts_once() {
        let mut limit = Adaptive::new(u32::MAX);
        for in_flight in (0..100).rev() {
            limit.overloaded(0, in_flight + 1);
        }
        assert_eq!((limit.limit(), limit.epoch()), (70, 1));
        limit.overloaded(1, 70);
        assert_eq!(limit.limit(), 49);
    }

    #[test]
    fn it_grows_by_about_one_for_a_limits_worth_of_answers_in_use() {
        let mut limit = Adaptive::new(100);
        limit.overloaded(0, 20);
        assert_eq!(limit.limit(), 14);
        for _ in 0..15 {
            limit.answered(14);
        }
        assert_eq!(limit.limit(), 15);
        for _ in 0..1_000 {
            limit.answered(1);
        }
        assert_eq!(limit.limit(), 15, "an idle endpoint proves nothing");
    }

    /// An endpoint that takes `capacity` calls at once and refuses the rest, always asked for as many as
    /// the limit allows: after a while the limit stays near the capacity.
    #[test]
    fn it_settles_near_what_the_endpoint_takes() {
        for capacity in [1_u32, 3, 10, 64] {
            let mut limit = Adaptive::new(1_000);
            let mut refused_late = 0;
            for round in 0..2_000 {
                let (sent, epoch) = (limit.limit(), limit.epoch());
                for number in 0..sent {
                    if number < capacity {
                        limit.answered(sent);
                    } else {
                        limit.overloaded(epoch, sent);
                        refused_late += u32::from(round >= 1_000);
                    }
                }
            }
            assert!(limit.limit() <= capacity + 1, "{capacity}: {limit:?}");
            assert!(f64::from(limit.limit()) >= (f64::from(capacity) * 0.6).floor());
            // One probe too many each time it has grown back.
            assert!(refused_late <= 1_000, "{capacity}: {refused_late}");
        }
    }

    proptest! {
        #[test]
        fn it_stays_between_one_and_its_ceiling(
            ceiling in 0..500_u32,
            events in prop::collection::vec((any::<bool>(), 0..600_u32), 0..300),
        ) {
            let mut limit = Adaptive::new(ceiling);
            for (fine, in_flight) in events {
                let before = limit.limit();
                if fine {
                    limit.answered(in_flight);
                    prop_assert!(limit.limit() >= before && limit.limit() <= before + 1);
                } else {
                    limit.overloaded(limit.epoch(), in_flight);
                    prop_assert!(limit.limit() <= before.max(1));
                }
                prop_assert!(limit.limit() >= 1 && limit.limit() <= ceiling.max(1));
            }
        }
    }
}
