use super::generator::{Generator, dealt};
use super::{Cluster, Interval, normal, student_t_975};

/// Times that the rows are drawn.
const REPLICATES: usize = 4_000;
/// More rows than this are dealt into as many piles, which are drawn instead.
const MOST_UNITS: usize = 2_000;
/// Where the random numbers start.
const SEED: u64 = 0x6f73_6d6f_7369_7331;

/// The 95% bootstrap interval of the mean of values that come in clusters: clusters are drawn with
/// replacement, 4,000 times, always with the same random numbers.
///
/// Percentiles of the draws are too narrow when there are few clusters, so they are taken further out, as
/// far as Student's t is from the normal distribution ("expanded percentile", Hesterberg 2015). Of more than
/// 2,000 clusters, random piles are drawn. `None` with fewer than two clusters or where all agree.
pub fn bootstrap_interval(clusters: &[Cluster]) -> Option<Interval> {
    replicated(clusters, REPLICATES)
}

pub(super) fn replicated(clusters: &[Cluster], replicates: usize) -> Option<Interval> {
    let mut generator = Generator::new(SEED);
    let clusters: Vec<Cluster> = clusters
        .iter()
        .copied()
        .filter(|(size, _)| *size > 0)
        .collect();
    let units = dealt(
        &clusters,
        MOST_UNITS,
        &mut generator,
        |pile, (size, sum)| {
            pile.0 += size;
            pile.1 += sum;
        },
    );
    let count = units.len() as f64;
    let t = student_t_975((units.len() as u64).checked_sub(1)?)?;
    let mut means: Vec<f64> = (0..replicates)
        .map(|_| {
            let (mut size, mut sum) = (0u64, 0.0);
            for _ in 0..units.len() {
                let (unit_size, unit_sum) = units[generator.index(units.len())];
                size += unit_size;
                sum += unit_sum;
            }
            sum / size as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let tail = normal::below(-(count / (count - 1.0)).sqrt() * t);
    let means = super::Spread::sorted(means);
    let interval = Interval {
        low: means.quantile(tail)?,
        high: means.quantile(1.0 - tail)?,
    };
    let scale = interval.low.abs().max(interval.high.abs());
    (interval.high - interval.low > 1e-12 * scale).then_some(interval)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::ClusteredMean;

    #[test]
    fn with_many_clusters_it_agrees_with_the_t_interval() {
        for count in [300u32, 9_000] {
            let clusters: Vec<Cluster> = (0..count)
                .map(|i| (1 + u64::from(i % 3), f64::from(i * 7919 % 101)))
                .collect();
            let t = ClusteredMean::of(clusters.iter().copied())
                .unwrap()
                .t_interval()
                .unwrap();
            let bootstrap = bootstrap_interval(&clusters).unwrap();
            let width = t.high - t.low;
            assert!(
                (t.low - bootstrap.low).abs() < 0.06 * width,
                "{t:?} {bootstrap:?}"
            );
            assert!(
                (t.high - bootstrap.high).abs() < 0.06 * width,
                "{t:?} {bootstrap:?}"
            );
        }
    }

    #[test]
    fn it_is_the_same_every_time() {
        let clusters = [(1, 0.0), (2, 1.0), (1, 1.0), (3, 0.5)];
        assert_eq!(bootstrap_interval(&clusters), bootstrap_interval(&clusters));
    }

    #[test]
    fn nothing_is_drawn_from_one_cluster_or_from_clusters_that_agree() {
        assert_eq!(bootstrap_interval(&[(5, 1.0)]), None);
        assert_eq!(bootstrap_interval(&[(5, 1.0), (0, 0.0)]), None);
        assert_eq!(bootstrap_interval(&[(1, 0.1), (3, 0.3), (2, 0.2)]), None);
        assert_eq!(bootstrap_interval(&[]), None);
    }
}
