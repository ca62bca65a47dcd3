//! Our numbers beside those of scipy and statsmodels, recorded by `fixtures/statistics/record.py`.

use serde::Deserialize;

use super::permutation::Permuted;
use super::*;
use crate::RewardRange;

#[derive(Deserialize)]
struct Recorded {
    student_t: Vec<(u64, f64)>,
    pass_k: Vec<PassK>,
    shares: Vec<OfRows>,
    rewards: Vec<OfRows>,
    bootstraps: Vec<Bootstrap>,
    paired: Vec<Paired>,
    paired_shares: Vec<Paired>,
    permutations: Vec<Permutation>,
    mcnemar: Vec<(u64, u64, f64)>,
    sign_flip: Vec<Flipped>,
    holm: Vec<Holm>,
}

#[derive(Deserialize)]
struct PassK {
    n: u32,
    c: u32,
    k: u32,
    at: f64,
    hat: f64,
}

#[derive(Deserialize)]
struct OfRows {
    rows: Vec<Cluster>,
    mean: f64,
    standard_error: f64,
    t: (f64, f64),
    #[serde(default)]
    share: Option<(f64, f64)>,
}

#[derive(Deserialize)]
struct Bootstrap {
    rows: Vec<Cluster>,
    bootstrap: (f64, f64),
}

/// The rewards of each row, in the one run and in the other.
type Rows = Vec<(Vec<f64>, Vec<f64>)>;

#[derive(Deserialize)]
struct Paired {
    rows: Rows,
    difference: f64,
    ci95: (f64, f64),
}

#[derive(Deserialize)]
struct Permutation {
    rows: Rows,
    p: f64,
}

#[derive(Deserialize)]
struct Flipped {
    differences: Vec<f64>,
    p: f64,
}

#[derive(Deserialize)]
struct Holm {
    p: Vec<f64>,
    adjusted: Vec<f64>,
}

fn recorded() -> Recorded {
    let text = include_str!("../../fixtures/statistics/recorded.json");
    // What is empty would agree with anything.
    let all: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap();
    for (name, found) in &all {
        assert!(
            found.as_array().is_none_or(|found| found.len() >= 2),
            "{name}"
        );
    }
    serde_json::from_str(text).unwrap()
}

#[track_caller]
fn close(found: f64, recorded: f64) {
    let tolerance = 1e-9 * recorded.abs().max(1.0);
    assert!(
        (found - recorded).abs() < tolerance,
        "{found} is not {recorded}"
    );
}

#[track_caller]
fn close_interval(found: Option<Interval>, recorded: (f64, f64)) {
    let found = found.unwrap();
    close(found.low, recorded.0);
    close(found.high, recorded.1);
}

fn values(rows: Rows) -> Vec<RowValues> {
    rows.into_iter()
        .map(|(first, second)| RowValues { first, second })
        .collect()
}

#[test]
fn student_t_agrees_with_scipy() {
    for (degrees_of_freedom, quantile) in recorded().student_t {
        close(student_t_975(degrees_of_freedom).unwrap(), quantile);
    }
}

#[test]
fn pass_at_k_and_pass_hat_k_agree_with_exact_fractions() {
    for PassK { n, c, k, at, hat } in recorded().pass_k {
        close(pass_at_k(n, c, k).unwrap(), at);
        close(pass_hat_k(n, c, k).unwrap(), hat);
    }
}

#[test]
fn clustered_means_and_t_intervals_agree_with_statsmodels() {
    for recorded in recorded().rewards {
        let found = ClusteredMean::of(recorded.rows).unwrap();
        close(found.mean, recorded.mean);
        close(found.standard_error, recorded.standard_error);
        close_interval(found.t_interval(), recorded.t);
    }
}

#[test]
fn score_intervals_agree_with_a_root_finder() {
    for recorded in recorded().shares {
        let found = ClusteredMean::of(recorded.rows).unwrap();
        close(found.mean, recorded.mean);
        let (low, high) = recorded.share.unwrap();
        let interval = found.share_interval().unwrap();
        assert!(
            (interval.low - low).abs() < 1e-7,
            "{interval:?} is not [{low}, {high}]"
        );
        assert!(
            (interval.high - high).abs() < 1e-7,
            "{interval:?} is not [{low}, {high}]"
        );
    }
}

#[test]
fn bootstrap_intervals_agree_with_numpy_up_to_the_draws() {
    for recorded in recorded().bootstraps {
        let found = bootstrap_interval(&recorded.rows).unwrap();
        let (low, high) = recorded.bootstrap;
        let tolerance = 0.04 * (high - low);
        assert!(
            (found.low - low).abs() < tolerance,
            "{found:?} is not [{low}, {high}]"
        );
        assert!(
            (found.high - high).abs() < tolerance,
            "{found:?} is not [{low}, {high}]"
        );
    }
}

#[test]
fn paired_differences_agree_with_a_paired_t_test_and_with_newcombes_interval() {
    let Recorded {
        paired,
        paired_shares,
        ..
    } = recorded();
    let unbounded = paired.into_iter().map(|recorded| (None, recorded));
    let shares = paired_shares
        .into_iter()
        .map(|recorded| (Some(RewardRange::UNIT), recorded));
    for (range, recorded) in unbounded.chain(shares) {
        let (low, high) = recorded.ci95;
        // A test that agrees with the interval already.
        let test = Permuted {
            p: if low > 0.0 || high < 0.0 { 0.01 } else { 1.0 },
            test: PairedTest::Permutation,
            seen: 1.0,
            critical: f64::INFINITY,
        };
        let rows = values(recorded.rows);
        let found = PairedDifference::new(&rows.iter().collect::<Vec<_>>(), range, &test);
        close(found.difference, recorded.difference);
        let found = found.ci95.unwrap();
        let tolerance = if range.is_some() { 1e-7 } else { 1e-9 };
        assert!((found.low - low).abs() < tolerance, "{found:?} {low}");
        assert!((found.high - high).abs() < tolerance, "{found:?} {high}");
    }
}

#[test]
fn permutations_agree_with_all_of_them_up_to_the_draws() {
    for recorded in recorded().permutations {
        let found = Comparison::of_means(&values(recorded.rows), None).unwrap();
        assert_eq!(found.test, PairedTest::Permutation);
        assert!(
            (found.p - recorded.p).abs() < 0.02,
            "{} is not {}",
            found.p,
            recorded.p
        );
    }
}

#[test]
fn paired_tests_agree_with_scipy_and_statsmodels() {
    for (up, down, p) in recorded().mcnemar {
        close(mcnemar_exact(up, down), p);
    }
    for Flipped { differences, p } in recorded().sign_flip {
        let rows = differences.iter().map(|d| (vec![0.0], vec![*d])).collect();
        let found = Comparison::of_means(&values(rows), None).unwrap();
        assert_eq!(found.test, PairedTest::SignFlipExact);
        close(found.p, p);
    }
    for Holm { p, adjusted } in recorded().holm {
        assert_eq!(p.len(), adjusted.len());
        let found = holm(&p);
        assert_eq!(found.len(), adjusted.len());
        for (found, recorded) in found.into_iter().zip(adjusted) {
            close(found, recorded);
        }
    }
}
