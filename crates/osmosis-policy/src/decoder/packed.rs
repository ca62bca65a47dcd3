//! Weights as the kernel reads them.

use std::ops::Range;

use osmosis_core::learner::Numbers;
use pulp::Arch;
use rayon::prelude::*;

use super::kernel::{PANEL, PanelProduct, Start};
use super::matrix::Matrix;
use crate::{Architecture, ModelConfig, PolicyError, Weights, weights};

/// A linear layer, its columns in panels.
#[derive(Debug)]
pub(crate) struct Linear {
    inner: usize,
    outputs: usize,
    /// `[panel, inner, PANEL]`; the last panel is filled up with zeros.
    panels: Vec<f32>,
    /// Empty without a bias, else filled up like the panels.
    bias: Vec<f32>,
}

impl Linear {
    /// Several `[outputs, inner]` matrices become one layer whose outputs follow each other.
    fn pack(inner: usize, parts: &[&[f32]], biases: &[&[f32]]) -> Self {
        let outputs = parts.iter().map(|part| part.len()).sum::<usize>() / inner;
        let columns: Vec<&[f32]> = parts
            .iter()
            .flat_map(|part| part.chunks_exact(inner))
            .collect();
        let mut panels = vec![0.0; outputs.div_ceil(PANEL) * inner * PANEL];
        panels
            .par_chunks_exact_mut(inner * PANEL)
            .zip(columns.par_chunks(PANEL))
            .for_each(|(panel, columns)| {
                for (lane, column) in columns.iter().enumerate() {
                    for (place, weight) in panel[lane..].iter_mut().step_by(PANEL).zip(*column) {
                        *place = *weight;
                    }
                }
            });
        let mut bias = biases.concat();
        if !bias.is_empty() {
            bias.resize(outputs.next_multiple_of(PANEL), 0.0);
        }
        Self {
            inner,
            outputs,
            panels,
            bias,
        }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    fn panel_count(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// `out = x · w + bias`. Split over rows when there are many, else over outputs.
    pub(crate) fn apply(&self, arch: Arch, threads: usize, x: &Matrix, out: &mut Matrix) {
        const ROWS_PER_PIECE: usize = 16;
        let rows = x.rows();
        out.reshape(rows, self.outputs);
        let stride = out.stride();
        if threads == 1 {
            self.product(
                arch,
                x,
                0..rows,
                0..self.panel_count(),
                out.values_mut(),
                stride,
            );
        } else if rows >= ROWS_PER_PIECE * threads {
            let piece = rows.div_ceil(threads);
            out.values_mut()
                .par_chunks_mut(piece * stride)
                .enumerate()
                .for_each(|(index, out)| {
                    let first = index * piece;
                    self.product(
                        arch,
                        x,
                        first..(first + piece).min(rows),
                        0..self.panel_count(),
                        out,
                        stride,
                    );
                });
        } else {
            let panels = self.panel_count().div_ceil(threads * 2).max(1);
            let width = panels * PANEL;
            let mut slabs = vec![0.0; self.panel_count().div_ceil(panels) * rows * width];
            slabs
                .par_chunks_mut(rows * width)
                .enumerate()
                .for_each(|(index, slab)| {
                    let first = index * panels;
                    self.product(
                        arch,
                        x,
                        0..rows,
                        first..(first + panels).min(self.panel_count()),
                        slab,
                        width,
                    );
                });
            for (index, slab) in slabs.chunks_exact(rows * width).enumerate() {
                for (row, piece) in slab.chunks_exact(width).enumerate() {
                    let out = &mut out.padded_row_mut(row)[index * width..];
                    let count = out.len().min(width);
                    out[..count].copy_from_slice(&piece[..count]);
                }
            }
        }
    }

    fn product(
        &self,
        arch: Arch,
        x: &Matrix,
        rows: Range<usize>,
        panels: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
    ) {
        let x_rows = &x.values()[rows.start * x.stride()..];
        for (index, panel) in panels.enumerate() {
            let out = &mut out[index * PANEL..];
            let start = if self.bias.is_empty() {
                Start::Zero
            } else {
                let bias = &self.bias[panel * PANEL..][..PANEL];
                for row in 0..rows.len() {
                    out[row * out_stride..][..PANEL].copy_from_slice(bias);
                }
                Start::Out
            };
            let size = self.inner * PANEL;
            PanelProduct {
                x: x_rows,
                x_stride: x.stride(),
                rows: rows.len(),
                panel: &self.panels[panel * size..][..size],
                out,
                out_stride,
                start,
            }
            .run(arch);
        }
    }
}

/// Norms of single heads.
#[derive(Debug)]
pub(crate) struct HeadNorms {
    pub(crate) queries: Numbers,
    pub(crate) keys: Numbers,
}

/// One block of the decoder.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Numbers,
    /// Queries, keys, values, one after the other.
    pub(crate) qkv: Linear,
    /// Qwen3's norms of queries and keys.
    pub(crate) head_norms: Option<HeadNorms>,
    pub(crate) out: Linear,
    pub(crate) mlp_norm: Numbers,
    /// Gate and up, one after the other.
    pub(crate) gate_up: Linear,
    pub(crate) down: Linear,
}

/// All weights, ready to run.
#[derive(Debug)]
pub(crate) struct PackedWeights {
    pub(crate) embeddings: Numbers,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Numbers,
    pub(crate) head: Linear,
}

impl PackedWeights {
    pub(crate) fn pack(config: &ModelConfig, weights: &Weights) -> Result<Self, PolicyError> {
        let values = |name: &str| weights::get(weights, name).map(|tensor| &tensor.values);
        let (width, mlp) = (config.width, config.mlp_width);
        let layer = |layer: usize| -> Result<Layer, PolicyError> {
            let values = |name: &str| values(&format!("model.layers.{layer}.{name}"));
            let biases: Vec<&[f32]> = match config.architecture {
                Architecture::Llama | Architecture::Qwen3 => Vec::new(),
                Architecture::Qwen2 => vec![
                    values("self_attn.q_proj.bias")?,
                    values("self_attn.k_proj.bias")?,
                    values("self_attn.v_proj.bias")?,
                ],
            };
            let head_norms = match config.architecture {
                Architecture::Llama | Architecture::Qwen2 => None,
                Architecture::Qwen3 => Some(HeadNorms {
                    queries: values("self_attn.q_norm.weight")?.clone(),
                    keys: values("self_attn.k_norm.weight")?.clone(),
                }),
            };
            Ok(Layer {
                attention_norm: values("input_layernorm.weight")?.clone(),
                qkv: Linear::pack(
                    width,
                    &[
                        values("self_attn.q_proj.weight")?,
                        values("self_attn.k_proj.weight")?,
                        values("self_attn.v_proj.weight")?,
                    ],
                    &biases,
                ),
                head_norms,
                out: Linear::pack(
                    config.heads * config.head_width,
                    &[values("self_attn.o_proj.weight")?],
                    &[],
                ),
                mlp_norm: values("post_attention_layernorm.weight")?.clone(),
                gate_up: Linear::pack(
                    width,
                    &[
                        values("mlp.gate_proj.weight")?,
                        values("mlp.up_proj.weight")?,
                    ],
                    &[],
                ),
                down: Linear::pack(mlp, &[values("mlp.down_proj.weight")?], &[]),
            })
        };
        let embeddings = values("model.embed_tokens.weight")?.clone();
        let head = if config.tied_embeddings {
            &embeddings
        } else {
            values("lm_head.weight")?
        };
        Ok(Self {
            head: Linear::pack(width, &[head], &[]),
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            norm: values("model.norm.weight")?.clone(),
            embeddings,
        })
    }
}
