//! Our logits against those that `transformers` gave (`fixtures/record_logits.py`).

use camino::Utf8PathBuf;
use osmosis_policy::{Decoder, EmbeddedModel};
use serde::Deserialize;

pub(crate) const MODELS: [&str; 5] = [
    "llama",
    "llama_llama3_untied",
    "llama_linear",
    "qwen2",
    "qwen3",
];

pub(crate) fn folder(name: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures")).join(name)
}

#[derive(Deserialize)]
pub(crate) struct Recorded {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<usize>,
    pub(crate) logits: Vec<Vec<f32>>,
}

pub(crate) fn recorded(name: &str) -> Recorded {
    let text = std::fs::read_to_string(folder(name).join("logits.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn logits_agree_with_transformers_to_one_in_ten_thousand() {
    for name in MODELS {
        let model = EmbeddedModel::open(&folder(name)).unwrap();
        let decoder = Decoder::new(&model.config, &model.weights, 1).unwrap();
        let Recorded {
            ids,
            positions,
            logits,
        } = recorded(name);
        let ours = decoder.logits(&ids).unwrap();
        assert_eq!(ours.len(), ids.len());
        let mut worst = 0.0_f32;
        for (position, expected) in positions.into_iter().zip(logits) {
            for (ours, expected) in ours[position].iter().zip(&expected) {
                worst = worst.max((ours - expected).abs());
            }
        }
        assert!(worst < 1e-4, "{name}: {worst}");
        println!("{name}: {worst:e}");
    }
}

#[test]
fn logits_are_the_same_bits_on_one_thread_and_on_two() {
    for name in MODELS {
        let model = EmbeddedModel::open(&folder(name)).unwrap();
        let ids = recorded(name).ids;
        let logits = |threads| {
            Decoder::new(&model.config, &model.weights, threads)
                .unwrap()
                .logits(&ids)
                .unwrap()
        };
        let (one, two) = (logits(1), logits(2));
        let bits = |logits: Vec<Vec<f32>>| {
            logits
                .concat()
                .iter()
                .map(|x| x.to_bits())
                .collect::<Vec<_>>()
        };
        assert!(bits(one) == bits(two), "{name}");
    }
}
