use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::{PageEnd, RolloutQuery, RolloutRecord, Store, StoreError};

/// Pages that are read at once by [`RolloutPages::for_each`], where the store can tell where they end.
const AT_ONCE: usize = 3;

/// The rollouts of a query, a page at a time, so that a run of any length fits into memory.
#[derive(Debug)]
pub struct RolloutPages<'s> {
    store: &'s dyn Store,
    /// `None` when the last page has been handed out.
    query: Option<RolloutQuery>,
}

impl<'s> RolloutPages<'s> {
    pub fn new(store: &'s dyn Store, query: RolloutQuery) -> Self {
        Self {
            store,
            query: Some(query),
        }
    }

    /// Only rollouts that have a result.
    pub fn finished(store: &'s dyn Store) -> Self {
        let query = RolloutQuery {
            finished_only: true,
            ..RolloutQuery::default()
        };
        Self::new(store, query)
    }

    pub async fn next(&mut self) -> Result<Option<Vec<RolloutRecord>>, StoreError> {
        let Some(query) = self.query.take() else {
            return Ok(None);
        };
        let page = self.store.rollouts(query.clone()).await?;
        self.query = page.next.map(|next| after(&query, next));
        Ok(Some(page.items))
    }

    /// Passes every rollout to `each`, in order, while pages after it are read. `each` is no future: one that waits
    /// for the store could wait for the connection of such a read.
    pub async fn for_each(
        mut self,
        mut each: impl FnMut(&RolloutRecord),
    ) -> Result<(), StoreError> {
        let mut reads = VecDeque::new();
        loop {
            while reads.len() < AT_ONCE
                && let Some(query) = self.query.clone()
            {
                let end = match self.store.page_end(&query).await? {
                    PageEnd::Unknown if reads.is_empty() => {
                        for rollout in self.next().await?.iter().flatten() {
                            each(rollout);
                        }
                        continue;
                    }
                    PageEnd::Unknown => break,
                    PageEnd::Last => None,
                    PageEnd::At(place) => Some(place),
                };
                self.query = end.map(|end| after(&query, end));
                reads.push_back(Reading::begin(self.store, query, end).await);
            }
            let Some(read) = reads.pop_front() else {
                return Ok(());
            };
            read.end().await?.iter().for_each(&mut each);
        }
    }
}

fn after(query: &RolloutQuery, place: (u64, u32)) -> RolloutQuery {
    RolloutQuery {
        after: Some(place),
        ..query.clone()
    }
}

type Rollouts = Result<Vec<RolloutRecord>, StoreError>;

/// A read that was begun.
enum Reading<'s> {
    UnderWay(Pin<Box<dyn Future<Output = Rollouts> + Send + 's>>),
    Done(Rollouts),
}

impl<'s> Reading<'s> {
    async fn begin(store: &'s dyn Store, query: RolloutQuery, end: Option<(u64, u32)>) -> Self {
        let mut reading = Box::pin(read_until(store, query, end));
        match poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await {
            Poll::Ready(rollouts) => Self::Done(rollouts),
            Poll::Pending => Self::UnderWay(reading),
        }
    }

    async fn end(self) -> Rollouts {
        match self {
            Self::UnderWay(reading) => reading.await,
            Self::Done(rollouts) => rollouts,
        }
    }
}

/// The rollouts up to a place and no others, though results came or went since it was found.
async fn read_until(
    store: &dyn Store,
    mut query: RolloutQuery,
    end: Option<(u64, u32)>,
) -> Rollouts {
    let mut found = Vec::new();
    loop {
        let mut page = store.rollouts(query.clone()).await?;
        if let Some(end) = end {
            let is_wanted = |rollout: &RolloutRecord| (rollout.row_index, rollout.run_index) <= end;
            page.items.truncate(page.items.partition_point(is_wanted));
        }
        // As a rule one page is all, and it need not be copied.
        if found.is_empty() {
            found = page.items;
        } else {
            found.append(&mut page.items);
        }
        match page.next {
            // The last place of the page.
            Some(next) if end.is_none_or(|end| next < end) => {
                query.after = Some(next);
            }
            Some(_) | None => return Ok(found),
        }
    }
}
