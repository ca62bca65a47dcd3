//! `--max-cost`: begins no more rollouts once the run has cost so much. It is asked before every claim,
//! and a rollout's calls are counted before its place is free again, so no more is spent beyond the limit
//! than what was under way by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use osmosis_gateway::Gateway;
use osmosis_store::CallSummary;

use super::prices::{Dollars, Prices};
use crate::{RunError, RunErrorKind};

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
            let cost = budget.prices.cost_of(&calls);
            // Before the first call nothing is spent, also when nothing may be.
            let spent = cost.is_some_and(|cost| cost >= budget.limit.get()) && cost != Some(0.0);
            if spent {
                budget.reached.store(true, Ordering::Relaxed);
            }
            !spent
        }
    }
}
