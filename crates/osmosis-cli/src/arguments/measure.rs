//! What a run may cost, what it must reach, and how it is watched.

use camino::Utf8PathBuf;
use clap::Args;

use osmosis_run::eval::prices::{Dollars, Prices};

use crate::eval::progress::ProgressMode;
use osmosis_run::reports::Gate;

/// What the model's tokens cost. Without both prices no cost is told.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct PriceArguments {
    /// US dollars for a million prompt tokens; with --price-completion, the cost is told
    #[arg(
        id = "price_prompt",
        long = "price-prompt",
        value_name = "USD",
        requires = "price_completion"
    )]
    pub(crate) prompt: Option<Dollars>,

    /// US dollars for a million completion tokens, reasoning included
    #[arg(
        id = "price_completion",
        long = "price-completion",
        value_name = "USD",
        requires = "price_prompt"
    )]
    pub(crate) completion: Option<Dollars>,

    /// US dollars for a million prompt tokens that came from a cache [default: --price-prompt]
    #[arg(
        id = "price_cached",
        long = "price-cached",
        value_name = "USD",
        requires = "price_prompt"
    )]
    pub(crate) cached: Option<Dollars>,
}

impl PriceArguments {
    /// `None` unless both prices are there.
    pub(crate) fn prices(self) -> Option<Prices> {
        Some(Prices::new(self.prompt?, self.completion?, self.cached))
    }
}

/// What a run may cost.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct CostArguments {
    #[command(flatten)]
    pub(crate) prices: PriceArguments,

    /// Begin no more rollouts once the run has cost this much; what is under way is finished
    #[arg(long, value_name = "USD")]
    pub(crate) max_cost: Option<Dollars>,
}

/// What a run must reach, for a machine that decides by it.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GateArguments {
    /// Exit with code 4 when a complete run is below: `pass_rate=0.8`, `reward=0.5`, `pass@4=0.9`
    /// (also `pass^K`, `scored`, `reward.median`, `reward.min`, and `pass_rate.low` or `reward.low`, the lower
    /// end of the interval); can be given several times
    #[arg(long, value_name = "NUMBER=LIMIT")]
    pub(crate) fail_under: Vec<Gate>,

    /// Write a `JUnit` report to this file: one test case for each dataset row
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<Utf8PathBuf>,
}

/// How a run is watched.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WatchArguments {
    /// How the run shows that it goes on: `auto` (a live view on a terminal, else a line every 10
    /// seconds), `plain` (those lines), `none`, `ndjson` (a JSON object for each event, on standard
    /// error) or `ndjson:FILE`
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(crate) progress: ProgressMode,

    /// Do not ask the model server for one token before the first rollout
    #[arg(long)]
    pub(crate) no_probe: bool,
}
