//! `--max-cost`: begins no more rollouts once the run has cost so much. It is asked before every claim,
//! and a rollout's calls are counted before its place is free again, so no more is spent beyond the limit
//! than what was under way by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use osmosis_engine::Stop;
use osmosis_gateway::Gateway;
use osmosis_store::{CallSummary, Store};
use tokio::task::JoinSet;

use super::prices::{Dollars, Prices};
use crate::{RunError, RunErrorKind};

/// How often the calls of nodes are counted.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A limit and the prices it is counted with.
#[derive(Debug)]
pub struct Budget {
    limit: Dollars,
    prices: Prices,
    reached: AtomicBool,
}

impl Budget {
    pub fn of(
        limit: Option<Dollars>,
        prices: Option<Prices>,
    ) -> Result<Option<Arc<Self>>, RunError> {
        match (limit, prices) {
            (None, _) => Ok(None),
            (Some(limit), Some(prices)) => Ok(Some(Arc::new(Self {
                limit,
                prices,
                reached: AtomicBool::new(false),
            }))),
            (Some(_), None) => Err(RunError::usage(
                RunErrorKind::Usage,
                "--max-cost needs to know what tokens cost",
            )
            .hint("give `--price-prompt USD --price-completion USD`, for a million tokens each")),
        }
    }

    pub fn is_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// Whether another rollout may begin. `before` are the calls of earlier processes.
    pub fn may_begin(
        self: &Arc<Self>,
        gateway: &Arc<Gateway>,
        before: CallSummary,
    ) -> impl Fn() -> bool + Send + Sync + 'static {
        let budget = Arc::clone(self);
        let gateway = Arc::downgrade(gateway);
        move || {
            let mut calls = before;
            if let Some(gateway) = gateway.upgrade() {
                calls.add(&gateway.call_totals());
            }
            !budget.is_spent_by(&calls)
        }
    }

    fn is_spent_by(&self, calls: &CallSummary) -> bool {
        let cost = self.prices.cost_of(calls);
        // Before the first call nothing is spent, also when nothing may be.
        let spent = cost.is_some_and(|cost| cost >= self.limit.get()) && cost != Some(0.0);
        if spent {
            self.reached.store(true, Ordering::Relaxed);
        }
        spent
    }

    /// Counts what nodes spend too, and stops the run once it is spent; until the task is dropped. What they spend between
    /// two looks comes on top.
    pub fn watch(self: &Arc<Self>, store: &Arc<dyn Store>, stop: &Stop) -> JoinSet<()> {
        let (budget, store, stop) = (Arc::clone(self), Arc::clone(store), stop.clone());
        let mut task = JoinSet::new();
        if store.shared().is_some() {
            task.spawn(async move {
                loop {
                    tokio::time::sleep(LOOK_EVERY).await;
                    // Whoever drives the run finds out what is wrong with the store.
                    if let Ok(calls) = store.call_totals().await
                        && budget.is_spent_by(&calls)
                    {
                        stop.drain.cancel();
                        return;
                    }
                }
            });
        }
        task
    }
}
