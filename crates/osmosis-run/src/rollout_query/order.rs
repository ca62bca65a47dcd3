//! The orders of a list of rollouts, and places in it.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::RolloutSearch;
use super::facts::RolloutFacts;

/// What a list of rollouts is sorted by. Rollouts that lack the number come last, in either direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutSort {
    /// As in the dataset.
    #[default]
    Row,
    /// Lowest reward first.
    Reward,
    /// Rows first whose rollouts differ most in their rewards.
    Variance,
    /// Most completion tokens first.
    Length,
    /// Slowest first: agent and grader together.
    Time,
}

impl RolloutSort {
    pub const ALL: [Self; 5] = [
        Self::Row,
        Self::Reward,
        Self::Variance,
        Self::Length,
        Self::Time,
    ];

    /// The name in commands, cursors and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Row => "row",
            Self::Reward => "reward",
            Self::Variance => "variance",
            Self::Length => "length",
            Self::Time => "time",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.as_str() == text)
    }

    /// The number to sort by, smallest first.
    fn key(self, rollout: &RolloutFacts) -> Option<f64> {
        let finished = |number: f64| rollout.is_finished().then_some(number);
        match self {
            Self::Row => None,
            Self::Reward => rollout.reward,
            Self::Variance => rollout.row_variance.map(|variance| -variance),
            Self::Length => finished(-(rollout.completion_tokens as f64)),
            Self::Time => finished(-rollout.work_ms),
        }
    }
}

/// A place in a list: `SORT:NUMBER:ROW.RUN`. Programs take it as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Cursor {
    sort: RolloutSort,
    key: Option<f64>,
    row_index: u64,
    run_index: u32,
}

impl Cursor {
    pub(super) fn sort(&self) -> RolloutSort {
        self.sort
    }

    pub(super) fn row_and_run(&self) -> (u64, u32) {
        (self.row_index, self.run_index)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.sort.as_str())?;
        match self.key {
            // The shortest text that reads as the same number.
            Some(key) => write!(f, "{key}")?,
            None => write!(f, "-")?,
        }
        write!(f, ":{}.{}", self.row_index, self.run_index)
    }
}

/// A text that is no place in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoCursor(String);

impl fmt::Display for NoCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no place in a list: give `next` of the page before",
            self.0
        )
    }
}

impl std::error::Error for NoCursor {}

impl FromStr for Cursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Self, NoCursor> {
        let read = || {
            let mut parts = text.splitn(3, ':');
            let sort = RolloutSort::parse(parts.next()?)?;
            let key = match parts.next()? {
                "-" => None,
                number => Some(number.parse().ok()?),
            };
            let (row, run) = parts.next()?.split_once('.')?;
            Some(Self {
                sort,
                key,
                row_index: row.parse().ok()?,
                run_index: run.parse().ok()?,
            })
        };
        read().ok_or_else(|| NoCursor(text.to_owned()))
    }
}

impl Serialize for Cursor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Cursor {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Cursor".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// A rollout at its place in a list: the smaller, the earlier.
#[derive(Debug)]
pub(super) struct Place<T> {
    sort: RolloutSort,
    reverse: bool,
    key: Option<f64>,
    at: (u64, u32),
    pub(super) item: T,
}

impl<T> Place<T> {
    pub(super) fn new(search: &RolloutSearch, rollout: &RolloutFacts, item: T) -> Self {
        let RolloutSearch { sort, reverse, .. } = *search;
        Self {
            sort,
            reverse,
            key: sort.key(rollout),
            at: (rollout.row_index, rollout.run_index),
            item,
        }
    }

    pub(super) fn cursor(&self) -> Cursor {
        Cursor {
            sort: self.sort,
            key: self.key,
            row_index: self.at.0,
            run_index: self.at.1,
        }
    }

    pub(super) fn is_after(&self, cursor: &Cursor) -> bool {
        self.compare(cursor.key, cursor.row_and_run()) == Ordering::Greater
    }

    fn compare(&self, key: Option<f64>, at: (u64, u32)) -> Ordering {
        let turned = |order: Ordering| if self.reverse { order.reverse() } else { order };
        let by_key = match (self.key, key) {
            (Some(one), Some(other)) => turned(one.total_cmp(&other)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        };
        let by_row = self.at.cmp(&at);
        let by_row = if self.sort == RolloutSort::Row {
            turned(by_row)
        } else {
            by_row
        };
        by_key.then(by_row)
    }
}

impl<T> Ord for Place<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.compare(other.key, other.at)
    }
}

impl<T> PartialOrd for Place<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Place<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Place<T> {}
