//! One pass through the decoder, over tokens of any number of sequences at once.

use pulp::Arch;
use rayon::prelude::*;

use super::adapters::LayerAdapters;
use super::attention::{Attention, ROWS_PER_TASK};
use super::cache::KvCache;
use super::elementwise::{add, gated, rms_norm, rms_norm_in_place, rotate};
use super::matrix::Matrix;
use super::packed::{Layer, PackedWeights};
use crate::ModelConfig;

/// Consecutive tokens of one sequence: a piece of a prompt, or the token sampled last.
#[derive(Debug)]
pub(crate) struct Span<'a> {
    pub(crate) ids: &'a [u32],
    /// What came before; the tokens are added to it.
    pub(crate) cache: &'a mut KvCache,
    pub(crate) logits: Logits,
}

/// Which tokens of a span want their logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logits {
    None,
    Last,
    All,
}

/// Runs passes; keeps the memory between them.
#[derive(Debug)]
pub(crate) struct Forward {
    config: ModelConfig,
    arch: Arch,
    threads: usize,
    /// Cosines and sines of as many positions as were needed so far.
    cos: Vec<f32>,
    sin: Vec<f32>,
    residual: Matrix,
    normed: Matrix,
    wide: Matrix,
    mixed: Matrix,
    product: Matrix,
    /// Between the two products of an adapter.
    low: Matrix,
    logits: Matrix,
}

/// Below this many numbers, starting another thread takes longer than the work.
const WORTH_SPLITTING: usize = 64 * 1024;

impl Forward {
    /// `threads` is that of the pool in which [`run`](Self::run) will be called.
    pub(crate) fn new(config: &ModelConfig, threads: usize) -> Self {
        Self {
            config: config.clone(),
            arch: Arch::new(),
            threads,
            cos: Vec::new(),
            sin: Vec::new(),
            residual: Matrix::default(),
            normed: Matrix::default(),
            wide: Matrix::default(),
            mixed: Matrix::default(),
            product: Matrix::default(),
            low: Matrix::default(),
            logits: Matrix::default(),
        }
    }

    /// Runs the tokens and returns the logits that were asked for, one row each, in order.
    pub(crate) fn run(&mut self, weights: &PackedWeights, spans: &mut [Span<'_>]) -> &Matrix {
        let width = self.config.width;
        let rows = spans.iter().map(|span| span.ids.len()).sum();
        let positions = spans
            .iter()
            .map(|span| span.cache.filled() + span.ids.len())
            .max()
            .unwrap_or(0);
        self.know_positions(positions);
        self.residual.reshape(rows, width);
        let ids = spans.iter().flat_map(|span| span.ids);
        for (row, id) in ids.enumerate() {
            weights.base.embed(*id, self.residual.row_mut(row));
        }
        for span in spans.iter_mut() {
            span.cache.make_room(span.ids.len());
        }
        for (index, layer) in weights.base.layers.iter().enumerate() {
            let adapters = weights.adapters.get(index);
            self.attention(index, layer, adapters, spans);
            self.mlp(layer, adapters);
        }
        for span in spans.iter_mut() {
            span.cache.advance(span.ids.len());
        }
        self.head(weights, spans)
    }

    fn know_positions(&mut self, positions: usize) {
        let pairs = self.config.head_width / 2;
        if self.cos.len() < positions * pairs {
            let enough = positions
                .next_power_of_two()
                .clamp(positions, self.config.context.max(positions));
            (self.cos, self.sin) = self.config.rotations(enough);
        }
    }

    fn attention(
        &mut self,
        index: usize,
        layer: &Layer,
        adapters: Option<&LayerAdapters>,
        spans: &mut [Span<'_>],
    ) {
        let (arch, threads) = (self.arch, self.threads);
        self.norm(&layer.attention_norm);
        layer.qkv.apply(arch, threads, &self.normed, &mut self.wide);
        if let Some(adapter) = adapters.and_then(|adapters| adapters.qkv.as_ref()) {
            adapter.add(arch, threads, &self.normed, &mut self.low, &mut self.wide);
        }
        self.remember(index, layer, spans);
        self.attend(index, spans);
        layer
            .out
            .apply(arch, threads, &self.mixed, &mut self.product);
        if let Some(adapter) = adapters.and_then(|adapters| adapters.out.as_ref()) {
            adapter.add(arch, threads, &self.mixed, &mut self.low, &mut self.product);
        }
        self.add_product();
    }

    fn mlp(&mut self, layer: &Layer, adapters: Option<&LayerAdapters>) {
        let threads = self.threads;
        self.norm(&layer.mlp_norm);
        layer
            .gate_up
            .apply(self.arch, threads, &self.normed, &mut self.wide);
        if let Some(adapter) = adapters.and_then(|adapters| adapters.gate_up.as_ref()) {
            adapter.add(
                self.arch,
                threads,
                &self.normed,
                &mut self.low,
                &mut self.wide,
            );
        }
        let (arch, wide, mlp_width) = (self.arch, &self.wide, self.config.mlp_width);
        self.mixed.reshape(wide.rows(), mlp_width);
        each_row(self.threads, &mut self.mixed, |row, out| {
            let (gate, up) = wide.row(row).split_at(mlp_width);
            gated(arch, gate, up, &mut out[..mlp_width]);
        });
        layer
            .down
            .apply(arch, threads, &self.mixed, &mut self.product);
        if let Some(adapter) = adapters.and_then(|adapters| adapters.down.as_ref()) {
            adapter.add(arch, threads, &self.mixed, &mut self.low, &mut self.product);
        }
        self.add_product();
    }

    fn norm(&mut self, weight: &[f32]) {
        let (arch, epsilon, residual, width) =
            (self.arch, self.epsilon(), &self.residual, self.config.width);
        self.normed.reshape(residual.rows(), width);
        each_row(self.threads, &mut self.normed, |row, out| {
            rms_norm(arch, residual.row(row), weight, epsilon, &mut out[..width]);
        });
    }

    fn add_product(&mut self) {
        let (product, width) = (&self.product, self.config.width);
        each_row(self.threads, &mut self.residual, |row, out| {
            add(&mut out[..width], product.row(row));
        });
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the decoder computes in f32"
    )]
    fn epsilon(&self) -> f32 {
        self.config.norm_epsilon as f32
    }

    /// Turns queries and keys by their position, and puts keys and values into the caches.
    fn remember(&mut self, index: usize, layer: &Layer, spans: &mut [Span<'_>]) {
        let config = &self.config;
        let (head_width, pairs, epsilon) =
            (config.head_width, config.head_width / 2, self.epsilon());
        let (queries, keys) = (config.heads * head_width, config.kv_heads * head_width);
        let (arch, cos, sin) = (self.arch, &self.cos, &self.sin);
        let stride = self.wide.stride();
        let remember = |(span, rows): (&mut Span<'_>, &mut [f32])| {
            for (offset, row) in rows.chunks_exact_mut(stride).enumerate() {
                let position = span.cache.filled() + offset;
                let (cos, sin) = (
                    &cos[position * pairs..][..pairs],
                    &sin[position * pairs..][..pairs],
                );
                let (q, rest) = row.split_at_mut(queries);
                let (k, v) = rest.split_at_mut(keys);
                if let Some(norms) = &layer.head_norms {
                    for head in q.chunks_exact_mut(head_width) {
                        rms_norm_in_place(arch, head, &norms.queries, epsilon);
                    }
                    for head in k.chunks_exact_mut(head_width) {
                        rms_norm_in_place(arch, head, &norms.keys, epsilon);
                    }
                }
                for head in q
                    .chunks_exact_mut(head_width)
                    .chain(k.chunks_exact_mut(head_width))
                {
                    rotate(head, cos, sin);
                }
                let heads = k
                    .chunks_exact(head_width)
                    .zip(v[..keys].chunks_exact(head_width));
                for (kv_head, (key, value)) in heads.enumerate() {
                    span.cache.write(index, kv_head, position, key, value);
                }
            }
        };
        let small = self.threads == 1 || self.wide.values().len() < WORTH_SPLITTING;
        let mut rest = self.wide.values_mut();
        let mut parts = Vec::with_capacity(spans.len());
        for span in spans {
            let (rows, after) = rest.split_at_mut(span.ids.len() * stride);
            rest = after;
            parts.push((span, rows));
        }
        if small {
            for part in parts {
                remember(part);
            }
        } else {
            parts.into_par_iter().for_each(remember);
        }
    }

    /// Each token looks at those before it.
    fn attend(&mut self, index: usize, spans: &[Span<'_>]) {
        let (arch, wide) = (self.arch, &self.wide);
        let width = self.config.heads * self.config.head_width;
        self.mixed.reshape(wide.rows(), width);
        let stride = self.mixed.stride();
        let mut rest = self.mixed.values_mut();
        let mut tasks = Vec::new();
        let mut row = 0;
        for span in spans {
            for offset in (0..span.ids.len()).step_by(ROWS_PER_TASK) {
                let rows = ROWS_PER_TASK.min(span.ids.len() - offset);
                let (out, after) = rest.split_at_mut(rows * stride);
                rest = after;
                tasks.push(Attention {
                    layer: index,
                    cache: &*span.cache,
                    position: span.cache.filled() + offset,
                    queries: wide,
                    first_row: row,
                    rows,
                    out,
                    out_stride: stride,
                });
                row += rows;
            }
        }
        let config = &self.config;
        if self.threads == 1 || tasks.len() == 1 {
            for task in tasks {
                task.run(arch, config);
            }
        } else {
            tasks
                .into_par_iter()
                .for_each(|task| task.run(arch, config));
        }
    }

    fn head(&mut self, weights: &PackedWeights, spans: &[Span<'_>]) -> &Matrix {
        let mut wanted = Vec::new();
        let mut first = 0;
        for span in spans {
            let end = first + span.ids.len();
            match span.logits {
                Logits::None => {}
                Logits::Last => wanted.push(end - 1),
                Logits::All => wanted.extend(first..end),
            }
            first = end;
        }
        let (epsilon, width) = (self.epsilon(), self.config.width);
        self.normed.reshape(wanted.len(), width);
        for (place, row) in wanted.into_iter().enumerate() {
            let x = self.residual.row(row);
            rms_norm(
                self.arch,
                x,
                &weights.base.norm,
                epsilon,
                self.normed.row_mut(place),
            );
        }
        if self.normed.rows() == 0 {
            self.logits.reshape(0, weights.base.head.outputs());
        } else {
            weights
                .base
                .head
                .apply(self.arch, self.threads, &self.normed, &mut self.logits);
        }
        &self.logits
    }
}

/// Does something to each row, on all threads when there is much to do.
fn each_row(threads: usize, matrix: &mut Matrix, work: impl Fn(usize, &mut [f32]) + Sync) {
    let (rows, stride) = (matrix.rows(), matrix.stride());
    if threads == 1 || rows * stride < WORTH_SPLITTING {
        for (row, out) in matrix.values_mut().chunks_exact_mut(stride).enumerate() {
            work(row, out);
        }
    } else {
        let piece = rows.div_ceil(threads * 2);
        matrix
            .values_mut()
            .par_chunks_mut(stride * piece)
            .enumerate()
            .for_each(|(index, out)| {
                for (offset, out) in out.chunks_exact_mut(stride).enumerate() {
                    work(index * piece + offset, out);
                }
            });
    }
}
