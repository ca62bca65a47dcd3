//! Tests that a token's numbers depend on its own sequence alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use osmosis_core::config::{Lora, LoraBase, LoraModule};
use proptest::prelude::*;
use serde_json::json;

use super::adapters::pack;
use super::batch::Batch;
use super::cache::{KvCache, PagePool};
use super::forward::{Forward, Logits, Span};
use super::packed::{PackedBase, PackedWeights};
use super::pool;
use crate::{ModelConfig, NamedTensor, Weights, lora};

struct Model {
    config: ModelConfig,
    weights: PackedWeights,
}

fn model(model_type: &str) -> Model {
    let config = ModelConfig::parse(json!({
        "model_type": model_type, "vocab_size": 70, "hidden_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 50,
        "max_position_embeddings": 200, "tie_word_embeddings": true,
    }))
    .unwrap();
    let mut state = 1_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / 8_388_608.0 - 1.0) * 0.5
    };
    let tensors: BTreeMap<String, NamedTensor> = config
        .tensors()
        .into_iter()
        .map(|(name, shape)| {
            let values = (0..shape.iter().product()).map(|_| noise()).collect();
            (name, NamedTensor { shape, values })
        })
        .collect();
    let weights = PackedWeights::pack(&config, &Weights { tensors }).unwrap();
    Model { config, weights }
}

/// The same with adapters beside weights of this type.
fn adapted(model_type: &str, base: LoraBase) -> Model {
    let Model { config, .. } = model(model_type);
    let mut state = 9_u32;
    let mut noise = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / 8_388_608.0 - 1.0) * 0.5
    };
    let mut random = |shapes: Vec<(String, Vec<usize>)>| Weights {
        tensors: shapes
            .into_iter()
            .map(|(name, shape)| {
                let values = (0..shape.iter().product()).map(&mut noise).collect();
                (name, NamedTensor { shape, values })
            })
            .collect(),
    };
    let weights = random(config.tensors());
    let lora = Lora {
        rank: 5,
        base,
        // Of the products of q, k and v one has no adapter.
        target_modules: LoraModule::ALL[1..].to_vec(),
        ..Lora::default()
    };
    let adapters = random(lora::tensors(&config, &lora).into_iter().collect());
    let base = Arc::new(PackedBase::pack_alone(&config, weights, base).unwrap());
    let adapters = pack(&base, &lora, &adapters).unwrap();
    let weights = PackedWeights { base, adapters };
    Model { config, weights }
}

/// Logits of every token, run one token at a time, alone, on one thread.
fn alone(model: &Model, ids: &[u32]) -> Vec<Vec<u32>> {
    let mut cache = KvCache::new(&PagePool::new(&model.config));
    let mut forward = Forward::new(&model.config, 1);
    ids.chunks(1)
        .map(|ids| {
            let mut spans = [Span {
                ids,
                cache: &mut cache,
                logits: Logits::Last,
            }];
            bits(forward.run(&model.weights, &mut spans).row(0))
        })
        .collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Logits of every token of every sequence, in steps that each take some tokens of some sequences.
fn together(
    model: &Model,
    sequences: &[Vec<u32>],
    pieces: &[usize],
    threads: usize,
) -> Vec<Vec<Vec<u32>>> {
    let pages = PagePool::new(&model.config);
    let mut caches: Vec<KvCache> = sequences.iter().map(|_| KvCache::new(&pages)).collect();
    let mut all = vec![Vec::new(); sequences.len()];
    let mut batch = Batch::new(&model.config, threads);
    let mut pieces = pieces.iter().copied().cycle();
    pool(threads).unwrap().install(|| {
        while caches
            .iter()
            .zip(sequences)
            .any(|(cache, ids)| cache.filled() < ids.len())
        {
            let mut spans = Vec::new();
            let mut owners = Vec::new();
            for (owner, (cache, ids)) in caches.iter_mut().zip(sequences).enumerate() {
                let filled = cache.filled();
                let count = pieces.next().unwrap_or(1).min(ids.len() - filled);
                if count > 0 {
                    owners.extend(vec![owner; count]);
                    spans.push(Span {
                        ids: &ids[filled..filled + count],
                        cache,
                        logits: Logits::All,
                    });
                }
            }
            let logits = batch.run(&model.weights, &mut spans);
            for (logits, owner) in logits.into_iter().zip(owners) {
                all[owner].push(bits(logits));
            }
        }
    });
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn logits_are_the_same_bits_whatever_the_batch_the_pieces_and_the_threads(
        sequences in prop::collection::vec(prop::collection::vec(0_u32..70, 1..110), 1..24),
        pieces in prop_oneof![
            prop::collection::vec(1_usize..60, 1..12),
            prop::collection::vec(1_usize..4, 1..4),
        ],
        threads in 1_usize..4,
        model_type in prop::sample::select(vec!["llama", "qwen2", "qwen3"]),
    ) {
        let model = model(model_type);
        let expected: Vec<_> = sequences.iter().map(|ids| alone(&model, ids)).collect();
        prop_assert!(together(&model, &sequences, &pieces, threads) == expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn logits_with_adapters_are_the_same_bits_whatever_the_batch_the_pieces_and_the_threads(
        sequences in prop::collection::vec(prop::collection::vec(0_u32..70, 1..60), 1..24),
        pieces in prop::collection::vec(1_usize..30, 1..12),
        threads in 1_usize..4,
        model_type in prop::sample::select(vec!["llama", "qwen2", "qwen3"]),
        base in prop::sample::select(LoraBase::ALL.to_vec()),
    ) {
        let model = adapted(model_type, base);
        let expected: Vec<_> = sequences.iter().map(|ids| alone(&model, ids)).collect();
        prop_assert!(together(&model, &sequences, &pieces, threads) == expected);
    }
}

#[test]
fn a_shared_prefix_gives_the_same_bits_and_is_not_changed_by_who_goes_on() {
    let model = model("llama");
    let ids: Vec<u32> = (0..90).map(|i| (i * 7 + 3) % 70).collect();
    let expected = alone(&model, &ids);
    let pages = PagePool::new(&model.config);
    let mut forward = Forward::new(&model.config, 1);
    let mut first = KvCache::new(&pages);
    let mut run = |cache: &mut KvCache, ids: &[u32]| {
        let mut spans = [Span {
            ids,
            cache,
            logits: Logits::Last,
        }];
        bits(forward.run(&model.weights, &mut spans).row(0))
    };
    run(&mut first, &ids[..60]);
    let mut second = first.prefix(50);
    let other: Vec<u32> = ids[50..80].iter().map(|id| (id + 1) % 70).collect();
    run(&mut second, &other);
    assert_eq!(run(&mut first, &ids[60..]), expected[89]);
    // Three pages each, the first in common.
    assert_eq!(pages.live(), 5);
    drop((first, second));
    assert_eq!(pages.live(), 0);
}
