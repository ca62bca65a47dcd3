//! The values that two runs have of the same row.

/// A number of each rollout of a dataset row (passed or not, a reward, tokens), in two runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowValues {
    pub first: Vec<f64>,
    pub second: Vec<f64>,
}

impl RowValues {
    /// Whether both runs have something to compare.
    pub fn is_whole(&self) -> bool {
        !self.first.is_empty() && !self.second.is_empty()
    }

    /// Whether each run has one value.
    pub(super) fn is_single(&self) -> bool {
        self.first.len() == 1 && self.second.len() == 1
    }

    /// Mean of the second minus mean of the first; 0 unless both runs have values.
    pub fn difference(&self) -> f64 {
        if !self.is_whole() {
            return 0.0;
        }
        let (first, second) = self.means();
        let apart = second - first;
        // Means of the same values may differ in their last digit.
        if apart.abs() <= 1e-12 * first.abs() {
            0.0
        } else {
            apart
        }
    }

    /// Of both runs, which have values.
    pub(super) fn means(&self) -> (f64, f64) {
        (mean(&self.first), mean(&self.second))
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
