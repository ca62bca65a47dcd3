//! What the calculator is asked, and what is right.

use std::collections::HashSet;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// What the tool of `examples/calculator` can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Larger,
    Smaller,
    Average,
}

impl Operation {
    pub(crate) const ALL: [Self; 8] = [
        Self::Add,
        Self::Subtract,
        Self::Multiply,
        Self::Divide,
        Self::Remainder,
        Self::Larger,
        Self::Smaller,
        Self::Average,
    ];
    /// Those that questions ask for; the others are there to be chosen wrongly.
    pub(crate) const ASKED: [Self; 4] = [Self::Add, Self::Subtract, Self::Multiply, Self::Divide];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Subtract => "subtract",
            Self::Multiply => "multiply",
            Self::Divide => "divide",
            Self::Remainder => "remainder",
            Self::Larger => "larger",
            Self::Smaller => "smaller",
            Self::Average => "average",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// As Python counts: a quotient is rounded down. `None` for a division by zero, or beyond 64 bits.
    pub(crate) fn apply(self, a: i64, b: i64) -> Option<i64> {
        match self {
            Self::Add => a.checked_add(b),
            Self::Subtract => a.checked_sub(b),
            Self::Multiply => a.checked_mul(b),
            Self::Divide => {
                let quotient = a.checked_div(b)?;
                Some(if a % b != 0 && (a < 0) != (b < 0) {
                    quotient - 1
                } else {
                    quotient
                })
            }
            Self::Remainder => a.checked_sub(Self::Divide.apply(a, b)?.checked_mul(b)?),
            Self::Larger => Some(a.max(b)),
            Self::Smaller => Some(a.min(b)),
            Self::Average => Self::Divide.apply(a.checked_add(b)?, 2),
        }
    }

    /// Ways to ask for it; `{a}` and `{b}` stand for the numbers, in the order that the tool wants.
    fn phrasings(self) -> &'static [&'static str] {
        match self {
            Self::Add => &[
                "What is {a} plus {b}?",
                "{a} + {b} = ?",
                "Add {a} and {b}.",
                "How much are {a} and {b} together?",
            ],
            Self::Subtract => &[
                "What is {a} minus {b}?",
                "{a} - {b} = ?",
                "Take {b} away from {a}.",
                "Subtract {b} from {a}.",
            ],
            Self::Multiply => &[
                "What is {a} times {b}?",
                "{a} * {b} = ?",
                "Multiply {a} by {b}.",
                "Find the product of {a} and {b}.",
            ],
            Self::Divide => &[
                "What is {a} divided by {b}?",
                "{a} / {b} = ?",
                "Divide {a} by {b}.",
                "How often does {b} go into {a}?",
            ],
            Self::Remainder | Self::Larger | Self::Smaller | Self::Average => &[],
        }
    }

    /// Two numbers from 2 to 99 whose result is not negative and not rounded.
    fn numbers(self, rng: &mut ChaCha8Rng) -> (i64, i64) {
        match self {
            Self::Add
            | Self::Multiply
            | Self::Remainder
            | Self::Larger
            | Self::Smaller
            | Self::Average => (rng.random_range(2..100), rng.random_range(2..100)),
            Self::Subtract => {
                let b = rng.random_range(2..99);
                (rng.random_range(b + 1..100), b)
            }
            Self::Divide => {
                let b = rng.random_range(2..50);
                (b * rng.random_range(2..=99 / b), b)
            }
        }
    }
}

/// A question with one right answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) text: String,
    pub(crate) operation: Operation,
    pub(crate) a: i64,
    pub(crate) b: i64,
    pub(crate) answer: i64,
}

impl Question {
    pub(crate) fn draw(rng: &mut ChaCha8Rng) -> Self {
        let operation = Operation::ASKED[rng.random_range(0..Operation::ASKED.len())];
        let phrasings = operation.phrasings();
        let phrasing = phrasings[rng.random_range(0..phrasings.len())];
        let (a, b) = operation.numbers(rng);
        let text = phrasing
            .replace("{a}", &a.to_string())
            .replace("{b}", &b.to_string());
        let answer = operation.apply(a, b).unwrap_or_default();
        Self {
            text,
            operation,
            a,
            b,
            answer,
        }
    }

    /// `count` questions that differ from each other and from `taken`, which they join.
    pub(crate) fn distinct(
        count: usize,
        taken: &mut HashSet<String>,
        rng: &mut ChaCha8Rng,
    ) -> Vec<Self> {
        let mut questions = Vec::with_capacity(count);
        while questions.len() < count {
            let question = Self::draw(rng);
            if taken.insert(question.text.clone()) {
                questions.push(question);
            }
        }
        questions
    }
}
