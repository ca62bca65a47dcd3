//! `osmosis eval|train show`.

use clap::{Args, ValueEnum};
use osmosis_core::OutcomeKind;
use osmosis_run::rollout_query::{Cursor, RolloutSearch, RolloutSort};

/// Rollouts that are listed, if nothing else is asked for.
const LISTED: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    /// Run: its name or the beginning of it, or `latest`, `latest~1`, …
    pub(crate) run: String,

    /// Row index from 0, or ROW.RUN for one of several rollouts of a row [default: list the rollouts]
    pub(crate) row: Option<String>,

    /// Also show every model call: request, reply, finish reason, status, tokens and time
    #[arg(long, requires = "row")]
    pub(crate) calls: bool,

    /// Print the bytes of one model call as they were sent and received; CALL is its number in --calls, from 0
    #[arg(long, value_name = "CALL", requires = "row", conflicts_with = "calls")]
    pub(crate) raw: Option<u32>,

    /// With --raw: only the request or only the reply, with nothing added
    #[arg(long, requires = "raw")]
    pub(crate) part: Option<CallPart>,

    #[command(flatten)]
    pub(crate) list: RolloutListArguments,
}

/// Half of a model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CallPart {
    Request,
    Reply,
}

#[derive(Debug, Args)]
pub(crate) struct RolloutListArguments {
    /// List only rollouts that did not pass: low rewards and failures of every kind
    #[arg(long, conflicts_with = "row")]
    failed: bool,

    /// List only rollouts with this outcome (repeat for several): scored, agent_failed, timed_out, ungraded,
    /// rejected, infrastructure_failed, cancelled
    #[arg(long, value_name = "OUTCOME", value_parser = outcome, conflicts_with = "row")]
    outcome: Vec<OutcomeKind>,

    /// List only rollouts with a reward below this number
    #[arg(
        long,
        value_name = "REWARD",
        allow_negative_numbers = true,
        conflicts_with = "row"
    )]
    reward_below: Option<f64>,

    /// List only rollouts whose messages, model calls (system prompts, too) or error contain this text (upper and
    /// lower case are the same)
    #[arg(long, value_name = "TEXT", conflicts_with = "row")]
    grep: Option<String>,

    /// Order of the list: row, reward (lowest first), variance (rows whose rewards differ most first), length
    /// (most completion tokens first) or time (slowest first)
    #[arg(long, value_name = "ORDER", value_parser = order, conflicts_with = "row")]
    sort: Option<RolloutSort>,

    /// Reverse the order of the list
    #[arg(long, conflicts_with = "row")]
    reverse: bool,

    /// List at most this many rollouts [default: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "row")]
    limit: Option<u32>,

    /// Continue the list: `next` of the page before
    #[arg(long, value_name = "PLACE", conflicts_with = "row")]
    after: Option<Cursor>,
}

impl RolloutListArguments {
    pub(crate) fn search(self) -> RolloutSearch {
        RolloutSearch {
            outcomes: self.outcome,
            failed: self.failed,
            reward_below: self.reward_below,
            text: self.grep,
            sort: self.sort.unwrap_or_default(),
            reverse: self.reverse,
            after: self.after,
            limit: self.limit.map_or(LISTED, |limit| limit as usize),
            ..RolloutSearch::default()
        }
    }

    /// The same conditions as they are typed, to continue the list after a place.
    pub(crate) fn typed(search: &RolloutSearch) -> Vec<String> {
        let mut typed = vec![];
        if search.failed {
            typed.push("--failed".to_owned());
        }
        for outcome in &search.outcomes {
            typed.extend(["--outcome".to_owned(), outcome.to_string()]);
        }
        if let Some(below) = search.reward_below {
            typed.extend(["--reward-below".to_owned(), below.to_string()]);
        }
        if let Some(text) = &search.text {
            let quoted = text.replace('\'', r"'\''");
            typed.extend(["--grep".to_owned(), format!("'{quoted}'")]);
        }
        if search.sort != RolloutSort::Row {
            typed.extend(["--sort".to_owned(), search.sort.as_str().to_owned()]);
        }
        if search.reverse {
            typed.push("--reverse".to_owned());
        }
        if search.limit != LISTED {
            typed.extend(["--limit".to_owned(), search.limit.to_string()]);
        }
        typed
    }
}

fn outcome(text: &str) -> Result<OutcomeKind, String> {
    OutcomeKind::parse(&text.replace(['-', ' '], "_")).ok_or_else(|| {
        let names: Vec<&str> = OutcomeKind::ALL.iter().map(|kind| kind.as_str()).collect();
        format!("one of {}", names.join(", "))
    })
}

fn order(text: &str) -> Result<RolloutSort, String> {
    RolloutSort::parse(text).ok_or_else(|| {
        let names: Vec<&str> = RolloutSort::ALL.iter().map(|sort| sort.as_str()).collect();
        format!("one of {}", names.join(", "))
    })
}
