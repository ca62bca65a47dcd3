//! Keys and values of the tokens a sequence has so far, in pages that sequences may share.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::kernel::PANEL;
use crate::ModelConfig;

/// Positions in a page: keys of one page are one panel of the kernel.
pub(crate) const PAGE: usize = PANEL;

/// Makes pages and knows how many there are.
#[derive(Debug)]
pub(crate) struct PagePool {
    layers: usize,
    kv_heads: usize,
    head_width: usize,
    live: AtomicUsize,
}

impl PagePool {
    pub(crate) fn new(config: &ModelConfig) -> Arc<Self> {
        Arc::new(Self {
            layers: config.layers,
            kv_heads: config.kv_heads,
            head_width: config.head_width,
            live: AtomicUsize::new(0),
        })
    }

    /// Pages that are in memory.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_numbers() * size_of::<f32>()
    }

    fn page_numbers(&self) -> usize {
        self.layers * self.kv_heads * (self.key_numbers() + self.value_numbers())
    }

    /// Keys of one head in one layer: `[head_width, PAGE]`.
    fn key_numbers(&self) -> usize {
        self.head_width * PAGE
    }

    /// Values of one head in one layer: `[panels of the head width, PAGE, PANEL]`.
    fn value_numbers(&self) -> usize {
        self.head_width.next_multiple_of(PANEL) * PAGE
    }

    /// Where a layer's keys begin, then its values: all heads of each side by side, as they are read.
    fn layer(&self, layer: usize) -> (usize, usize) {
        let keys = layer * self.kv_heads * (self.key_numbers() + self.value_numbers());
        (keys, keys + self.kv_heads * self.key_numbers())
    }

    fn keys(&self, layer: usize, kv_head: usize) -> Range<usize> {
        let first = self.layer(layer).0 + kv_head * self.key_numbers();
        first..first + self.key_numbers()
    }

    fn values(&self, layer: usize, kv_head: usize) -> Range<usize> {
        let first = self.layer(layer).1 + kv_head * self.value_numbers();
        first..first + self.value_numbers()
    }

    fn page(self: &Arc<Self>) -> Arc<Page> {
        self.live.fetch_add(1, Ordering::Relaxed);
        Arc::new(Page {
            values: vec![0.0; self.page_numbers()].into_boxed_slice(),
            pool: Arc::clone(self),
        })
    }
}

#[derive(Debug)]
struct Page {
    values: Box<[f32]>,
    pool: Arc<PagePool>,
}

impl Clone for Page {
    fn clone(&self) -> Self {
        self.pool.live.fetch_add(1, Ordering::Relaxed);
        Self {
            values: self.values.clone(),
            pool: Arc::clone(&self.pool),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.pool.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a sequence remembers. A clone shares the pages; who writes into a shared page gets a copy of it.
#[derive(Debug, Clone)]
pub(crate) struct KvCache {
    pool: Arc<PagePool>,
    pages: Vec<Arc<Page>>,
    /// Tokens whose keys and values are in all layers.
    filled: usize,
}

impl KvCache {
    pub(crate) fn new(pool: &Arc<PagePool>) -> Self {
        Self {
            pool: Arc::clone(pool),
            pages: Vec::new(),
            filled: 0,
        }
    }

    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// The first `count` tokens, which must be there.
    pub(crate) fn prefix(&self, count: usize) -> Self {
        let count = count.min(self.filled);
        Self {
            pool: Arc::clone(&self.pool),
            pages: self.pages[..count.div_ceil(PAGE)].to_vec(),
            filled: count,
        }
    }

    /// Pages that `count` more tokens need, counting a shared page that must be copied.
    pub(crate) fn new_pages(&self, count: usize) -> usize {
        let shared = count > 0
            && !self.filled.is_multiple_of(PAGE)
            && self
                .pages
                .last()
                .is_some_and(|page| Arc::strong_count(page) > 1);
        (self.filled + count)
            .div_ceil(PAGE)
            .saturating_sub(self.pages.len())
            + usize::from(shared)
    }

    /// Makes room for `count` more tokens.
    pub(super) fn make_room(&mut self, count: usize) {
        while self.pages.len() * PAGE < self.filled + count {
            self.pages.push(self.pool.page());
        }
    }

    /// `count` more tokens are in all layers.
    pub(super) fn advance(&mut self, count: usize) {
        self.filled += count;
    }

    pub(super) fn write(
        &mut self,
        layer: usize,
        kv_head: usize,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let pool = &self.pool;
        let page = Arc::make_mut(&mut self.pages[position / PAGE]);
        let place = position % PAGE;
        let keys = &mut page.values[pool.keys(layer, kv_head)];
        for (slot, key) in keys[place..].iter_mut().step_by(PAGE).zip(key) {
            *slot = *key;
        }
        let values = &mut page.values[pool.values(layer, kv_head)];
        for (panel, value) in values
            .chunks_exact_mut(PAGE * PANEL)
            .zip(value.chunks(PANEL))
        {
            panel[place * PANEL..][..value.len()].copy_from_slice(value);
        }
    }

    /// `[head_width, PAGE]`
    pub(super) fn keys(&self, layer: usize, kv_head: usize, page: usize) -> &[f32] {
        &self.pages[page].values[self.pool.keys(layer, kv_head)]
    }

    /// `[panels of the head width, PAGE, PANEL]`
    pub(super) fn values(&self, layer: usize, kv_head: usize, page: usize) -> &[f32] {
        &self.pages[page].values[self.pool.values(layer, kv_head)]
    }
}
