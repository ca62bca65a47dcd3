//! Who runs what: the seats of the workers, the tasks that wait, and the decision which goes where.
//! No I/O and no clock; the pool acts on what this decides.

use std::collections::VecDeque;

use osmosis_core::execution::Isolation;

/// A task that waits. It may have left without telling.
pub(super) trait Waiting {
    fn has_left(&self) -> bool;
}

/// Where a task goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<W> {
    Seat(W),
    /// A worker must be started for it.
    OwnWorker,
}

#[derive(Debug)]
pub(super) struct Limits {
    pub(super) in_flight_per_worker: usize,
    /// Workers that run one task alone, at once.
    pub(super) own_workers: usize,
    /// The user's own bound on executions at once.
    pub(super) max_concurrent: Option<usize>,
}

/// The workers and the queue of one role.
#[derive(Debug)]
pub(super) struct Roster<W, T> {
    limits: Limits,
    seats: Vec<Seat<W>>,
    shared: VecDeque<T>,
    alone: VecDeque<T>,
    solo: VecDeque<T>,
    running: usize,
    own_workers: usize,
}

#[derive(Debug)]
struct Seat<W> {
    id: u64,
    worker: W,
    in_flight: usize,
    blocked: bool,
}

impl<W: Clone, T: Waiting> Roster<W, T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            seats: Vec::new(),
            shared: VecDeque::new(),
            alone: VecDeque::new(),
            solo: VecDeque::new(),
            running: 0,
            own_workers: 0,
        }
    }

    pub(super) fn limit_concurrency(&mut self, max_concurrent: Option<usize>) {
        self.limits.max_concurrent = max_concurrent;
    }

    pub(super) fn enqueue(&mut self, isolation: Isolation, task: T) {
        match isolation {
            Isolation::Shared => self.shared.push_back(task),
            Isolation::Alone => self.alone.push_back(task),
            Isolation::Solo => self.solo.push_back(task),
        }
    }

    pub(super) fn add_worker(&mut self, id: u64, worker: W) {
        self.seats.push(Seat {
            id,
            worker,
            in_flight: 0,
            blocked: false,
        });
    }

    pub(super) fn remove_worker(&mut self, id: u64) {
        self.seats.retain(|seat| seat.id != id);
    }

    pub(super) fn set_blocked(&mut self, id: u64, blocked: bool) {
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.id == id) {
            seat.blocked = blocked;
        }
    }

    /// A task is over that had a seat at `worker`, which may be gone by now.
    pub(super) fn leave_seat(&mut self, worker: u64) {
        self.running -= 1;
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.id == worker) {
            seat.in_flight -= 1;
        }
    }

    /// A task is over that had a worker of its own, and so is the worker.
    pub(super) fn leave_own_worker(&mut self) {
        self.running -= 1;
        self.own_workers -= 1;
    }

    /// Everybody who waits, to be sent home.
    pub(super) fn clear(&mut self) -> Vec<T> {
        let alone = self.alone.drain(..).chain(self.solo.drain(..));
        alone.chain(self.shared.drain(..)).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running == 0
    }

    /// Whether a task waits that nothing else may run beside.
    pub(super) fn solo_waits(&mut self) -> bool {
        self.solo.retain(|task| !task.has_left());
        !self.solo.is_empty()
    }

    /// Takes it. Only when everything is idle.
    pub(super) fn next_solo(&mut self) -> Option<(T, Place<W>)> {
        let task = self.solo.pop_front()?;
        self.running += 1;
        self.own_workers += 1;
        Some((task, Place::OwnWorker))
    }

    /// Takes the next task that can go somewhere, first come first served. Those that run alone
    /// have been through the queue once before, so they go first.
    pub(super) fn next(&mut self) -> Option<(T, Place<W>)> {
        self.alone.retain(|task| !task.has_left());
        while self.shared.front().is_some_and(Waiting::has_left) {
            self.shared.pop_front();
        }
        if self
            .limits
            .max_concurrent
            .is_some_and(|limit| self.running >= limit)
        {
            return None;
        }
        if self.own_workers < self.limits.own_workers
            && let Some(task) = self.alone.pop_front()
        {
            self.running += 1;
            self.own_workers += 1;
            return Some((task, Place::OwnWorker));
        }
        if self.shared.is_empty() {
            return None;
        }
        let in_flight_limit = self.limits.in_flight_per_worker;
        let seat = self
            .seats
            .iter_mut()
            .filter(|seat| !seat.blocked && seat.in_flight < in_flight_limit)
            .min_by_key(|seat| seat.in_flight)?;
        let task = self.shared.pop_front()?;
        seat.in_flight += 1;
        self.running += 1;
        Some((task, Place::Seat(seat.worker.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Task(u32, bool);

    impl Waiting for Task {
        fn has_left(&self) -> bool {
            self.1
        }
    }

    fn roster(in_flight_per_worker: usize, max_concurrent: Option<usize>) -> Roster<u64, Task> {
        let limits = Limits {
            in_flight_per_worker,
            own_workers: 1,
            max_concurrent,
        };
        Roster::new(limits)
    }

    fn places(roster: &mut Roster<u64, Task>) -> Vec<(u32, Place<u64>)> {
        std::iter::from_fn(|| roster.next())
            .map(|(task, place)| (task.0, place))
            .collect()
    }

    fn enqueue(roster: &mut Roster<u64, Task>, tasks: impl IntoIterator<Item = u32>) {
        for task in tasks {
            roster.enqueue(Isolation::Shared, Task(task, false));
        }
    }

    #[test]
    fn tasks_go_to_the_least_loaded_worker_in_the_order_they_came() {
        let mut roster = roster(2, None);
        roster.add_worker(10, 10);
        roster.add_worker(20, 20);
        enqueue(&mut roster, 0..5);
        assert_eq!(
            places(&mut roster),
            [
                (0, Place::Seat(10)),
                (1, Place::Seat(20)),
                (2, Place::Seat(10)),
                (3, Place::Seat(20)),
            ]
        );
        roster.leave_seat(20);
        assert_eq!(places(&mut roster), [(4, Place::Seat(20))]);
    }

    #[test]
    fn a_blocked_worker_gets_nothing_until_it_is_unblocked() {
        let mut roster = roster(4, None);
        roster.add_worker(10, 10);
        roster.set_blocked(10, true);
        enqueue(&mut roster, 0..1);
        assert_eq!(places(&mut roster), []);
        roster.set_blocked(10, false);
        assert_eq!(places(&mut roster), [(0, Place::Seat(10))]);
    }

    #[test]
    fn a_task_that_left_is_passed_over() {
        let mut roster = roster(1, None);
        roster.add_worker(10, 10);
        roster.enqueue(Isolation::Shared, Task(0, true));
        roster.enqueue(Isolation::Alone, Task(1, true));
        enqueue(&mut roster, 2..3);
        assert_eq!(places(&mut roster), [(2, Place::Seat(10))]);
    }

    #[test]
    fn the_users_own_limit_counts_across_all_workers() {
        let mut roster = roster(4, Some(1));
        roster.add_worker(10, 10);
        roster.add_worker(20, 20);
        enqueue(&mut roster, 0..2);
        roster.enqueue(Isolation::Alone, Task(9, false));
        assert_eq!(places(&mut roster), [(9, Place::OwnWorker)]);
        roster.leave_own_worker();
        assert_eq!(places(&mut roster), [(0, Place::Seat(10))]);
    }

    #[test]
    fn waiting_for_a_worker_of_its_own_holds_up_nobody_else() {
        let mut roster = roster(4, None);
        roster.add_worker(10, 10);
        roster.enqueue(Isolation::Alone, Task(8, false));
        roster.enqueue(Isolation::Alone, Task(9, false));
        enqueue(&mut roster, 0..1);
        assert_eq!(
            places(&mut roster),
            [(8, Place::OwnWorker), (0, Place::Seat(10))]
        );
    }

    #[test]
    fn a_task_may_outlive_its_worker() {
        let mut roster = roster(1, Some(1));
        roster.add_worker(10, 10);
        enqueue(&mut roster, 0..2);
        assert_eq!(places(&mut roster), [(0, Place::Seat(10))]);
        roster.remove_worker(10);
        roster.add_worker(11, 11);
        assert_eq!(places(&mut roster), []);
        roster.leave_seat(10);
        assert_eq!(places(&mut roster), [(1, Place::Seat(11))]);
    }
}
