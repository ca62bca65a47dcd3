//! Each operation alone: its gradient against differences, and its result against the plain formula.

use std::ops::Range;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    Add, AddBias, Attention, Linear, RmsNorm, Rope, RopeTable, Select, SwiGlu, TokenLogprob,
};
use crate::learner::matrix::Matrix;
use crate::learner::pieces::Segment;
use crate::learner::tape::Operation;
use crate::{Architecture, ModelConfig, RopeScaling};

const STEP: f64 = 1e-5;

fn numbers(rows: usize, width: usize, random: &mut ChaCha8Rng) -> Matrix<f64> {
    Matrix::new(
        (0..rows * width)
            .map(|_| random.random_range(-1.0..1.0))
            .collect(),
        width,
    )
}

/// The derivative by each input along a random direction, by the backward pass and by differences.
fn check<const N: usize>(operation: &impl Operation<f64, N>, shapes: [(usize, usize); N]) {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let inputs = shapes.map(|(rows, width)| numbers(rows, width, &mut random));
    let result = operation.forward(inputs.each_ref()).unwrap();
    let outer = numbers(result.rows(), result.width(), &mut random);
    let gradients = operation
        .backward(inputs.each_ref(), outer.clone())
        .unwrap();
    for index in 0..N {
        let direction = numbers(shapes[index].0, shapes[index].1, &mut random);
        let moved = |distance: f64| {
            let mut inputs = inputs.clone();
            for (value, direction) in inputs[index]
                .values_mut()
                .unwrap()
                .iter_mut()
                .zip(direction.values().unwrap())
            {
                *value += distance * direction;
            }
            dot(&operation.forward(inputs.each_ref()).unwrap(), &outer)
        };
        let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
        let slope = dot(&gradients[index], &direction);
        let error = (slope - difference).abs() / difference.abs();
        assert!(
            error < 1e-6,
            "input {index}: {slope} by the backward pass, {difference} by differences"
        );
    }
}

fn dot(a: &Matrix<f64>, b: &Matrix<f64>) -> f64 {
    assert_eq!((a.rows(), a.width()), (b.rows(), b.width()));
    a.values()
        .unwrap()
        .iter()
        .zip(b.values().unwrap())
        .map(|(a, b)| a * b)
        .sum()
}

fn segment(tokens: Range<usize>, before: &[(usize, usize)]) -> Segment {
    Segment {
        tokens,
        before: before.iter().map(|(start, end)| *start..*end).collect(),
    }
}

/// A sequence alone, and two that begin alike, the second of which goes on in two ways.
fn segments() -> Arc<[Segment]> {
    Arc::new([
        segment(0..75, &[]),
        segment(75..102, &[]),
        segment(102..111, &[(75, 102)]),
        segment(111..121, &[(75, 102)]),
        segment(121..122, &[(75, 102), (111, 121)]),
        segment(122..150, &[(75, 102), (111, 121)]),
    ])
}

/// Wide enough for every width of vector that the kernel has.
fn wide() -> Attention {
    Attention {
        segments: segments(),
        heads: 6,
        kv_heads: 2,
        head_width: 58,
    }
}

#[test]
fn gradients_of_attention_match_differences() {
    check(&wide(), [(150, 6 * 58), (150, 2 * 58), (150, 2 * 58)]);
    let small = Attention {
        segments: Arc::new([segment(0..1, &[])]),
        heads: 1,
        kv_heads: 1,
        head_width: 2,
    };
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let value = numbers(1, 2, &mut random);
    let result = small.forward([&value, &value, &value]).unwrap();
    assert_eq!(
        result.values().unwrap(),
        value.values().unwrap(),
        "one position sees only itself"
    );
}

#[test]
fn attention_is_the_softmax_of_products_over_earlier_positions() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let q = numbers(150, 6 * 58, &mut random);
    let k = numbers(150, 2 * 58, &mut random);
    let v = numbers(150, 2 * 58, &mut random);
    let result = wide().forward([&q, &k, &v]).unwrap();
    let (q, k, v) = (
        q.values().unwrap(),
        k.values().unwrap(),
        v.values().unwrap(),
    );
    for (row, head) in [
        (0, 0),
        (74, 3),
        (75, 2),
        (149, 5),
        (110, 4),
        (121, 1),
        (122, 0),
    ] {
        let kv_head = head / 3;
        let query = &q[row * 6 * 58 + head * 58..][..58];
        let segments = segments();
        let segment = segments
            .iter()
            .find(|segment| segment.tokens.contains(&row));
        let segment = segment.unwrap();
        let before = segment.before.iter().cloned().flatten();
        let seen = before.chain(segment.tokens.start..=row);
        let scores = seen.clone().map(|at| {
            let key = &k[at * 2 * 58 + kv_head * 58..][..58];
            let score: f64 = query.iter().zip(key).map(|(q, k)| q * k).sum();
            (score / 58.0_f64.sqrt()).exp()
        });
        let scores = scores.collect::<Vec<_>>();
        let total: f64 = scores.iter().sum();
        for lane in [0, 31, 57] {
            let expected: f64 = seen
                .clone()
                .zip(&scores)
                .map(|(at, score)| score / total * v[at * 2 * 58 + kv_head * 58 + lane])
                .sum();
            let found = result.values().unwrap()[row * 6 * 58 + head * 58 + lane];
            assert!(
                (found - expected).abs() < 1e-12,
                "row {row} head {head}: {found}, not {expected}"
            );
        }
    }
}

#[test]
fn gradients_of_logprobs_and_entropies_match_differences() {
    let score = TokenLogprob {
        targets: vec![0, 18, 7],
        temperatures: vec![1.0, 0.3, 2.0],
        allowed: vec![],
    };
    check(&score, [(3, 19)]);
}

#[test]
fn logprobs_and_entropies_are_those_of_the_distribution_at_the_temperature() {
    let logits = Matrix::new(vec![1.0_f64, 3.0, -0.5], 3);
    let score = TokenLogprob {
        targets: vec![1],
        temperatures: vec![2.0],
        allowed: vec![],
    };
    let found = score.forward([&logits]).unwrap();
    let masses = [0.5_f64, 1.5, -0.25].map(f64::exp);
    let total: f64 = masses.iter().sum();
    let entropy: f64 = masses
        .iter()
        .map(|mass| -(mass / total) * (mass / total).ln())
        .sum();
    let expected = [(masses[1] / total).ln(), entropy];
    for (found, expected) in found.values().unwrap().iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
    }
}

#[test]
fn gradients_among_allowed_tokens_match_differences() {
    let score = TokenLogprob {
        targets: vec![0, 18, 7, 4],
        temperatures: vec![1.0, 0.3, 2.0, 0.7],
        allowed: vec![(1, vec![3, 11, 18]), (3, (0..19).collect())],
    };
    check(&score, [(4, 19)]);
}

#[test]
fn logprobs_among_allowed_tokens_leave_out_the_others_and_a_forced_token_teaches_nothing() {
    let logits = Matrix::new(vec![9.0_f64, 3.0, -0.5, 1.0, 0.25, 0.1, 0.7, -2.0], 4);
    let score = TokenLogprob {
        targets: vec![1, 2],
        temperatures: vec![2.0, 0.3],
        allowed: vec![(0, vec![1, 2]), (1, vec![2])],
    };
    let found = score.forward([&logits]).unwrap();
    let (one, other) = (1.5_f64.exp(), (-0.25_f64).exp());
    let expected = (one / (one + other)).ln();
    let found = found.values().unwrap();
    assert!((found[0] - expected).abs() < 1e-12);
    assert_eq!((found[1], found[3]), (0.0, 0.0));
    let outer = Matrix::new(vec![1.0, -3.0, 0.5, 2.0], 2);
    let [gradient] = score.backward([&logits], outer).unwrap();
    let gradient = gradient.values().unwrap();
    assert_eq!((gradient[0], gradient[3]), (0.0, 0.0));
    assert!(gradient[1] != 0.0 && gradient[2] != 0.0);
    assert_eq!(gradient[4..], [0.0; 4]);
}

#[test]
fn gradients_of_the_small_operations_match_differences() {
    check(&RmsNorm { epsilon: 1e-3 }, [(5, 22), (1, 11)]);
    check(&SwiGlu, [(3, 10), (3, 10)]);
    check(&Linear, [(4, 6), (3, 6)]);
    check(&AddBias, [(4, 6), (1, 6)]);
    check(&Add, [(4, 6), (4, 6)]);
    check(&Select(vec![2, 0, 2, 4]), [(5, 3)]);
}

#[test]
fn gradients_of_rope_match_differences() {
    let config = ModelConfig {
        architecture: Architecture::Llama,
        vocabulary: 1,
        width: 12,
        layers: 1,
        heads: 2,
        kv_heads: 2,
        head_width: 6,
        mlp_width: 1,
        context: 8,
        norm_epsilon: 1e-5,
        rope_theta: 50.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: true,
        source: serde_json::Value::Null,
    };
    check(
        &Rope {
            table: RopeTable::new(&config, 4).into(),
            segments: Arc::new([
                segment(0..4, &[]),
                segment(4..6, &[(0, 2)]),
                segment(6..8, &[]),
            ]),
        },
        [(8, 12)],
    );
}
