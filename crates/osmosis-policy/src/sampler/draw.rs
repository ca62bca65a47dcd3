//! From logits to a token.

use std::cmp::Ordering;

use osmosis_core::generation::{DrawKey, GenerationError, GenerationRequest};
use pulp::{Arch, Simd, WithSimd};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use crate::decoder::{exp, max};

/// A token and how likely it was.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Drawn {
    pub(super) id: u32,
    pub(super) logprob: f32,
    pub(super) alternatives: Vec<(u32, f32)>,
    /// How many tokens could have been drawn, where a constraint says which.
    pub(super) allowed: Option<u32>,
}

impl Drawn {
    /// A token without an alternative, which no logits are needed for.
    pub(super) fn forced(id: u32, request: &GenerationRequest) -> Self {
        Self {
            id,
            logprob: 0.0,
            alternatives: match request.alternatives {
                0 => Vec::new(),
                _ => vec![(id, 0.0)],
            },
            allowed: Some(1),
        }
    }
}

/// Draws the token number `index` of a generation that must be one of `allowed`, ascending ids and at least one. The
/// same as if the vocabulary had no other tokens.
pub(super) fn draw_allowed(
    arch: Arch,
    logits: &[f32],
    request: &GenerationRequest,
    index: usize,
    allowed: &[u32],
) -> Result<Drawn, GenerationError> {
    if let [only] = allowed {
        return Ok(Drawn::forced(*only, request));
    }
    let chosen: Vec<f32> = allowed.iter().map(|id| logits[*id as usize]).collect();
    let mut drawn = draw(arch, &chosen, request, index)?;
    drawn.id = allowed[drawn.id as usize];
    for (place, _) in &mut drawn.alternatives {
        *place = allowed[*place as usize];
    }
    drawn.allowed = Some(id(allowed.len()));
    Ok(drawn)
}

/// Draws the token number `index` of a generation. A function of its arguments alone.
pub(super) fn draw(
    arch: Arch,
    logits: &[f32],
    request: &GenerationRequest,
    index: usize,
) -> Result<Drawn, GenerationError> {
    let greedy = request.temperature <= 0.0;
    let temperature = if greedy { 1.0 } else { request.temperature };
    let odds = Odds::new(arch, logits, temperature).ok_or(GenerationError::NotFinite)?;
    let place = if greedy {
        odds.likeliest(1).first().copied().unwrap_or(0)
    } else {
        let uniform = uniform(request.key, index);
        match odds.kept(request.top_k, request.top_p) {
            None => pick(odds.shares.iter().copied().enumerate(), odds.total, uniform),
            Some(kept) => {
                let total = kept.iter().map(|id| f64::from(odds.shares[*id])).sum();
                pick(
                    kept.into_iter().map(|id| (id, odds.shares[id])),
                    total,
                    uniform,
                )
            }
        }
    };
    let alternatives = odds.likeliest(request.alternatives);
    Ok(Drawn {
        id: id(place),
        logprob: odds.logprob(place),
        alternatives: alternatives
            .into_iter()
            .map(|place| (id(place), odds.logprob(place)))
            .collect(),
        allowed: None,
    })
}

/// Places in the vocabulary are ids.
fn id(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// The draw of token `index`, in [0, 1): each token has a place of its own in the key's stream.
fn uniform(key: DrawKey, index: usize) -> f64 {
    let mut random = ChaCha8Rng::from_seed(key.0);
    random.set_word_pos(index as u128 * 2);
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Walks along the tokens in the order of their ids until `uniform` of the total is passed.
fn pick(shares: impl Iterator<Item = (usize, f32)>, total: f64, uniform: f64) -> usize {
    let target = uniform * total;
    let mut sum = 0.0;
    let mut last = 0;
    for (place, share) in shares {
        sum += f64::from(share);
        last = place;
        if sum > target {
            return place;
        }
    }
    // Rounding can leave the sum a hair below the target.
    last
}

/// How likely each token is.
struct Odds<'a> {
    logits: &'a [f32],
    temperature: f32,
    largest: f32,
    /// Probabilities, times `total`.
    shares: Vec<f32>,
    total: f64,
}

impl<'a> Odds<'a> {
    /// `None` when a logit is not finite.
    fn new(arch: Arch, logits: &'a [f32], temperature: f32) -> Option<Self> {
        let mut shares = vec![0.0; logits.len()];
        let (finite, largest, total) = arch.dispatch(Shares {
            logits,
            sharpness: 1.0 / temperature,
            out: &mut shares,
        });
        finite.then_some(Self {
            logits,
            temperature,
            largest,
            shares,
            total,
        })
    }

    fn logprob(&self, place: usize) -> f32 {
        let above = f64::from(self.logits[place] - self.largest) / f64::from(self.temperature);
        #[expect(clippy::cast_possible_truncation, reason = "records hold f32")]
        let logprob = (above - self.total.ln()) as f32;
        logprob
    }

    /// The places of the `count` likeliest tokens, likeliest first; the smaller id wins a tie.
    fn likeliest(&self, count: usize) -> Vec<usize> {
        match count {
            0 => Vec::new(),
            1 => {
                let place = self.logits.iter().position(|logit| *logit >= self.largest);
                place.into_iter().collect()
            }
            count => {
                let mut places: Vec<usize> = (0..self.logits.len()).collect();
                if count < places.len() {
                    places.select_nth_unstable_by(count - 1, |a, b| self.by_likelihood(*a, *b));
                    places.truncate(count);
                }
                places.sort_unstable_by(|a, b| self.by_likelihood(*a, *b));
                places
            }
        }
    }

    fn by_likelihood(&self, a: usize, b: usize) -> Ordering {
        self.logits[b].total_cmp(&self.logits[a]).then(a.cmp(&b))
    }

    /// The tokens that top-k and then top-p keep, by id; `None` when that is all.
    fn kept(&self, top_k: usize, top_p: f32) -> Option<Vec<usize>> {
        let count = self.logits.len();
        let by_k = (1..count).contains(&top_k);
        let by_p = top_p < 1.0;
        if !by_k && !by_p {
            return None;
        }
        let mut kept = if by_k {
            self.likeliest(top_k)
        } else {
            // Tokens below this have less than 1 - p together, so the first p are found without them; it
            // saves sorting the whole vocabulary.
            let floor = (1.0 - f64::from(top_p)) * self.total / count as f64;
            let mut candidates: Vec<usize> = (0..count)
                .filter(|place| f64::from(self.shares[*place]) >= floor)
                .collect();
            candidates.sort_unstable_by(|a, b| self.by_likelihood(*a, *b));
            candidates
        };
        if by_p {
            let total = if by_k {
                kept.iter()
                    .map(|place| f64::from(self.shares[*place]))
                    .sum()
            } else {
                self.total
            };
            let enough = f64::from(top_p.max(0.0)) * total;
            let mut sum = 0.0;
            let needed = kept.iter().position(|place| {
                sum += f64::from(self.shares[*place]);
                sum >= enough
            });
            kept.truncate(needed.map_or(kept.len(), |last| last + 1));
        }
        kept.sort_unstable();
        Some(kept)
    }
}

/// Fills `out`; gives whether all logits are finite, the largest, and the sum of the shares.
struct Shares<'a> {
    logits: &'a [f32],
    sharpness: f32,
    out: &'a mut [f32],
}

impl WithSimd for Shares<'_> {
    type Output = (bool, f32, f64);

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Self::Output {
        const LANES: usize = 16;
        let finite = self
            .logits
            .iter()
            .fold(true, |all, logit| all & logit.is_finite());
        let largest = max(self.logits);
        let mut sums = [0.0_f64; LANES];
        let (logits, logits_rest) = self.logits.as_chunks::<LANES>();
        let (shares, shares_rest) = self.out.as_chunks_mut::<LANES>();
        for (logits, shares) in logits.iter().zip(shares) {
            for ((logit, share), sum) in logits.iter().zip(shares).zip(&mut sums) {
                *share = exp((logit - largest) * self.sharpness);
                *sum += f64::from(*share);
            }
        }
        for ((logit, share), sum) in logits_rest.iter().zip(shares_rest).zip(&mut sums) {
            *share = exp((logit - largest) * self.sharpness);
            *sum += f64::from(*share);
        }
        (finite, largest, sums.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(temperature: f32, top_k: usize, top_p: f32) -> GenerationRequest {
        GenerationRequest {
            prompt: vec![0],
            max_tokens: 1,
            temperature,
            top_p,
            top_k,
            stop_ids: Vec::new(),
            alternatives: 0,
            key: DrawKey([7; 32]),
            constraint: None,
        }
    }

    fn drawn(logits: &[f32], request: &GenerationRequest, index: usize) -> Drawn {
        draw(Arch::new(), logits, request, index).unwrap()
    }

    #[test]
    fn temperature_zero_takes_the_likeliest_and_the_smaller_id_of_equals() {
        let greedy = drawn(&[0.0, 3.0, 3.0, 1.0], &request(0.0, 0, 1.0), 0);
        assert_eq!(greedy.id, 1);
        let expected = 3.0 - (1.0 + 2.0 * 3.0_f64.exp() + 1.0_f64.exp()).ln();
        assert!((f64::from(greedy.logprob) - expected).abs() < 1e-6);
    }

    #[test]
    fn logprobs_are_those_at_the_temperature_before_top_k_and_top_p() {
        let logits = [0.5, -1.0, 2.0, 0.0];
        let scaled: Vec<f64> = logits.iter().map(|x| f64::from(*x) / 0.7).collect();
        let sum: f64 = scaled.iter().map(|x| x.exp()).sum();
        let mut request = request(0.7, 2, 0.5);
        request.alternatives = 10;
        let drawn = drawn(&logits, &request, 3);
        assert_eq!(
            drawn.id, 2,
            "top-k 2 and top-p 0.5 leave only the likeliest"
        );
        assert!((f64::from(drawn.logprob) - (scaled[2] - sum.ln())).abs() < 1e-6);
        let ids: Vec<u32> = drawn.alternatives.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [2, 0, 3, 1]);
        for (id, logprob) in drawn.alternatives {
            assert!((f64::from(logprob) - (scaled[id as usize] - sum.ln())).abs() < 1e-6);
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits: Vec<f32> = [0.1_f32, 0.2, 0.3, 0.4].iter().map(|p| p.ln()).collect();
        let request = request(1.0, 0, 1.0);
        let mut counts = [0_u32; 4];
        for index in 0..20_000 {
            counts[drawn(&logits, &request, index).id as usize] += 1;
        }
        for (count, p) in counts.iter().zip([0.1, 0.2, 0.3, 0.4]) {
            assert!(
                (f64::from(*count) / 20_000.0 - p).abs() < 0.015,
                "{counts:?}"
            );
        }
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_it() {
        let logits: Vec<f32> = [0.1_f32, 0.45, 0.05, 0.4].iter().map(|p| p.ln()).collect();
        let request = request(1.0, 0, 0.8);
        let ids: std::collections::BTreeSet<u32> = (0..500)
            .map(|index| drawn(&logits, &request, index).id)
            .collect();
        assert_eq!(ids.into_iter().collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn top_p_zero_still_draws_the_likeliest() {
        assert_eq!(drawn(&[0.0, 1.0, 0.5], &request(1.0, 0, 0.0), 0).id, 1);
    }

    #[test]
    fn only_allowed_tokens_are_drawn_with_logprobs_among_them() {
        let logits = [3.0, 0.5, -1.0, 2.0];
        let mut request = request(0.7, 0, 1.0);
        request.alternatives = 4;
        let sum = (0.5_f64 / 0.7).exp() + (-1.0_f64 / 0.7).exp();
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..200 {
            let drawn = draw_allowed(Arch::new(), &logits, &request, index, &[1, 2]).unwrap();
            let expected = f64::from(logits[drawn.id as usize]) / 0.7 - sum.ln();
            assert!((f64::from(drawn.logprob) - expected).abs() < 1e-6);
            assert_eq!(drawn.allowed, Some(2));
            let ids: Vec<u32> = drawn.alternatives.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, [1, 2]);
            seen.insert(drawn.id);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_token_without_an_alternative_has_logprob_0() {
        for temperature in [0.0, 0.3, 1.0] {
            let request = request(temperature, 3, 0.5);
            let drawn = draw_allowed(Arch::new(), &[7.3, -4.1], &request, 5, &[1]).unwrap();
            assert_eq!((drawn.id, drawn.logprob.to_bits()), (1, 0.0_f32.to_bits()));
        }
    }

    #[test]
    fn a_logit_that_is_not_finite_is_an_error() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let logits = [0.0, bad, 1.0];
            let result = draw(Arch::new(), &logits, &request(1.0, 0, 1.0), 0);
            assert_eq!(result, Err(GenerationError::NotFinite));
        }
    }
}
