//! Which rollouts of a run are listed, and what their texts are searched with.

use std::collections::HashSet;
use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_run::reports::RolloutGrid;
use osmosis_run::rollout_query::ListedRollout;
use osmosis_run::transcript_search::{self, TranscriptMatches, TranscriptSearch};

use super::{Documents, OpenRun, rows};
use crate::api::ApiError;
use crate::listing::ListQuery;
use crate::response::ListEnvelope;

impl Documents {
    pub(crate) async fn rollouts(
        &self,
        name: &str,
        query: &ListQuery,
    ) -> Result<ListEnvelope<ListedRollout>, ApiError> {
        let run = self.open(name).await?;
        let grid = self.grid_of(&run).await?;
        let mut matching: Option<HashSet<(u64, u32)>> = None;
        for matches in self.matches(&run, query, &grid).await? {
            let found: HashSet<(u64, u32)> = matches.rollouts.into_iter().collect();
            matching = Some(match matching {
                None => found,
                Some(before) => before.intersection(&found).copied().collect(),
            });
        }
        let found = query.search()?.in_grid(&grid, matching.as_ref())?;
        let items = found.listed(&*run.read.store, &grid).await?;
        let next = found.next.map(|next| next.to_string());
        Ok(ListEnvelope::page(items, found.total_count, next))
    }

    /// What each of the query's texts is found in.
    pub(crate) async fn matches(
        &self,
        run: &OpenRun,
        query: &ListQuery,
        grid: &RolloutGrid,
    ) -> Result<Vec<TranscriptMatches>, ApiError> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let mut all = vec![];
        if let Some(text) = given(&query.q) {
            let search = self.search(run)?;
            all.push(search.find(transcript_search::Wanted::Text(text)).await?);
        }
        if let Some(name) = given(&query.tool) {
            let search = self.search(run)?;
            all.push(search.find(transcript_search::Wanted::Tool(name)).await?);
        }
        if let Some(text) = given(&query.row) {
            all.push(rows::with_text(run, &text, grid).await?);
        }
        Ok(all)
    }

    fn search(&self, run: &OpenRun) -> Result<Arc<TranscriptSearch>, ApiError> {
        let path = run.read.folder.path.clone();
        let mut searches = self.searches.lock();
        if let Some(search) = searches.get(&path) {
            return Ok(Arc::clone(search));
        }
        // A run of somebody else's, or on a medium that can't be written to.
        let elsewhere = Utf8PathBuf::from_path_buf(std::env::temp_dir())
            .ok()
            .map(|folder| {
                let unique = format!("osmosis-view-{}-{}", std::process::id(), searches.len());
                folder.join(unique)
            });
        let mut folders = vec![path.clone()];
        if let Some(folder) = elsewhere
            && rustix::fs::access(path.as_std_path(), rustix::fs::Access::WRITE_OK).is_err()
            && std::fs::create_dir(&folder).is_ok()
        {
            folders.push(folder);
        }
        let search = TranscriptSearch::open(
            Arc::clone(&run.read.store),
            Arc::clone(&run.calls),
            &folders,
        )?;
        let search = Arc::new(search);
        searches.insert(path, Arc::clone(&search));
        Ok(search)
    }
}
