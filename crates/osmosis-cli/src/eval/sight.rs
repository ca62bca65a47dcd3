//! What whoever shows a run can see of it while it goes on: the gateway's calls, the model servers, the
//! cost.

use std::sync::{Arc, OnceLock, Weak};

use osmosis_gateway::{Gateway, LiveRollout, Policy, PoolLoad};
use osmosis_store::CallSummary;

use super::prices::Prices;

/// Empty until the run's gateway is there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sight(Arc<OnceLock<Watched>>);

#[derive(Debug)]
struct Watched {
    /// Not kept alive by being looked at.
    gateway: Weak<Gateway>,
    policy: Arc<dyn Policy>,
    prices: Option<Prices>,
    /// The calls of earlier processes.
    before: CallSummary,
}

/// One look.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) rollouts: Vec<LiveRollout>,
    /// Of every attempt of the whole run.
    pub(crate) calls: CallSummary,
    pub(crate) servers: Option<PoolLoad>,
    /// `None` without prices, or without counted tokens.
    pub(crate) cost: Option<f64>,
}

impl Sight {
    /// From now on there is something to see.
    pub(crate) fn open(
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

    pub(crate) fn look(&self) -> Option<Seen> {
        let watched = self.0.get()?;
        let live = watched.gateway.upgrade()?.live();
        let mut calls = watched.before;
        calls.add(&live.totals);
        Some(Seen {
            rollouts: live.rollouts,
            cost: watched.prices.and_then(|prices| prices.cost_of(&calls)),
            calls,
            servers: watched.policy.load(),
        })
    }
}
