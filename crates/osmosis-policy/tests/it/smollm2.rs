//! A real model as others published it: SmolLM2-135M-Instruct in GGUF.

use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_policy::{Architecture, EmbeddedModel, Sampler, SamplerOptions};
use osmosis_testkit::published_models::smollm2_gguf;
use serde_json::{Map, json};

struct Ids {
    ids: Vec<u32>,
    done: Sender<(Vec<u32>, Result<StopReason, GenerationError>)>,
}

impl TokenSink for Ids {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        self.ids.push(token.id);
        ControlFlow::Continue(())
    }
    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
        self.done.send((self.ids, end)).unwrap();
    }
}

#[test]
fn smollm2_knows_the_capital_of_france() {
    let model = EmbeddedModel::open(&smollm2_gguf()).unwrap();
    assert_eq!(model.config.architecture, Architecture::Llama);
    assert_eq!(model.config.parameters(), 134_515_008);
    assert_eq!(
        (
            model.config.layers,
            model.config.heads,
            model.config.kv_heads
        ),
        (30, 9, 3)
    );
    assert!(model.config.tied_embeddings);
    let options = SamplerOptions {
        max_batch: 4,
        threads: 0,
        cache_bytes: 1 << 30,
    };
    let sampler = Sampler::start(&model, PolicyVersion(0), options).unwrap();
    let question = [json!({"role": "user", "content": "What is the capital of France?"})];
    let texts = [
        "The capital of France is".to_owned(),
        model
            .chat
            .render(&question, None, true, &Map::new())
            .unwrap(),
    ];
    for text in texts {
        let (done, ended) = channel();
        let request = GenerationRequest {
            prompt: model.chat.encode(&text).unwrap(),
            max_tokens: 30,
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            stop_ids: model.chat.end_of_turn().to_vec(),
            alternatives: 0,
            key: DrawKey([0; 32]),
            constraint: None,
        };
        sampler.generate(
            request,
            Box::new(Ids {
                ids: Vec::new(),
                done,
            }),
        );
        let (ids, end) = ended.recv().unwrap();
        end.unwrap();
        let answer = model.chat.decode(&ids, true).unwrap();
        println!("{answer}");
        assert!(answer.contains("Paris"), "{answer}");
    }
}
