use crate::{RolloutQuery, RolloutRecord, Store, StoreError};

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
        if page.next.is_some() {
            self.query = Some(RolloutQuery {
                after: page.next,
                ..query
            });
        }
        Ok(Some(page.items))
    }
}
