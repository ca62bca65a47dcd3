//! Work in parallel, results in order.

use std::collections::BTreeMap;
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::PolicyError;

/// The graph of a deep model is walked by recursion.
const STACK_BYTES: usize = 32 << 20;

/// Threads that each do one piece of work at a time.
///
/// Each lane is a rayon pool of one thread: candle's matrix products split themselves over the rayon pool
/// they run in, and would otherwise compete with the other pieces for the cores.
#[derive(Debug)]
pub(super) struct Lanes {
    pools: Vec<rayon::ThreadPool>,
}

struct Progress<T> {
    next: usize,
    finished: usize,
    waiting: BTreeMap<usize, T>,
    failed: Option<(usize, PolicyError)>,
}

impl Lanes {
    /// `threads` lanes; 0 means one for each core.
    pub(super) fn new(threads: usize) -> Result<Self, PolicyError> {
        let threads = match threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let pools = (0..threads)
            .map(|lane| {
                rayon::ThreadPoolBuilder::new()
                    .num_threads(1)
                    .stack_size(STACK_BYTES)
                    .thread_name(move |_| format!("learner-{lane}"))
                    .build()
            })
            .collect::<Result<_, _>>()
            .map_err(|error| PolicyError::Threads(error.to_string()))?;
        Ok(Self { pools })
    }

    /// Does `work(0)` to `work(count - 1)`, several at a time, and gives the results to `take` in this
    /// order. After a failure nothing new is begun; of several failures the first in order is returned.
    pub(super) fn in_order<T: Send>(
        &self,
        count: usize,
        work: impl Fn(usize) -> Result<T, PolicyError> + Sync,
        take: impl FnMut(T) -> Result<(), PolicyError> + Send,
    ) -> Result<(), PolicyError> {
        let progress = Mutex::new(Progress {
            next: 0,
            finished: 0,
            waiting: BTreeMap::new(),
            failed: None,
        });
        let taken = Condvar::new();
        let take = Mutex::new(take);
        // Results ahead of their turn wait in memory, so no lane may run far ahead.
        let ahead = 2 * self.pools.len();
        let lane = || {
            loop {
                let index = {
                    let mut progress = progress.lock();
                    while progress.failed.is_none() && progress.next >= progress.finished + ahead {
                        taken.wait(&mut progress);
                    }
                    if progress.failed.is_some() || progress.next == count {
                        return;
                    }
                    progress.next += 1;
                    progress.next - 1
                };
                let result = work(index);
                let mut progress = progress.lock();
                match result {
                    Ok(result) => {
                        progress.waiting.insert(index, result);
                    }
                    Err(error) => progress.fail(index, error),
                }
                while let Some(result) = progress.due() {
                    let index = progress.finished;
                    progress.finished += 1;
                    if let Err(error) = (take.lock())(result) {
                        progress.fail(index, error);
                    }
                }
                taken.notify_all();
            }
        };
        thread::scope(|scope| {
            for pool in &self.pools[..self.pools.len().min(count)] {
                scope.spawn(|| pool.install(lane));
            }
        });
        match progress.into_inner().failed {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

impl<T> Progress<T> {
    fn due(&mut self) -> Option<T> {
        if self.failed.is_some() {
            return None;
        }
        self.waiting.remove(&self.finished)
    }
    fn fail(&mut self, index: usize, error: PolicyError) {
        if self.failed.as_ref().is_none_or(|(first, _)| index < *first) {
            self.failed = Some((index, error));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn results_come_in_order_whatever_the_number_of_lanes() {
        for threads in [1, 2, 5] {
            let mut taken = Vec::new();
            let lanes = Lanes::new(threads).unwrap();
            lanes
                .in_order(
                    100,
                    |index| Ok(index * 2),
                    |result| {
                        taken.push(result);
                        Ok(())
                    },
                )
                .unwrap();
            assert_eq!(taken, (0..100).map(|index| index * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_failure_ends_the_work_and_is_returned() {
        for threads in [1, 3] {
            let begun = AtomicUsize::new(0);
            let lanes = Lanes::new(threads).unwrap();
            let work = |index| {
                begun.fetch_add(1, Ordering::Relaxed);
                match index {
                    4 => Err(PolicyError::Rows("four".to_owned())),
                    index => Ok(index),
                }
            };
            let mut taken = 0;
            let result = lanes.in_order(1000, work, |_| {
                taken += 1;
                Ok(())
            });
            assert!(matches!(result, Err(PolicyError::Rows(message)) if message == "four"));
            assert!(taken <= 4, "nothing after the failure may be taken");
            assert!(
                begun.load(Ordering::Relaxed) < 100,
                "the work goes on after a failure"
            );
        }
    }

    #[test]
    fn a_result_that_is_refused_ends_the_work() {
        let lanes = Lanes::new(2).unwrap();
        let result = lanes.in_order(50, Ok, |index: usize| match index {
            7 => Err(PolicyError::Rows("seven".to_owned())),
            _ => Ok(()),
        });
        assert!(matches!(result, Err(PolicyError::Rows(message)) if message == "seven"));
    }
}
