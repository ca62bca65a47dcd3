//! Sampling under a grammar, and learning from what was sampled so.

use osmosis_core::generation::{Constraint, GenerationError, GenerationRequest, StopReason};
use osmosis_core::learner::{ConstrainedTokens, LossFunction, TrainableModel};
use osmosis_policy::{DecoderLearner, EmbeddedModel, LearnerOptions, LossRow, Sampler};
use osmosis_tokens::StructuredReply;
use serde_json::{Map, Value, json};

use crate::sampling::{options, request, sample, sample_one, sampler};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "digit": {"type": "integer", "minimum": 0, "maximum": 9},
            "word": {"type": "string", "minLength": 1, "maxLength": 6},
            "kind": {"enum": ["low", "high"]},
        },
        "required": ["digit", "word", "kind"],
        "additionalProperties": false,
    })
}

fn constraint(model: &EmbeddedModel, schema: &Value) -> Constraint {
    let reply = StructuredReply {
        json: Some(schema),
        tools: &[],
        most_calls: 1,
    };
    model.chat.constraint(&reply).unwrap()
}

fn requests(model: &EmbeddedModel, count: u8) -> Vec<GenerationRequest> {
    let constraint = constraint(model, &schema());
    (0..count)
        .map(|number| {
            let question = json!({"role": "user", "content": format!("What about {number}?")});
            let text = model
                .chat
                .render(&[question], None, true, &Map::new())
                .unwrap();
            let mut request = request(model.chat.encode(&text).unwrap(), 200, number);
            request.stop_ids = model.chat.end_of_turn().to_vec();
            request.temperature = [1.0, 0.7, 1.4][usize::from(number) % 3];
            request.constraint = Some(constraint.clone());
            request
        })
        .collect()
}

/// The rows that a trainer makes of what was sampled, without forced tokens.
fn rows(sampler: &Sampler, requests: &[GenerationRequest]) -> Vec<LossRow> {
    let sampled = sample(sampler, requests);
    let each = requests.iter().zip(sampled);
    each.map(|(request, (tokens, end))| {
        assert_eq!(end, Ok(StopReason::Stop));
        let first = request.prompt.len();
        let allowed: Vec<u32> = tokens.iter().map(|token| token.allowed.unwrap()).collect();
        let prompt = vec![0.0; first];
        let with_prompt = |values: Vec<f32>| [prompt.clone(), values].concat();
        let ids = tokens.iter().map(|token| token.id);
        LossRow {
            ids: request.prompt.iter().copied().chain(ids).collect(),
            weights: with_prompt(
                allowed
                    .iter()
                    .map(|count| if *count > 1 { 0.01 } else { 0.0 })
                    .collect(),
            ),
            advantages: with_prompt(vec![1.0; tokens.len()]),
            sampled_logprobs: with_prompt(tokens.iter().map(|token| token.logprob).collect()),
            proximal_logprobs: None,
            reference_logprobs: None,
            temperatures: vec![request.temperature; first + tokens.len()],
            constrained: vec![ConstrainedTokens {
                first,
                constraint: request.constraint.clone().unwrap(),
                allowed,
            }],
        }
    })
    .collect()
}

fn learner(model: &EmbeddedModel) -> DecoderLearner {
    let options = LearnerOptions::for_rewards(1e-5, &model.config);
    DecoderLearner::new(&model.config, &model.weights, options)
        .unwrap()
        .with_chat(&model.chat)
}

#[test]
fn every_reply_is_json_by_the_schema_and_the_same_alone_and_in_a_batch() {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let requests = requests(&model, 24);
    let together = sample(&sampler(&model, options(64, 2)), &requests);
    let alone = sampler(&model, options(1, 1));
    for (request, (tokens, end)) in requests.into_iter().zip(together) {
        assert_eq!(end, Ok(StopReason::Stop));
        let (last, said) = tokens.split_last().unwrap();
        assert_eq!(last.id, model.chat.end_of_turn()[0]);
        let ids: Vec<u32> = said.iter().map(|token| token.id).collect();
        let text = model.chat.decode(&ids, false).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(value["digit"].as_u64().unwrap() <= 9, "{text}");
        assert!(
            ["low", "high"].contains(&value["kind"].as_str().unwrap()),
            "{text}"
        );
        for token in &tokens {
            assert!(
                token.allowed != Some(1) || token.logprob == 0.0,
                "{token:?}"
            );
        }
        assert!(tokens.iter().any(|token| token.allowed == Some(1)));
        assert_eq!(sample_one(&alone, request).0, tokens);
    }
}

#[test]
fn the_learner_finds_the_logprobs_again_among_the_allowed_tokens() {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let rows = rows(&sampler(&model, options(16, 0)), &requests(&model, 16));
    let learner = learner(&model);
    let worst = |rows: &[LossRow]| {
        let mut worst: f32 = 0.0;
        for (row, logprobs) in rows.iter().zip(learner.logprobs(rows).unwrap()) {
            let chosen = row.weights.iter().enumerate().filter(|(_, w)| **w > 0.0);
            for (token, _) in chosen {
                worst = worst.max((row.sampled_logprobs[token] - logprobs[token]).abs());
            }
        }
        worst
    };
    let with = worst(&rows);
    assert!(with < 1e-4, "{with}");
    let mut without = rows;
    for row in &mut without {
        row.constrained.clear();
    }
    let without = worst(&without);
    assert!(
        without > 1.0,
        "the constraint makes a difference: {without}"
    );
}

#[test]
fn an_update_has_ratio_1_and_makes_the_sampled_replies_likelier() {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let rows = rows(&sampler(&model, options(16, 0)), &requests(&model, 16));
    let mut learner = learner(&model);
    let total = |learner: &DecoderLearner| -> f32 {
        learner
            .logprobs(&rows)
            .unwrap()
            .iter()
            .zip(&rows)
            .flat_map(|(logprobs, row)| logprobs.iter().zip(&row.weights))
            .map(|(logprob, weight)| logprob * weight)
            .sum()
    };
    let before = total(&learner);
    let loss = LossFunction::clipped(0.2, 0.2, 0.0);
    let report = learner.update(&rows, loss).unwrap();
    assert!(report.mismatch_max < 1e-4, "{report:?}");
    assert_eq!(report.clip_fraction.to_bits(), 0.0_f64.to_bits());
    let after = total(&learner);
    assert!(after > before, "{before} then {after}");
}

#[test]
fn forced_tokens_teach_nothing() {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let mut request = requests(&model, 1).remove(0);
    request.constraint = Some(constraint(&model, &json!({"enum": ["just this"]})));
    let mut rows = rows(&sampler(&model, options(1, 0)), &[request]);
    let row = &mut rows[0];
    // Trained on all the same, with whatever advantage: the gradient is nothing.
    row.weights.fill(0.0);
    row.advantages.fill(-5.0);
    let tokens = &row.constrained[0];
    for (place, allowed) in (tokens.first..).zip(&tokens.allowed) {
        if *allowed == 1 {
            assert_eq!(row.sampled_logprobs[place].to_bits(), 0.0_f32.to_bits());
            row.weights[place] = 1.0;
        }
    }
    let loss = LossFunction::clipped(0.2, 0.2, 0.0);
    let mut learner = learner(&model);
    let report = learner.update(&rows, loss).unwrap();
    assert_eq!(report.gradient_norm.to_bits(), 0.0_f64.to_bits());
    assert_eq!(learner.weights().unwrap(), *model.weights);
}

#[test]
fn tokens_without_an_alternative_end_where_others_would() {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let sampler = sampler(&model, options(4, 0));
    let mut request = requests(&model, 1).remove(0);
    let text = json!({"enum": ["just this, and nothing else"]});
    request.constraint = Some(constraint(&model, &text));
    request.alternatives = 2;
    let (whole, end) = sample_one(&sampler, request.clone());
    assert_eq!(end, Ok(StopReason::Stop));
    assert!(whole.len() > 8, "{whole:?}");
    for token in &whole {
        assert_eq!(token.allowed, Some(1));
        assert_eq!(token.alternatives, [(token.id, 0.0)]);
    }
    for most in 1..whole.len() {
        request.max_tokens = most;
        let (cut, end) = sample_one(&sampler, request.clone());
        assert_eq!(end, Ok(StopReason::Length));
        assert_eq!(cut, whole[..most]);
    }
    // A request for the same tokens beside others that are free.
    let mut others = requests(&model, 3);
    others[1].constraint = None;
    others[2] = request;
    let last = sample(&sampler, &others).pop().unwrap();
    assert_eq!(
        last,
        (whole[..whole.len() - 1].to_vec(), Ok(StopReason::Length))
    );
}

#[test]
fn rows_whose_allowed_tokens_are_not_found_again_are_refused() {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let rows = rows(&sampler(&model, options(1, 0)), &requests(&model, 1));
    let refused = |change: &dyn Fn(&mut LossRow), learner: DecoderLearner| {
        let mut rows = rows.clone();
        change(&mut rows[0]);
        let error = learner.logprobs(&rows).unwrap_err().to_string();
        let mut learner = learner;
        assert!(learner.update(&rows, LossFunction::Likelihood).is_err());
        error
    };
    let counts = refused(&|row| row.constrained[0].allowed[0] += 1, learner(&model));
    assert!(counts.contains("tokens allowed"), "{counts}");
    let token = refused(
        &|row| {
            let first = row.constrained[0].first;
            row.ids[first] = model.chat.end_of_turn()[0];
        },
        learner(&model),
    );
    assert!(token.contains("does not allow"), "{token}");
    let overlap = refused(
        &|row| row.constrained.push(row.constrained[0].clone()),
        learner(&model),
    );
    assert!(overlap.contains("overlap"), "{overlap}");
    let options = LearnerOptions::for_rewards(1e-3, &model.config);
    let bare = DecoderLearner::new(&model.config, &model.weights, options).unwrap();
    let bare = refused(&|_| {}, bare);
    assert!(bare.contains("no tokenizer"), "{bare}");
    // What training starts from has one.
    assert!(model.learner(1e-3).unwrap().logprobs(&rows).is_ok());
}

#[test]
fn a_constraint_that_cannot_be_followed_ends_the_generation() {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let mut bad = requests(&model, 1).remove(0);
    let good = bad.clone();
    bad.constraint = Some(Constraint {
        grammar: "start: (".into(),
    });
    let (tokens, end) = sample_one(&sampler(&model, options(4, 0)), bad);
    assert!(tokens.is_empty());
    assert!(
        matches!(end, Err(GenerationError::Constraint { .. })),
        "{end:?}"
    );
    let bare = Sampler::start_with(
        &model.config,
        &model.weights,
        osmosis_core::PolicyVersion(0),
        options(4, 0),
    );
    let (_, end) = sample_one(&bare.unwrap(), good);
    assert!(
        matches!(end, Err(GenerationError::Constraint { .. })),
        "{end:?}"
    );
}
