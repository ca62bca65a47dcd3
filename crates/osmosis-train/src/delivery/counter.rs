//! Where the one task that forms batches and the many requests for them meet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{Acknowledged, BatchSource, DeliveredBatch, NextBatch, WaitingFor};
use crate::TrainError;

/// Acknowledgements that may wait; there is one batch at a time to acknowledge.
const WAITING: usize = 16;

/// What is to be had at the counter.
#[derive(Debug, Clone, Default)]
pub(super) struct Shown {
    /// The batch that is not acknowledged.
    pub(super) batch: Option<Arc<DeliveredBatch>>,
    /// What there is to wait for without one.
    pub(super) waiting_for: WaitingFor,
    pub(super) stopping: bool,
}

/// Somebody says that a batch is trained on.
#[derive(Debug)]
pub(super) struct Acknowledgement {
    pub(super) number: u64,
    pub(super) reply: oneshot::Sender<Acknowledged>,
}

/// The side of those who ask.
#[derive(Debug)]
pub(super) struct Counter {
    shown: watch::Receiver<Shown>,
    acknowledgements: mpsc::Sender<Acknowledgement>,
    /// The highest number that was given to somebody.
    handed: Arc<AtomicU64>,
    told_the_end: CancellationToken,
}

/// The side of who forms the batches.
#[derive(Debug)]
pub(super) struct BehindCounter {
    shown: watch::Sender<Shown>,
    acknowledgements: mpsc::Receiver<Acknowledgement>,
    handed: Arc<AtomicU64>,
    /// A trainer knows that there are no more batches.
    pub(super) told_the_end: CancellationToken,
}

/// `handed` is the highest number that an earlier process may have given out.
pub(super) fn counter(handed: u64) -> (Counter, BehindCounter) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let handed = Arc::new(AtomicU64::new(handed));
    let told_the_end = CancellationToken::new();
    let shown = watch::Sender::default();
    let counter = Counter {
        shown: shown.subscribe(),
        acknowledgements: sender,
        handed: Arc::clone(&handed),
        told_the_end: told_the_end.clone(),
    };
    let behind = BehindCounter {
        shown,
        acknowledgements: receiver,
        handed,
        told_the_end,
    };
    (counter, behind)
}

impl BehindCounter {
    pub(super) fn show(&self, shown: Shown) {
        self.shown.send_replace(shown);
    }

    /// The next acknowledgement; none ever when all who could ask are gone.
    pub(super) async fn acknowledgement(&mut self) -> Acknowledgement {
        match self.acknowledgements.recv().await {
            Some(acknowledgement) => acknowledgement,
            None => std::future::pending().await,
        }
    }

    /// Answers an acknowledgement. A batch that is acknowledged is taken from the counter first: whoever
    /// has the answer, or hears of it, can't be given that batch any more.
    pub(super) fn answer(&self, acknowledgement: Acknowledgement, done: Acknowledged) {
        let Acknowledgement { number, reply } = acknowledgement;
        match done {
            Acknowledged::Now | Acknowledged::Before => {
                self.shown.send_if_modified(|shown| {
                    let there = shown.batch.as_ref().map(|batch| batch.number);
                    let old = there.is_some_and(|there| there <= number);
                    if old {
                        shown.batch = None;
                    }
                    old
                });
            }
            Acknowledged::NotHandedOut | Acknowledged::Unknown | Acknowledged::Stopping => {}
        }
        // Who hung up meanwhile will say it again.
        let _ = reply.send(done);
    }

    /// Whether somebody was given this batch.
    pub(super) fn was_handed(&self, number: u64) -> bool {
        number <= self.handed.load(Ordering::SeqCst)
    }
}

impl Counter {
    /// What is to be had now; `None` when it is worth waiting.
    fn look(&self, shown: &Shown, after: Option<u64>) -> Option<NextBatch> {
        if shown.stopping {
            return Some(NextBatch::Stopping);
        }
        match &shown.batch {
            Some(batch) if after.is_none_or(|after| batch.number > after) => {
                self.handed.fetch_max(batch.number, Ordering::SeqCst);
                Some(NextBatch::Batch(Arc::clone(batch)))
            }
            None if shown.waiting_for == WaitingFor::End => {
                self.told_the_end.cancel();
                Some(NextBatch::Nothing(WaitingFor::End))
            }
            Some(_) | None => None,
        }
    }
}

#[async_trait]
impl BatchSource for Counter {
    async fn next(&self, after: Option<u64>, wait: Duration) -> Result<NextBatch, TrainError> {
        let mut shown = self.shown.clone();
        let until = tokio::time::Instant::now() + wait;
        loop {
            let handed = self.look(&shown.borrow_and_update(), after);
            if let Some(handed) = handed {
                return Ok(handed);
            }
            match tokio::time::timeout_at(until, shown.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Ok(NextBatch::Stopping),
                Err(_) => {
                    let shown = shown.borrow();
                    return Ok(NextBatch::Nothing(match shown.batch {
                        Some(_) => WaitingFor::Acknowledgement,
                        None => shown.waiting_for,
                    }));
                }
            }
        }
    }

    fn is_outstanding(&self, number: u64) -> bool {
        let shown = self.shown.borrow();
        shown.batch.as_ref().is_some_and(|b| b.number == number)
    }

    async fn acknowledge(&self, number: u64) -> Result<Acknowledged, TrainError> {
        let (reply, answer) = oneshot::channel();
        let said = Acknowledgement { number, reply };
        if self.acknowledgements.send(said).await.is_err() {
            return Ok(Acknowledged::Stopping);
        }
        Ok(answer.await.unwrap_or(Acknowledged::Stopping))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::tests::batch;

    const NO_TIME: Duration = Duration::ZERO;

    fn with_batch() -> Shown {
        Shown {
            batch: Some(Arc::new(batch())),
            ..Shown::default()
        }
    }

    fn nothing(waiting_for: WaitingFor) -> NextBatch {
        NextBatch::Nothing(waiting_for)
    }

    #[tokio::test]
    async fn a_batch_is_given_to_all_who_ask_until_it_is_taken_away() {
        let (counter, behind) = counter(0);
        assert_eq!(
            counter.next(None, NO_TIME).await.unwrap(),
            nothing(WaitingFor::Rollouts)
        );
        behind.show(with_batch());
        assert!(!behind.was_handed(2));
        for after in [None, None, Some(1)] {
            let handed = counter.next(after, NO_TIME).await.unwrap();
            assert_eq!(handed, NextBatch::Batch(Arc::new(batch())));
        }
        assert!(behind.was_handed(2));
        let next = counter.next(Some(2), NO_TIME).await.unwrap();
        assert_eq!(next, nothing(WaitingFor::Acknowledgement));
    }

    #[tokio::test]
    async fn who_waits_gets_the_batch_when_it_is_there() {
        let (counter, behind) = counter(0);
        let forming = async {
            // By then the other one waits.
            tokio::task::yield_now().await;
            behind.show(Shown {
                waiting_for: WaitingFor::Version,
                ..Shown::default()
            });
            tokio::task::yield_now().await;
            behind.show(with_batch());
        };
        let wait = Duration::from_hours(1);
        let (handed, ()) = tokio::join!(counter.next(None, wait), forming);
        assert_eq!(handed.unwrap(), NextBatch::Batch(Arc::new(batch())));
    }

    #[tokio::test]
    async fn an_acknowledged_batch_is_gone_before_the_acknowledgement_is_answered() {
        let (counter, mut behind) = counter(0);
        behind.show(with_batch());
        assert!(matches!(
            counter.next(None, NO_TIME).await.unwrap(),
            NextBatch::Batch(_)
        ));
        for done in [Acknowledged::NotHandedOut, Acknowledged::Unknown] {
            let answering = async {
                let said = behind.acknowledgement().await;
                behind.answer(said, done);
            };
            let (answer, ()) = tokio::join!(counter.acknowledge(2), answering);
            assert_eq!(answer.unwrap(), done);
            assert!(counter.is_outstanding(2), "{done:?} takes nothing away");
        }
        let answering = async {
            let said = behind.acknowledgement().await;
            assert!(counter.is_outstanding(2));
            behind.answer(said, Acknowledged::Now);
        };
        let (answer, ()) = tokio::join!(counter.acknowledge(2), answering);
        assert_eq!(answer.unwrap(), Acknowledged::Now);
        // Whoever forms the batches has not shown anything else yet.
        assert!(!counter.is_outstanding(2));
        assert_eq!(
            counter.next(None, NO_TIME).await.unwrap(),
            nothing(WaitingFor::Rollouts)
        );
    }

    #[tokio::test]
    async fn the_end_and_the_stop_are_told_at_once() {
        let (counter, behind) = counter(0);
        let long = Duration::from_secs(1_000_000);
        behind.show(Shown {
            waiting_for: WaitingFor::End,
            ..Shown::default()
        });
        assert!(!behind.told_the_end.is_cancelled());
        assert_eq!(
            counter.next(Some(9), long).await.unwrap(),
            nothing(WaitingFor::End)
        );
        assert!(behind.told_the_end.is_cancelled());
        behind.show(Shown {
            stopping: true,
            ..with_batch()
        });
        assert_eq!(counter.next(None, long).await.unwrap(), NextBatch::Stopping);
        drop(behind);
        assert_eq!(
            counter.acknowledge(1).await.unwrap(),
            Acknowledged::Stopping
        );
        assert_eq!(counter.next(None, long).await.unwrap(), NextBatch::Stopping);
    }
}
