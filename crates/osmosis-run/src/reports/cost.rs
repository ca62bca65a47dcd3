//! What a run has cost so far, all attempts counted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::eval::prices::Prices;

/// In US dollars. An unknown price or an unknown count makes an unknown cost, never 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostReport {
    /// `USD`.
    pub currency: String,
    /// `null` when the model server did not report its tokens.
    pub total: Option<f64>,
    pub policy: Option<f64>,
    /// Of a judge's calls, which have a price of their own.
    pub judge: Option<f64>,
    pub per_million_tokens: Prices,
}
