/// Random numbers that are the same on every machine: SplitMix64 (Steele, Lea and Flood, 2014).
///
/// Bootstrap and permutation draw from it with fixed seeds, so that the same run always reports the same
/// numbers.
#[derive(Debug, Clone)]
pub struct Generator(u64);

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An index below `count`, which is not 0. The bias of multiply-shift is below `count / 2^64`.
    pub fn index(&mut self, count: usize) -> usize {
        let wide = u128::from(self.bits()) * count as u128;
        #[expect(clippy::cast_possible_truncation, reason = "less than `count`")]
        let index = (wide >> 64) as usize;
        index
    }

    /// From 0 to less than 1, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Deals values into at most `piles` piles at random and hands back the sums of the piles.
///
/// Independent values have independent sums, so a resampling of many thousand rows can be done with their
/// piles instead, at a cost that does not grow with the rows.
pub(super) fn dealt<T: Copy>(
    values: &[T],
    piles: usize,
    generator: &mut Generator,
    add: impl Fn(&mut T, T),
) -> Vec<T> {
    if values.len() <= piles {
        return values.to_vec();
    }
    let mut order: Vec<T> = values.to_vec();
    for last in (1..order.len()).rev() {
        order.swap(last, generator.index(last + 1));
    }
    let mut sums: Vec<T> = order[..piles].to_vec();
    for (place, value) in order[piles..].iter().enumerate() {
        add(&mut sums[place % piles], *value);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_the_published_ones() {
        // From the reference implementation with seed 1234567.
        let mut generator = Generator::new(1_234_567);
        let first: Vec<u64> = (0..5).map(|_| generator.bits()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn indices_and_shares_stay_in_their_range() {
        let mut generator = Generator::new(3);
        let mut seen = [0u32; 5];
        for _ in 0..5000 {
            seen[generator.index(5)] += 1;
            assert!((0.0..1.0).contains(&generator.unit()));
        }
        assert!(
            seen.iter().all(|count| (850..1150).contains(count)),
            "{seen:?}"
        );
    }

    #[test]
    fn dealing_keeps_the_sum() {
        let values: Vec<u64> = (0..1003).collect();
        let piles = dealt(&values, 10, &mut Generator::new(1), |sum, value| {
            *sum += value;
        });
        assert_eq!(piles.len(), 10);
        assert_eq!(piles.iter().sum::<u64>(), values.iter().sum::<u64>());
        assert_eq!(
            dealt(&values[..7], 10, &mut Generator::new(1), |a, b| *a += b),
            values[..7]
        );
    }
}
