//! Finds rollouts of a run: by outcome, reward or text, in an order, a page at a time.
//!
//! `eval show RUN`, the worst rows of a report and the viewer list rollouts with this. The store is read page
//! by page, and only the rollouts of the wanted page are kept: a run of any length fits into memory.

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

pub use order::{Cursor, RolloutSort};

use self::order::{Place, row_variance};
use self::text::TextSearch;
use crate::reports::RolloutLine;
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
    /// Only rewards below this number.
    pub reward_below: Option<f64>,
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
        let rewards = [self.reward_below, self.reward_min, self.reward_max];
        if self.row_index.is_some() || self.text.is_some() || rewards.iter().any(Option::is_some) {
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
        let mut kept = vec![];
        let mut pages = RolloutPages::new(store, self.in_store(wanted));
        'pages: while let Some(page) = pages.next().await? {
            for rollout in page {
                if self.matches(&rollout) {
                    kept.push(Place::new(self, rollout, None));
                    if kept.len() == wanted {
                        break 'pages;
                    }
                }
            }
        }
        Ok(self.page_of(kept, total_count))
    }

    /// Reads every rollout, and keeps those that come first.
    async fn best_of_all(&self, run: SearchedRun<'_>) -> Result<FoundRollouts, RunError> {
        let mut searched = 0;
        let wanted = self.page_size().saturating_add(1);
        let text = self.text.as_deref().map(TextSearch::new);
        let mut first: BinaryHeap<Place> = BinaryHeap::new();
        let mut total_count = 0;
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
            whole.retain(|(rollout, _)| self.matches(rollout));
            if let Some(text) = &text {
                let rollouts: Vec<&RolloutRecord> = whole.iter().map(|(found, _)| found).collect();
                let mut found = text.found_in(run, &rollouts).await?.into_iter();
                whole.retain(|_| found.next().unwrap_or(false));
            }
            total_count += whole.len() as u64;
            for (rollout, variance) in whole {
                let place = Place::new(self, rollout, variance);
                if self
                    .after
                    .as_ref()
                    .is_none_or(|after| place.is_after(after))
                {
                    first.push(place);
                    if first.len() > wanted {
                        // The last of them in the wanted order.
                        first.pop();
                    }
                }
            }
            if is_last {
                break;
            }
        }
        Ok(self.page_of(first.into_sorted_vec(), total_count))
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
            limit: if self.failed || self.outcomes.len() > 1 {
                0
            } else {
                limit.min(1000)
            },
        }
    }

    /// Every condition but the text.
    fn matches(&self, rollout: &RolloutRecord) -> bool {
        let outcome = rollout.outcome.as_ref();
        let reward = outcome.and_then(osmosis_core::Outcome::reward);
        let reward = reward.map(osmosis_core::Reward::get);
        let is = |limit: Option<f64>, holds: fn(f64, f64) -> bool| {
            limit.is_none_or(|limit| reward.is_some_and(|reward| holds(reward, limit)))
        };
        let of_kind = self.outcomes.is_empty()
            || outcome.is_some_and(|outcome| self.outcomes.contains(&outcome.kind()));
        let failed = !self.failed || outcome.is_some_and(|outcome| !outcome.passed());
        of_kind
            && failed
            && is(self.reward_below, |reward, limit| reward < limit)
            && is(self.reward_min, |reward, limit| reward >= limit)
            && is(self.reward_max, |reward, limit| reward <= limit)
    }

    /// The page, from what comes first and one more, if there is one.
    fn page_of(&self, mut sorted: Vec<Place>, total_count: u64) -> FoundRollouts {
        let limit = self.page_size();
        let more = sorted.len() > limit;
        sorted.truncate(limit);
        let next = sorted.last().filter(|_| more).map(Place::cursor);
        let items = sorted.into_iter().map(|place| ListedRollout {
            line: RolloutLine::of(&place.rollout),
            row_variance: place.variance,
            prompt: None,
            answer: None,
            ground_truth: None,
        });
        FoundRollouts {
            items: items.collect(),
            total_count,
            next,
        }
    }
}

/// Takes the rollouts of a row, each with the variance of their rewards.
fn with_variance(row: &mut Vec<RolloutRecord>) -> Vec<(RolloutRecord, Option<f64>)> {
    let variance = row_variance(row);
    row.drain(..).map(|rollout| (rollout, variance)).collect()
}

#[cfg(test)]
mod tests;
