//! What whoever shows a run can see of it while it goes on: the gateway's calls, the model servers, the
//! cost.

use std::sync::{Arc, OnceLock, Weak};

use osmosis_gateway::{Gateway, LiveRollout, Policy, PoolLoad};
use osmosis_store::CallSummary;

use super::prices::Prices;

/// Empty until the run's gateway is there.
#[derive(Debug, Clone, Default)]
pub struct LiveView(Arc<OnceLock<Watched>>);

#[derive(Debug)]
struct Watched {
    /// Not kept alive by being looked at.
    gateway: Weak<Gateway>,
    policy: Arc<dyn Policy>,
    prices: Option<Prices>,
    /// The calls of earlier processes.
    before: CallSummary,
}

/// What a run looks like at one moment.
#[derive(Debug, Clone, Default)]
pub struct LiveSnapshot {
    pub rollouts: Vec<LiveRollout>,
    /// Of every attempt of the whole run.
    pub calls: CallSummary,
    pub servers: Option<PoolLoad>,
    /// `None` without prices, or without counted tokens.
    pub cost: Option<f64>,
}

impl LiveView {
    /// From now on there is something to see.
    pub fn open(
        &self,
        gateway: &Arc<Gateway>,
        policy: &Arc<dyn Policy>,
        prices: Option<Prices>,
        before: CallSummary,
    ) {
        // The first gateway stays: a run has one.
        let _ = self.0.set(Watched {
            gateway: Arc::downgrade(gateway),
            policy: Arc::clone(policy),
            prices,
            before,
        });
    }

    pub fn look(&self) -> Option<LiveSnapshot> {
        let watched = self.0.get()?;
        let live = watched.gateway.upgrade()?.live();
        let mut calls = watched.before;
        calls.add(&live.totals);
        Some(LiveSnapshot {
            rollouts: live.rollouts,
            cost: watched.prices.and_then(|prices| prices.cost_of(&calls)),
            calls,
            servers: watched.policy.load(),
        })
    }
}
