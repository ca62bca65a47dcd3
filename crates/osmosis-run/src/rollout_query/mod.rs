//! Finds rollouts of a run: by outcome, reward or text, in an order, a page at a time.
//!
//! `eval show RUN`, the worst rows of a report and the viewer list rollouts with this. The store is read page
//! by page, and only the rollouts of the wanted page are kept: a run of any length fits into memory. The viewer, which
//! has the run's [grid](crate::reports::RolloutGrid) in memory, asks that instead ([`RolloutSearch::in_grid`]).

mod facts;
mod in_grid;
mod order;
mod preview;
mod raw_calls;
mod text;

use std::collections::BinaryHeap;
use std::fmt;

use osmosis_core::OutcomeKind;
use osmosis_store::{OutcomeTally, RolloutPages, RolloutQuery, RolloutRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use in_grid::{FoundPlaces, rollout_at};
pub use order::{Cursor, RolloutSort};

use self::facts::{RolloutFacts, variance};
use self::order::Place;
use self::text::TextSearch;
use crate::reports::{RolloutLine, RolloutState};
use crate::{RunError, RunErrorKind};

/// Rollouts on a page, if nothing else is asked for.
pub const DEFAULT_LIMIT: usize = 50;

/// Which rollouts to list, in which order. The default is all of them, in the order of their rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutSearch {
    /// Only rollouts that ended in one of these ways; empty: in any.
    pub outcomes: Vec<OutcomeKind>,
    /// Only rollouts with a result that did not pass: low rewards, and failures of every kind.
    pub failed: bool,
    /// Only rollouts that one of these takes; empty: all.
    pub any_of: Vec<StateFilter>,
    /// Only rewards below this number.
    pub reward_below: Option<f64>,
    /// Only rewards above this number.
    pub reward_above: Option<f64>,
    /// Only rewards of at least this number.
    pub reward_min: Option<f64>,
    /// Only rewards of at most this number.
    pub reward_max: Option<f64>,
    /// Only rollouts of this dataset row.
    pub row_index: Option<u64>,
    /// Only rollouts whose messages, model calls (system prompts, too) or error contain this text, in upper or lower
    /// case.
    pub text: Option<String>,
    pub sort: RolloutSort,
    /// Last first.
    pub reverse: bool,
    /// Continue after this place: `next` of the page before.
    pub after: Option<Cursor>,
    /// At most this many; 0 means [`DEFAULT_LIMIT`].
    pub limit: usize,
}

/// How a rollout stands, or whether it passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StateFilter {
    Passed,
    /// With a result that did not pass: low rewards, and failures of every kind.
    Failed,
    #[serde(untagged)]
    State(RolloutState),
}

impl StateFilter {
    fn takes(self, rollout: &RolloutFacts) -> bool {
        match self {
            Self::Passed => rollout.passed,
            Self::Failed => rollout.is_finished() && !rollout.passed,
            Self::State(state) => rollout.state == state,
        }
    }
}

/// A page of rollouts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FoundRollouts {
    pub items: Vec<ListedRollout>,
    /// How many rollouts match, on this page and on all others.
    pub total_count: u64,
    /// Where the next page starts; `null` on the last one.
    pub next: Option<Cursor>,
}

/// An item of `eval show RUN --json`: a rollout in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListedRollout {
    #[serde(flatten)]
    pub line: RolloutLine,
    /// The variance of the rewards of its row; only when the list is sorted by it, `null` with less than two
    /// rewards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_variance: Option<f64>,
    /// The beginning of the user's last message in the dataset row, on one line.
    pub prompt: Option<String>,
    /// The beginning of the last thing that the model said, on one line.
    pub answer: Option<String>,
    /// What the grader compares with, on one line; `null` when the row has no such column.
    pub ground_truth: Option<String>,
}

/// What is searched.
#[derive(Clone, Copy)]
pub struct SearchedRun<'a> {
    pub store: &'a dyn Store,
    /// Where the policy's calls are: another run's store for a run that only grades.
    pub calls: &'a dyn Store,
    /// Called with the number of rollouts searched so far. A text in a large run takes a while to find.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl fmt::Debug for SearchedRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchedRun").finish_non_exhaustive()
    }
}

impl SearchedRun<'_> {
    /// Whether the calls are in another run.
    fn calls_are_elsewhere(&self) -> bool {
        !std::ptr::addr_eq(self.store, self.calls)
    }
}

impl RolloutSearch {
    /// The wanted page of a run's rollouts.
    pub async fn run(&self, store: &dyn Store) -> Result<FoundRollouts, RunError> {
        let run = SearchedRun {
            store,
            calls: store,
            progress: &|_| {},
        };
        self.run_in(run).await
    }

    /// The same of a run whose calls may be elsewhere.
    pub async fn run_in(&self, run: SearchedRun<'_>) -> Result<FoundRollouts, RunError> {
        let store = run.store;
        self.check()?;
        let mut page = match self.counted(store).await? {
            Some(total) if self.sort == RolloutSort::Row && !self.reverse => {
                self.first_of_rows(store, total).await?
            }
            _ => self.best_of_all(run).await?,
        };
        preview::add(store, &mut page.items).await?;
        Ok(page)
    }

    fn check(&self) -> Result<(), RunError> {
        if let Some(after) = &self.after
            && after.sort() != self.sort
        {
            return Err(RunError::usage(
                RunErrorKind::Usage,
                format!("`{after}` continues a list in another order"),
            )
            .hint("sort as on the page before, or leave out the place to continue after"));
        }
        Ok(())
    }

    fn page_size(&self) -> usize {
        if self.limit == 0 {
            DEFAULT_LIMIT
        } else {
            self.limit
        }
    }

    /// How many rollouts match, where the store knows it without reading each of them.
    async fn counted(&self, store: &dyn Store) -> Result<Option<u64>, RunError> {
        let rewards = [
            self.reward_below,
            self.reward_above,
            self.reward_min,
            self.reward_max,
        ];
        if self.row_index.is_some()
            || self.text.is_some()
            || !self.any_of.is_empty()
            || rewards.iter().any(Option::is_some)
        {
            return Ok(None);
        }
        if self.outcomes.is_empty() && !self.failed {
            return Ok(Some(store.counts().await?.total()));
        }
        let counted = |tally: &OutcomeTally| {
            if !self.outcomes.is_empty() && !self.outcomes.contains(&tally.kind) {
                0
            } else if self.failed {
                tally.rollouts - tally.passed
            } else {
                tally.rollouts
            }
        };
        Ok(Some(store.tally().await?.iter().map(counted).sum()))
    }

    /// In the order of the store the first of them will do.
    async fn first_of_rows(
        &self,
        store: &dyn Store,
        total_count: u64,
    ) -> Result<FoundRollouts, RunError> {
        let wanted = self.page_size().saturating_add(1);
        let mut first = FirstPlaces::new(self);
        let mut pages = RolloutPages::new(store, self.in_store(wanted));
        'pages: while let Some(page) = pages.next().await? {
            for rollout in page {
                let facts = RolloutFacts::of(&rollout, None);
                if self.matches(&facts) {
                    first.add(&facts, (rollout, None));
                    if first.len() == wanted {
                        break 'pages;
                    }
                }
            }
        }
        Ok(FoundRollouts {
            total_count,
            ..first.listed()
        })
    }

    /// Reads every rollout, and keeps those that come first.
    async fn best_of_all(&self, run: SearchedRun<'_>) -> Result<FoundRollouts, RunError> {
        let mut searched = 0;
        let text = self.text.as_deref().map(TextSearch::new);
        let mut first = FirstPlaces::new(self);
        // The rollouts of a row are neighbours in the store.
        let mut row: Vec<RolloutRecord> = vec![];
        let query = RolloutQuery {
            after: None,
            limit: 0,
            ..self.in_store(0)
        };
        let mut pages = RolloutPages::new(run.store, query);
        loop {
            let page = pages.next().await?;
            let is_last = page.is_none();
            (run.progress)(searched);
            searched += page.as_ref().map_or(0, Vec::len) as u64;
            let mut whole: Vec<(RolloutRecord, Option<f64>)> = vec![];
            for rollout in page.into_iter().flatten() {
                if self.sort != RolloutSort::Variance {
                    whole.push((rollout, None));
                    continue;
                }
                if row
                    .last()
                    .is_some_and(|last| last.row_index != rollout.row_index)
                {
                    whole.extend(with_variance(&mut row));
                }
                row.push(rollout);
            }
            if is_last {
                whole.extend(with_variance(&mut row));
            }
            whole.retain(|(rollout, variance)| self.matches(&RolloutFacts::of(rollout, *variance)));
            if let Some(text) = &text {
                let rollouts: Vec<&RolloutRecord> = whole.iter().map(|(found, _)| found).collect();
                let mut found = text.found_in(run, &rollouts).await?.into_iter();
                whole.retain(|_| found.next().unwrap_or(false));
            }
            for (rollout, variance) in whole {
                let facts = RolloutFacts::of(&rollout, variance);
                first.add(&facts, (rollout, variance));
            }
            if is_last {
                break;
            }
        }
        Ok(first.listed())
    }

    /// What of the conditions the store can check itself.
    fn in_store(&self, limit: usize) -> RolloutQuery {
        RolloutQuery {
            row_index: self.row_index,
            kind: match self.outcomes[..] {
                [kind] => Some(kind),
                _ => None,
            },
            finished_only: self.failed || !self.outcomes.is_empty(),
            after: self.after.as_ref().map(Cursor::row_and_run),
            // Rollouts that don't match are on the page too.
            limit: if self.failed || self.outcomes.len() > 1 || !self.any_of.is_empty() {
                0
            } else {
                limit.min(1000)
            },
        }
    }

    /// Every condition but the text.
    fn matches(&self, rollout: &RolloutFacts) -> bool {
        let is = |limit: Option<f64>, holds: fn(f64, f64) -> bool| {
            limit.is_none_or(|limit| rollout.reward.is_some_and(|reward| holds(reward, limit)))
        };
        let outcome = rollout.outcome();
        let of_kind = self.outcomes.is_empty()
            || outcome.is_some_and(|outcome| self.outcomes.contains(&outcome));
        let in_state =
            self.any_of.is_empty() || self.any_of.iter().any(|filter| filter.takes(rollout));
        of_kind
            && in_state
            && self.row_index.is_none_or(|row| row == rollout.row_index)
            && (!self.failed || StateFilter::Failed.takes(rollout))
            && is(self.reward_below, |reward, limit| reward < limit)
            && is(self.reward_above, |reward, limit| reward > limit)
            && is(self.reward_min, |reward, limit| reward >= limit)
            && is(self.reward_max, |reward, limit| reward <= limit)
    }
}

/// The rollouts that come first after a search's cursor, and how many there are in all.
struct FirstPlaces<'a, T> {
    search: &'a RolloutSearch,
    /// Those of the page, and one more, which says that there is another page.
    first: BinaryHeap<Place<T>>,
    total_count: u64,
}

impl<'a, T> FirstPlaces<'a, T> {
    fn new(search: &'a RolloutSearch) -> Self {
        Self {
            search,
            first: BinaryHeap::new(),
            total_count: 0,
        }
    }

    fn len(&self) -> usize {
        self.first.len()
    }

    /// Takes a rollout that matches.
    fn add(&mut self, rollout: &RolloutFacts, item: T) {
        self.total_count += 1;
        let place = Place::new(self.search, rollout, item);
        let after = self.search.after.as_ref();
        if after.is_none_or(|after| place.is_after(after)) {
            self.first.push(place);
            if self.first.len() > self.search.page_size().saturating_add(1) {
                // The last of them in the wanted order.
                self.first.pop();
            }
        }
    }

    /// The page, how many match, and where the next page starts.
    fn page(self) -> (Vec<T>, u64, Option<Cursor>) {
        let limit = self.search.page_size();
        let mut sorted = self.first.into_sorted_vec();
        let more = sorted.len() > limit;
        sorted.truncate(limit);
        let next = sorted.last().filter(|_| more).map(Place::cursor);
        let items = sorted.into_iter().map(|place| place.item).collect();
        (items, self.total_count, next)
    }
}

impl FirstPlaces<'_, (RolloutRecord, Option<f64>)> {
    fn listed(self) -> FoundRollouts {
        let (items, total_count, next) = self.page();
        let items = items
            .into_iter()
            .map(|(rollout, row_variance)| ListedRollout {
                row_variance,
                ..ListedRollout::bare(RolloutLine::of(&rollout))
            });
        FoundRollouts {
            items: items.collect(),
            total_count,
            next,
        }
    }
}

impl ListedRollout {
    /// Without what it was about.
    fn bare(line: RolloutLine) -> Self {
        Self {
            line,
            row_variance: None,
            prompt: None,
            answer: None,
            ground_truth: None,
        }
    }
}

/// Takes the rollouts of a row, each with the variance of their rewards.
fn with_variance(row: &mut Vec<RolloutRecord>) -> Vec<(RolloutRecord, Option<f64>)> {
    let rewards = row.iter().filter_map(|rollout| {
        let outcome = rollout.outcome.as_ref()?;
        outcome.reward().map(osmosis_core::Reward::get)
    });
    let variance = variance(rewards);
    row.drain(..).map(|rollout| (rollout, variance)).collect()
}

#[cfg(test)]
mod tests;
