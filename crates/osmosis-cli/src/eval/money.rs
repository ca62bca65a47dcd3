//! Prices and budget of a run that is under way.

use std::sync::Arc;

use osmosis_run::RunError;
use osmosis_store::Store;

use super::budget::Budget;
use super::prices::{Cost, Prices};
use crate::arguments::CostArguments;
use crate::runs::Pinned;

#[derive(Debug)]
pub(crate) struct Money {
    pub(crate) prices: Option<Prices>,
    pub(crate) budget: Option<Arc<Budget>>,
}

impl Money {
    /// What is said now goes before what the run was begun with.
    pub(crate) fn of(said: &CostArguments, pinned: &Pinned) -> Result<Self, RunError> {
        let prices = Prices::given_or_pinned(said.prices, pinned);
        Ok(Self {
            prices,
            budget: Budget::of(said.max_cost, prices)?,
        })
    }

    /// What the run has cost so far; `None` without prices.
    pub(crate) async fn cost(&self, store: &dyn Store) -> Result<Option<Cost>, RunError> {
        match self.prices {
            None => Ok(None),
            Some(prices) => Ok(Some(Cost::of(prices, &store.call_totals().await?))),
        }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.budget
            .as_ref()
            .is_some_and(|budget| budget.is_reached())
    }
}
