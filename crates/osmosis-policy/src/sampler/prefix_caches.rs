//! Caches of sequences that have ended, for those that begin alike.

use std::collections::VecDeque;

use crate::decoder::KvCache;

/// More than this is not kept: looking through them takes time too.
const MOST: usize = 512;

/// The oldest first.
#[derive(Debug, Default)]
pub(super) struct PrefixCaches {
    entries: VecDeque<CachedPrefix>,
}

#[derive(Debug)]
struct CachedPrefix {
    /// The tokens whose keys and values are in the cache.
    ids: Vec<u32>,
    cache: KvCache,
}

impl PrefixCaches {
    pub(super) fn keep(&mut self, mut ids: Vec<u32>, cache: KvCache) {
        ids.truncate(cache.filled());
        if ids.is_empty() {
            return;
        }
        // What the new one begins with needs no entry of its own, and the other way round.
        self.entries.retain(|kept| !ids.starts_with(&kept.ids));
        if self.entries.iter().any(|kept| kept.ids.starts_with(&ids)) {
            return;
        }
        self.entries.push_back(CachedPrefix { ids, cache });
        if self.entries.len() > MOST {
            self.entries.pop_front();
        }
    }

    /// The entry that has most of `ids`, and how much.
    pub(super) fn best(&self, ids: &[u32]) -> Option<(usize, usize)> {
        let lengths = self
            .entries
            .iter()
            .map(|kept| common_prefix(&kept.ids, ids));
        lengths
            .enumerate()
            .max_by_key(|(_, common)| *common)
            .filter(|(_, common)| *common > 0)
    }

    /// The first `count` tokens of an entry, which is used now and so becomes the youngest.
    pub(super) fn prefix(&mut self, entry: usize, count: usize) -> Option<KvCache> {
        let kept = self.entries.remove(entry)?;
        let prefix = kept.cache.prefix(count);
        self.entries.push_back(kept);
        Some(prefix)
    }

    /// Lets the oldest go; `false` when there is none.
    pub(super) fn drop_oldest(&mut self) -> bool {
        self.entries.pop_front().is_some()
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
