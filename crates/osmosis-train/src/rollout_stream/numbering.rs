//! Which rollout is which member of which group, both ways.

use std::collections::HashMap;

use osmosis_core::RolloutId;
use osmosis_core::staleness::{GroupId, MemberId};
use osmosis_store::NewRollout;

use crate::TrainError;
use crate::schedule::Schedule;

/// Goes through the rows as the schedule does, for as many epochs as it takes: what is discarded is
/// replaced by what comes next.
#[derive(Debug)]
pub(crate) struct Numbering {
    schedule: Schedule,
    orders: HashMap<u64, Order>,
}

/// The rows of an epoch by their places, and the other way round.
#[derive(Debug)]
struct Order {
    rows: Vec<u64>,
    places: HashMap<u64, u64>,
}

impl Numbering {
    pub(crate) fn new(schedule: Schedule) -> Self {
        Self {
            schedule,
            orders: HashMap::new(),
        }
    }

    fn order(&mut self, epoch: u64) -> &Order {
        let schedule = &self.schedule;
        self.orders.entry(epoch).or_insert_with(|| {
            let rows = schedule.shuffled(epoch);
            let places = rows.iter().copied().zip(0..).collect();
            Order { rows, places }
        })
    }

    /// The pass over the rows that a group belongs to, from 0.
    pub(crate) fn epoch(&self, group: GroupId) -> u64 {
        group.0 / self.schedule.epoch_length()
    }

    /// All members that a group may have, those that stand in for others too.
    pub(crate) fn members(&self, group: GroupId) -> impl Iterator<Item = MemberId> + use<> {
        (0..self.schedule.stride()).map(move |number| MemberId { group, number })
    }

    pub(crate) fn rollout(&mut self, member: MemberId) -> Result<NewRollout, TrainError> {
        let epoch = self.epoch(member.group);
        let place = member.group.0 % self.schedule.epoch_length();
        let stride = u64::from(self.schedule.stride());
        let order = self.order(epoch);
        let row = usize::try_from(place)
            .ok()
            .and_then(|place| order.rows.get(place));
        let run = epoch
            .checked_mul(stride)
            .and_then(|first| first.checked_add(u64::from(member.number)))
            .and_then(|run| u32::try_from(run).ok());
        match (row, run) {
            (Some(row), Some(run_index)) => Ok(NewRollout {
                id: RolloutId::of(*row, run_index),
                row_index: *row,
                run_index,
            }),
            (_, _) => Err(TrainError::TooManySteps {
                steps: self.schedule.steps(),
            }),
        }
    }

    /// `None` when the row is not one to train on.
    pub(crate) fn member(&mut self, row_index: u64, run_index: u32) -> Option<MemberId> {
        let stride = self.schedule.stride();
        let epoch = u64::from(run_index / stride);
        let length = self.schedule.epoch_length();
        let place = *self.order(epoch).places.get(&row_index)?;
        Some(MemberId {
            group: GroupId(epoch.checked_mul(length)?.checked_add(place)?),
            number: run_index % stride,
        })
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::config::Training;
    use osmosis_core::staleness::Straggler;
    use proptest::prelude::*;

    use super::*;

    fn numbering(stragglers: Straggler) -> (Numbering, Schedule) {
        let training = Training {
            rollout_batch_size: 2,
            n_samples_per_prompt: 3,
            max_staleness: 1,
            stragglers,
            total_epochs: 2,
            ..Training::default()
        };
        let schedule = Schedule::new(&[10, 11, 12, 13], &training, 7).unwrap();
        (Numbering::new(schedule.clone()), schedule)
    }

    #[test]
    fn groups_go_through_the_rows_as_the_steps_of_the_schedule_do() {
        let (mut numbering, schedule) = numbering(Straggler::Wait);
        let planned = (1..=schedule.steps()).flat_map(|step| schedule.possible_rollouts(step));
        let member = |at: u64| MemberId {
            group: GroupId(at / 3),
            number: u32::try_from(at % 3).unwrap(),
        };
        for (at, planned) in (0..).zip(planned) {
            assert_eq!(numbering.rollout(member(at)).unwrap(), planned);
        }
    }

    proptest! {
        #[test]
        fn a_rollout_leads_back_to_its_member(
            group in 0u64..100, number in 0u32..6, tops_up: bool
        ) {
            let straggler = if tops_up { Straggler::TopUp } else { Straggler::Drop };
            let number = if tops_up { number } else { number % 3 };
            let member = MemberId { group: GroupId(group), number };
            let (mut numbering, _) = numbering(straggler);
            let rollout = numbering.rollout(member).unwrap();
            prop_assert_eq!(numbering.member(rollout.row_index, rollout.run_index), Some(member));
            prop_assert_eq!(numbering.member(9, 0), None);
        }
    }
}
