//! What the calculator is asked, and what is right.
//!
//! A phrasing is a frame around an expression: `What is …?` around `{a} plus {b}`. Which operation is
//! right depends on the expression alone. Some pairs of a frame and an expression are kept from training.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// What the tool of `examples/calculator` can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    #[allow(dead_code, reason = "read by `tiny_loop`, which shares this module")]
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

    /// The order of the numbers matters.
    fn is_ordered(self) -> bool {
        matches!(self, Self::Subtract | Self::Divide | Self::Remainder)
    }

    /// Two numbers from 2 to 99 whose result is not negative and not rounded, and which no other
    /// operation and no wrong order gives: the right answer is never a coincidence.
    fn numbers(self, rng: &mut ChaCha8Rng) -> (i64, i64) {
        loop {
            let (a, b) = match self {
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
            };
            if self.is_the_only_one_for(a, b) {
                return (a, b);
            }
        }
    }

    /// No other call of the tool with these numbers has the same result.
    pub(crate) fn is_the_only_one_for(self, a: i64, b: i64) -> bool {
        let answer = self.apply(a, b);
        Self::ALL.into_iter().all(|other| {
            let forwards = other != self && other.apply(a, b) == answer;
            let backwards = (other != self || self.is_ordered()) && other.apply(b, a) == answer;
            !forwards && !backwards
        })
    }
}

/// What stands around an expression, at `{}`.
pub(crate) const FRAMES: [&str; 6] = [
    "What is {}?",
    "Compute {}.",
    "Tell me {}.",
    "How much is {}?",
    "And {}?",
    "Please work out {}.",
];

/// Words for an operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expression {
    /// `{a}` and `{b}` stand for the numbers, named in the order that the tool wants.
    pub(crate) words: &'static str,
    pub(crate) operation: Operation,
    /// The wrong operation that the warm start makes the most likely one.
    pub(crate) decoy: Operation,
}

const fn expression(words: &'static str, operation: Operation, decoy: Operation) -> Expression {
    Expression {
        words,
        operation,
        decoy,
    }
}

/// Each operation is the decoy of two expressions.
pub(crate) const EXPRESSIONS: [Expression; 16] = {
    use Operation::{Add, Average, Divide, Larger, Multiply, Remainder, Smaller, Subtract};
    [
        expression("{a} plus {b}", Add, Multiply),
        expression("{a} + {b}", Add, Larger),
        expression("the sum of {a} and {b}", Add, Average),
        expression("{a} increased by {b}", Add, Subtract),
        expression("{a} minus {b}", Subtract, Add),
        expression("{a} - {b}", Subtract, Divide),
        expression("{a} decreased by {b}", Subtract, Smaller),
        expression("{b} subtracted from {a}", Subtract, Remainder),
        expression("{a} times {b}", Multiply, Add),
        expression("{a} * {b}", Multiply, Divide),
        expression("the product of {a} and {b}", Multiply, Larger),
        expression("{a} multiplied by {b}", Multiply, Remainder),
        expression("{a} divided by {b}", Divide, Smaller),
        expression("{a} / {b}", Divide, Subtract),
        expression("the quotient of {a} and {b}", Divide, Multiply),
        expression("{a} over {b}", Divide, Average),
    ]
};

/// The rows in which a phrasing may occur, besides those with phrasings of `Training`, which are in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// For nothing: also in the warm start.
    Training,
    /// Nowhere but in the rows on which settings are found.
    Tuning,
    /// Nowhere but in the rows that are reported.
    HeldOut,
}

/// A frame around an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Phrasing {
    pub(crate) frame: usize,
    pub(crate) expression: usize,
}

impl Phrasing {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..EXPRESSIONS.len())
            .flat_map(|expression| (0..FRAMES.len()).map(move |frame| Self { frame, expression }))
    }

    pub(crate) fn reserved_for(used: Reserved) -> Vec<Self> {
        Self::all()
            .filter(|phrasing| phrasing.reserved() == used)
            .collect()
    }

    /// Each expression has one frame in which only tuning rows have it and one for held-out rows. Another
    /// expression is trained on in that frame, and that expression in four others.
    pub(crate) fn reserved(self) -> Reserved {
        match (self.frame + self.expression) % FRAMES.len() {
            0 => Reserved::Tuning,
            3 => Reserved::HeldOut,
            _ => Reserved::Training,
        }
    }

    pub(crate) fn expression(self) -> Expression {
        EXPRESSIONS[self.expression]
    }
}

/// What two rows must not share across files: the operation and the numbers, in whatever order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Exercise {
    operation: Operation,
    smaller: i64,
    larger: i64,
}

/// A question with one right answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) text: String,
    pub(crate) phrasing: Phrasing,
    pub(crate) a: i64,
    pub(crate) b: i64,
    pub(crate) answer: i64,
}

impl Question {
    /// New numbers in one of the phrasings.
    pub(crate) fn draw(phrasings: &[Phrasing], rng: &mut ChaCha8Rng) -> Self {
        Self::phrased(phrasings[rng.random_range(0..phrasings.len())], rng)
    }

    /// New numbers in this phrasing.
    pub(crate) fn phrased(phrasing: Phrasing, rng: &mut ChaCha8Rng) -> Self {
        let (a, b) = phrasing.expression().operation.numbers(rng);
        Self::with_numbers(phrasing, a, b)
    }

    pub(crate) fn with_numbers(phrasing: Phrasing, a: i64, b: i64) -> Self {
        let Expression {
            words, operation, ..
        } = phrasing.expression();
        let words = words
            .replace("{a}", &a.to_string())
            .replace("{b}", &b.to_string());
        Self {
            text: FRAMES[phrasing.frame].replace("{}", &words),
            phrasing,
            a,
            b,
            answer: operation.apply(a, b).unwrap_or_default(),
        }
    }

    pub(crate) fn operation(&self) -> Operation {
        self.phrasing.expression().operation
    }

    pub(crate) fn exercise(&self) -> Exercise {
        Exercise {
            operation: self.operation(),
            smaller: self.a.min(self.b),
            larger: self.a.max(self.b),
        }
    }

    /// Neither the warm start nor the training rows have this phrasing.
    pub(crate) fn is_unseen_phrasing(&self) -> bool {
        self.phrasing.reserved() != Reserved::Training
    }
}
