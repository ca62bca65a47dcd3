//! Prices and budget of a run that is under way.

use std::sync::Arc;

use osmosis_store::Store;

use super::budget::Budget;
use super::prices::{Cost, Dollars, Prices};
use crate::RunError;
use crate::runs::Pinned;

#[derive(Debug)]
pub struct Money {
    pub prices: Option<Prices>,
    pub budget: Option<Arc<Budget>>,
}

impl Money {
    /// What is said now goes before what the run was begun with.
    pub fn of(
        prices: Option<Prices>,
        max_cost: Option<Dollars>,
        pinned: &Pinned,
    ) -> Result<Self, RunError> {
        let prices = Prices::given_or_pinned(prices, pinned);
        Ok(Self {
            prices,
            budget: Budget::of(max_cost, prices)?,
        })
    }

    /// What the run has cost so far; `None` without prices.
    pub async fn cost(&self, store: &dyn Store) -> Result<Option<Cost>, RunError> {
        match self.prices {
            None => Ok(None),
            Some(prices) => Ok(Some(Cost::of(prices, &store.call_totals().await?))),
        }
    }

    pub fn is_spent(&self) -> bool {
        self.budget
            .as_ref()
            .is_some_and(|budget| budget.is_reached())
    }
}
