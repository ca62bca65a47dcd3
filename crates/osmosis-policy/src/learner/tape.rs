//! Operations remembered in order, to be gone through backward.
//!
//! candle has a tape of its own, but fills a matrix with zeros and adds to it for every gradient it passes
//! on, and each of these additions waits for a pool of threads that spin in between: with a piece per
//! core that was half of the time of an update.

use std::cell::RefCell;
use std::sync::Arc;

use candle_core::Result;

use super::matrix::Matrix;
use super::ops::Real;

/// An operation on `N` matrices that has a gradient.
pub(super) trait Operation<T, const N: usize> {
    /// Whether the backward pass looks at the inputs. If not, it is given empty ones, and what nobody else needs
    /// is let go.
    const KEEPS_INPUTS: bool = true;

    fn forward(&self, inputs: [&Matrix<T>; N]) -> Result<Matrix<T>>;
    /// The gradient by each input, given the gradient by the result.
    fn backward(&self, inputs: [&Matrix<T>; N], gradient: Matrix<T>) -> Result<[Matrix<T>; N]>;
}

/// A matrix that was computed. Gradients flow back to it if it has a place on the tape.
#[derive(Debug)]
pub(super) struct Value<T> {
    data: Arc<Matrix<T>>,
    place: Option<usize>,
}

type Backward<T> = Box<dyn FnOnce(Matrix<T>) -> Result<Vec<Matrix<T>>>>;

enum Entry<T> {
    /// The parameter with this index.
    Parameter(usize),
    /// Something computed from the values at these places.
    Computed {
        inputs: Vec<Option<usize>>,
        backward: Backward<T>,
    },
}

/// What has been computed so far.
pub(super) struct Tape<T> {
    /// None when no gradient is wanted: then nothing is kept.
    entries: Option<RefCell<Vec<Entry<T>>>>,
}

impl<T> Clone for Value<T> {
    fn clone(&self) -> Self {
        Self {
            data: Arc::clone(&self.data),
            place: self.place,
        }
    }
}

impl<T> Value<T> {
    pub(super) fn data(&self) -> &Matrix<T> {
        &self.data
    }
}

impl<T: Real> Tape<T> {
    pub(super) fn recording() -> Self {
        Self {
            entries: Some(RefCell::new(Vec::new())),
        }
    }
    pub(super) fn without_gradients() -> Self {
        Self { entries: None }
    }

    /// A parameter; `index` is where its gradient will be.
    pub(super) fn parameter(&self, index: usize, data: &Arc<Matrix<T>>) -> Value<T> {
        Value {
            data: Arc::clone(data),
            place: self.record(|| Entry::Parameter(index)),
        }
    }

    /// Numbers that are no parameter.
    pub(super) fn constant(data: Matrix<T>) -> Value<T> {
        Value {
            data: Arc::new(data),
            place: None,
        }
    }

    pub(super) fn apply<O: Operation<T, N> + 'static, const N: usize>(
        &self,
        operation: O,
        inputs: [&Value<T>; N],
    ) -> Result<Value<T>> {
        let data = Arc::new(operation.forward(inputs.map(Value::data))?);
        if inputs.iter().all(|input| input.place.is_none()) {
            // No parameter is behind it, so that no gradient is wanted.
            return Ok(Value { data, place: None });
        }
        let place = self.record(|| {
            let kept = inputs.map(|input| {
                if O::KEEPS_INPUTS {
                    Arc::clone(&input.data)
                } else {
                    Arc::new(Matrix::new(Vec::new(), 0))
                }
            });
            Entry::Computed {
                inputs: inputs.iter().map(|input| input.place).collect(),
                backward: Box::new(move |gradient| {
                    let kept = kept.each_ref().map(Arc::as_ref);
                    Ok(operation.backward(kept, gradient)?.into())
                }),
            }
        });
        Ok(Value { data, place })
    }

    fn record(&self, entry: impl FnOnce() -> Entry<T>) -> Option<usize> {
        let mut entries = self.entries.as_ref()?.borrow_mut();
        entries.push(entry());
        Some(entries.len() - 1)
    }

    /// The gradients of `parameters` parameters, given the gradient by `value`. None for a parameter that
    /// the gradient does not reach.
    pub(super) fn backward(
        self,
        value: &Value<T>,
        gradient: Matrix<T>,
        parameters: usize,
    ) -> Result<Vec<Option<Matrix<T>>>> {
        let mut found = (0..parameters).map(|_| None).collect::<Vec<_>>();
        let entries = self.entries.map(RefCell::into_inner).unwrap_or_default();
        let mut gradients = entries
            .iter()
            .map(|_| None)
            .collect::<Vec<Option<Matrix<T>>>>();
        if let Some(place) = value.place {
            gradients[place] = Some(gradient);
        }
        // Inputs come before what is computed from them, so each gradient is whole when its turn comes.
        for (place, entry) in entries.into_iter().enumerate().rev() {
            let Some(gradient) = gradients[place].take() else {
                continue;
            };
            match entry {
                Entry::Parameter(index) => accumulate(&mut found[index], gradient)?,
                Entry::Computed { inputs, backward } => {
                    for (input, gradient) in inputs.into_iter().zip(backward(gradient)?) {
                        if let Some(place) = input {
                            accumulate(&mut gradients[place], gradient)?;
                        }
                    }
                }
            }
        }
        Ok(found)
    }
}

fn accumulate<T: Real>(sum: &mut Option<Matrix<T>>, gradient: Matrix<T>) -> Result<()> {
    if let Some(sum) = sum {
        return sum.add(&gradient);
    }
    *sum = Some(gradient);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::ops::{Add, Linear};

    fn row(values: [f64; 2]) -> Arc<Matrix<f64>> {
        Arc::new(Matrix::new(values.to_vec(), 2))
    }

    #[test]
    fn a_value_used_twice_gets_the_sum_of_its_gradients() {
        let tape = Tape::recording();
        let x = tape.parameter(0, &row([2.0, 3.0]));
        let product = tape.apply(Linear, [&x, &x]).unwrap();
        let twice = tape.apply(Add, [&product, &product]).unwrap();
        let gradients = tape.backward(&twice, Matrix::new(vec![1.0], 1), 1).unwrap();
        // 2 · x·x has the gradient 4 · x.
        assert_eq!(
            gradients[0].as_ref().unwrap().values().unwrap(),
            [8.0, 12.0]
        );
    }

    #[test]
    fn an_operation_that_drops_its_gradient_leaves_the_parameter_without() {
        let tape = Tape::recording();
        let (x, w) = (
            tape.parameter(0, &row([2.0, 3.0])),
            tape.parameter(1, &row([1.0, 1.0])),
        );
        let dropped = Value {
            data: Arc::clone(&x.data),
            place: None,
        };
        let product = tape.apply(Linear, [&dropped, &w]).unwrap();
        let gradients = tape
            .backward(&product, Matrix::new(vec![1.0], 1), 2)
            .unwrap();
        assert!(gradients[0].is_none());
        assert_eq!(gradients[1].as_ref().unwrap().values().unwrap(), [2.0, 3.0]);
    }

    #[test]
    fn nothing_is_kept_without_gradients() {
        let tape = Tape::without_gradients();
        let start = row([2.0, 3.0]);
        let x = tape.parameter(0, &start);
        let product = tape.apply(Linear, [&x, &x]).unwrap();
        drop(x);
        assert_eq!(Arc::strong_count(&start), 1);
        assert!(product.place.is_none());
    }
}
