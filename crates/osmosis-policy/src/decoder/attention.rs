//! Attention of a few tokens of one sequence.

use pulp::Arch;

use super::cache::{KvCache, PAGE};
use super::elementwise::softmax;
use super::kernel::{Columns, PANEL, PanelProduct, Start};
use super::matrix::Matrix;
use crate::ModelConfig;

/// Tokens of one sequence that are done together.
pub(super) const ROWS_PER_TASK: usize = 8;

/// Some consecutive tokens of a sequence, whose keys and values are in the cache already.
#[derive(Debug)]
pub(super) struct Attention<'a> {
    pub(super) layer: usize,
    pub(super) cache: &'a KvCache,
    /// Of the first token.
    pub(super) position: usize,
    /// Rows that begin with the queries.
    pub(super) queries: &'a Matrix,
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) out: &'a mut [f32],
    pub(super) out_stride: usize,
}

impl Attention<'_> {
    pub(super) fn run(self, arch: Arch, config: &ModelConfig) {
        let head_width = config.head_width;
        let group = config.heads / config.kv_heads;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the decoder computes in f32"
        )]
        let scale = (1.0 / (head_width as f64).sqrt()) as f32;
        let seen = self.position + self.rows;
        let pages = seen.div_ceil(PAGE);
        // For each head of keys, all query heads that look at it, of all tokens.
        let lines = self.rows * group;
        let (score_stride, mix_stride) = (pages * PAGE, head_width.next_multiple_of(PANEL));
        let queries = self.queries_by_kv_head(config);
        let mut scores = vec![0.0; config.kv_heads * lines * score_stride];
        let mut mix = vec![0.0; config.kv_heads * lines * mix_stride];
        // Pages outside, heads inside: the heads of a page lie side by side in memory.
        for page in 0..pages {
            let by_head = scores
                .chunks_exact_mut(lines * score_stride)
                .zip(queries.chunks_exact(lines * head_width));
            for (kv_head, (scores, queries)) in by_head.enumerate() {
                PanelProduct {
                    x: queries,
                    x_stride: head_width,
                    rows: lines,
                    panel: self.cache.keys(self.layer, kv_head, page),
                    out: &mut scores[page * PAGE..],
                    out_stride: score_stride,
                    start: Start::Zero,
                    columns: Columns::All,
                }
                .run(arch);
            }
        }
        for (line, scores) in scores.chunks_exact_mut(score_stride).enumerate() {
            let row = line % lines / group;
            softmax(arch, scores, self.position + row + 1, scale);
        }
        for page in 0..pages {
            let here = PAGE.min(seen - page * PAGE);
            let by_head = mix
                .chunks_exact_mut(lines * mix_stride)
                .zip(scores.chunks_exact(lines * score_stride));
            for (kv_head, (mix, scores)) in by_head.enumerate() {
                let values = self.cache.values(self.layer, kv_head, page);
                for (part, values) in values.chunks_exact(PAGE * PANEL).enumerate() {
                    PanelProduct {
                        x: &scores[page * PAGE..],
                        x_stride: score_stride,
                        rows: lines,
                        panel: &values[..here * PANEL],
                        out: &mut mix[part * PANEL..],
                        out_stride: mix_stride,
                        start: if page == 0 { Start::Zero } else { Start::Out },
                        columns: Columns::All,
                    }
                    .run(arch);
                }
            }
        }
        for (line, mix) in mix.chunks_exact(mix_stride).enumerate() {
            let (kv_head, line) = (line / lines, line % lines);
            let (row, head) = (line / group, kv_head * group + line % group);
            let out = &mut self.out[row * self.out_stride + head * head_width..][..head_width];
            out.copy_from_slice(&mix[..head_width]);
        }
    }

    /// `[kv_heads, rows, query heads of one kv head, head_width]`
    fn queries_by_kv_head(&self, config: &ModelConfig) -> Vec<f32> {
        let width = config.heads / config.kv_heads * config.head_width;
        let mut queries = Vec::with_capacity(self.rows * config.heads * config.head_width);
        for kv_head in 0..config.kv_heads {
            for row in self.first_row..self.first_row + self.rows {
                queries.extend_from_slice(&self.queries.row(row)[kv_head * width..][..width]);
            }
        }
        queries
    }
}
