//! The same lists from a grid in memory, which readers of many pages keep.

use std::collections::HashSet;

use osmosis_store::{RolloutQuery, RolloutRecord, Store};

use super::facts::{RolloutFacts, variance};
use super::{Cursor, FirstPlaces, ListedRollout, RolloutSearch, RolloutSort, preview};
use crate::RunError;
use crate::reports::{RolloutGrid, RolloutLine};

/// A page of a grid's rollouts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FoundPlaces {
    /// Indices into the columns of the grid, each with the variance of its row where the list is sorted by it.
    pub places: Vec<(usize, Option<f64>)>,
    /// How many rollouts match, on this page and on all others.
    pub total_count: u64,
    /// Where the next page starts; `None` on the last one.
    pub next: Option<Cursor>,
}

impl RolloutSearch {
    /// The wanted page of a grid's rollouts; `among`: of those alone, by row and run index. Texts are not looked for:
    /// a grid has none.
    pub fn in_grid(
        &self,
        grid: &RolloutGrid,
        among: Option<&HashSet<(u64, u32)>>,
    ) -> Result<FoundPlaces, RunError> {
        self.check()?;
        let mut first = FirstPlaces::new(self);
        let mut begin = 0;
        // The rollouts of a row are neighbours.
        for row in grid.row_index.chunk_by(|one, other| one == other) {
            let places = begin..begin + row.len();
            begin = places.end;
            let row_variance = if self.sort == RolloutSort::Variance {
                variance(grid.reward[places.clone()].iter().flatten().copied())
            } else {
                None
            };
            for place in places {
                let rollout = RolloutFacts::at(grid, place, row_variance);
                let key = (rollout.row_index, rollout.run_index);
                if self.matches(&rollout) && among.is_none_or(|among| among.contains(&key)) {
                    first.add(&rollout, (place, row_variance));
                }
            }
        }
        let (places, total_count, next) = first.page();
        Ok(FoundPlaces {
            places,
            total_count,
            next,
        })
    }
}

impl FoundPlaces {
    /// The rollouts of the page, with what each was about.
    pub async fn listed(
        &self,
        store: &dyn Store,
        grid: &RolloutGrid,
    ) -> Result<Vec<ListedRollout>, RunError> {
        let mut items = vec![];
        for (place, row_variance) in &self.places {
            let (row, run) = (grid.row_index[*place], grid.run_index[*place]);
            if let Some(rollout) = rollout_at(store, row, run).await? {
                items.push(ListedRollout {
                    row_variance: *row_variance,
                    ..ListedRollout::bare(RolloutLine::of(&rollout))
                });
            }
        }
        preview::add(store, &mut items).await?;
        Ok(items)
    }
}

/// The rollout of a dataset row with this number.
pub async fn rollout_at(
    store: &dyn Store,
    row_index: u64,
    run_index: u32,
) -> Result<Option<RolloutRecord>, RunError> {
    let query = RolloutQuery {
        row_index: Some(row_index),
        after: run_index.checked_sub(1).map(|before| (row_index, before)),
        limit: 1,
        ..RolloutQuery::default()
    };
    let page = store.rollouts(query).await?;
    let first = page.items.into_iter().next();
    Ok(first.filter(|rollout| rollout.run_index == run_index))
}
