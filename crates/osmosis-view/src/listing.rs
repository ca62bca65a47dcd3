//! Which rollouts of a run are listed, and in which order: `rollouts?outcome=&reward_below=&q=&sort=&cursor=&limit=`.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use osmosis_run::reports::{RolloutGrid, RolloutState};
use serde::Deserialize;

use crate::api::ApiError;

const DEFAULT_LIMIT: usize = 100;
const MOST: usize = 1000;

/// The query as it is written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// States, separated by commas; also `failed` (all but scored) and `passed`.
    pub(crate) outcome: Option<String>,
    pub(crate) reward_below: Option<f64>,
    pub(crate) reward_above: Option<f64>,
    /// Words anywhere in the transcript.
    pub(crate) q: Option<String>,
    /// A tool that was called.
    pub(crate) tool: Option<String>,
    /// Text of the dataset row.
    pub(crate) row: Option<String>,
    /// `row`, `reward`, `variance`, `length`, `time`; a minus before it turns the order round.
    pub(crate) sort: Option<String>,
    /// `next` of the page before.
    pub(crate) cursor: Option<String>,
    pub(crate) limit: Option<usize>,
}

/// A page of places in the grid.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) places: Vec<usize>,
    pub(crate) total_count: u64,
    pub(crate) next: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SortBy {
    Row,
    Reward,
    Variance,
    Length,
    Time,
}

impl ListQuery {
    /// `matching` are the rollouts that a search found, when there was one.
    pub(crate) fn list(
        &self,
        grid: &RolloutGrid,
        matching: Option<&HashSet<(u64, u32)>>,
    ) -> Result<Listed, ApiError> {
        let wanted = self.states()?;
        let (by, reversed) = self.order()?;
        let mut places: Vec<usize> = (0..grid.len())
            .filter(|place| self.takes(grid, *place, wanted.as_ref(), matching))
            .collect();
        let variances = if by == SortBy::Variance {
            variances(grid)
        } else {
            HashMap::new()
        };
        let number = |value: Option<f64>, other: Option<f64>| match (value, other) {
            (Some(value), Some(other)) => value.total_cmp(&other),
            // What has none comes last, whatever the order.
            (None, None) => Ordering::Equal,
            (None, Some(_)) if reversed => Ordering::Less,
            (Some(_), None) if reversed => Ordering::Greater,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
        };
        let compare = |a: &usize, b: &usize| match by {
            SortBy::Row => a.cmp(b),
            SortBy::Reward => number(grid.reward[*a], grid.reward[*b]),
            SortBy::Variance => {
                let of = |place: &usize| variances.get(&grid.row_index[*place]).copied();
                number(of(a), of(b))
            }
            SortBy::Length => grid.completion_tokens[*a].cmp(&grid.completion_tokens[*b]),
            SortBy::Time => grid.duration_ms[*a].cmp(&grid.duration_ms[*b]),
        };
        places.sort_by(|a, b| {
            let order = compare(a, b);
            let order = if reversed { order.reverse() } else { order };
            order.then(a.cmp(b))
        });
        let total_count = places.len() as u64;
        let name = |place: usize| format!("{}.{}", grid.row_index[place], grid.run_index[place]);
        let begin = match &self.cursor {
            None => 0,
            Some(cursor) => places
                .iter()
                .position(|place| name(*place) == *cursor)
                .map(|place| place + 1)
                .ok_or_else(|| {
                    ApiError::usage(&format!("cursor `{cursor}` is not in this list"))
                        .hint("begin again without `cursor`")
                })?,
        };
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MOST);
        let end = (begin + limit).min(places.len());
        let page = places[begin..end].to_vec();
        let more = end < places.len();
        Ok(Listed {
            next: page.last().filter(|_| more).map(|place| name(*place)),
            places: page,
            total_count,
        })
    }

    fn takes(
        &self,
        grid: &RolloutGrid,
        place: usize,
        wanted: Option<&Wanted>,
        matching: Option<&HashSet<(u64, u32)>>,
    ) -> bool {
        let state = RolloutState::ALL[usize::from(grid.state[place])];
        let passed = grid.passed[place] == 1;
        let key = (grid.row_index[place], grid.run_index[place]);
        wanted.is_none_or(|wanted| wanted.takes(state, passed))
            && self
                .reward_below
                .is_none_or(|most| grid.reward[place].is_some_and(|reward| reward < most))
            && self
                .reward_above
                .is_none_or(|least| grid.reward[place].is_some_and(|reward| reward > least))
            && matching.is_none_or(|matching| matching.contains(&key))
    }

    fn states(&self) -> Result<Option<Wanted>, ApiError> {
        let Some(words) = self.outcome.as_deref().filter(|words| !words.is_empty()) else {
            return Ok(None);
        };
        let mut wanted = Wanted::default();
        for word in words.split(',') {
            match word {
                "passed" => wanted.passed = true,
                "failed" => wanted.failed = true,
                word => {
                    let named = serde_json::Value::from(word);
                    let state = RolloutState::deserialize(named).map_err(|_| {
                        ApiError::usage(&format!("`{word}` is no outcome")).hint(
                            "write scored, agent_failed, timed_out, ungraded, rejected, infrastructure_failed, \
                             cancelled, waiting, running, passed or failed",
                        )
                    })?;
                    wanted.states.push(state);
                }
            }
        }
        Ok(Some(wanted))
    }

    fn order(&self) -> Result<(SortBy, bool), ApiError> {
        let text = self.sort.as_deref().unwrap_or("row");
        let (word, reversed) = match text.strip_prefix('-') {
            Some(word) => (word, true),
            None => (text, false),
        };
        let by = match word {
            "row" | "" => SortBy::Row,
            "reward" => SortBy::Reward,
            "variance" => SortBy::Variance,
            "length" => SortBy::Length,
            "time" => SortBy::Time,
            _ => {
                return Err(
                    ApiError::usage(&format!("rollouts can't be sorted by `{word}`")).hint(
                        "write row, reward, variance, length or time, with a minus for the reverse",
                    ),
                );
            }
        };
        Ok((by, reversed))
    }
}

#[derive(Debug, Default)]
struct Wanted {
    states: Vec<RolloutState>,
    passed: bool,
    failed: bool,
}

impl Wanted {
    fn takes(&self, state: RolloutState, passed: bool) -> bool {
        let without_result = matches!(state, RolloutState::Waiting | RolloutState::Running);
        self.states.contains(&state)
            || (self.passed && passed)
            || (self.failed && !passed && !without_result)
    }
}

/// The variance of the rewards of each row with two or more.
fn variances(grid: &RolloutGrid) -> HashMap<u64, f64> {
    let mut sums: HashMap<u64, (f64, f64, f64)> = HashMap::new();
    for (row, reward) in grid.row_index.iter().zip(&grid.reward) {
        if let Some(reward) = reward {
            let (count, sum, squares) = sums.entry(*row).or_default();
            *count += 1.0;
            *sum += reward;
            *squares += reward * reward;
        }
    }
    sums.into_iter()
        .filter(|(_, (count, _, _))| *count > 1.0)
        .map(|(row, (count, sum, squares))| {
            let mean = sum / count;
            (row, (squares / count - mean * mean).max(0.0))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rows of two rollouts: rewards 1 and 0, 0.5 twice, one that failed and one that waits.
    fn grid() -> RolloutGrid {
        RolloutGrid {
            states: RolloutState::ALL.to_vec(),
            row_index: vec![0, 0, 1, 1, 2, 2],
            run_index: vec![0, 1, 0, 1, 0, 1],
            state: vec![2, 2, 2, 2, 3, 0],
            reward: vec![Some(1.0), Some(0.0), Some(0.5), Some(0.5), None, None],
            passed: vec![1, 0, 0, 0, 0, 0],
            duration_ms: vec![5, 4, 3, 2, 1, 0],
            completion_tokens: vec![1, 2, 3, 4, 5, 6],
            model_calls: vec![1; 6],
            finished_after_ms: vec![Some(1); 6],
            began_at_ms: 0,
            held_out: vec![],
        }
    }

    fn list(query: &ListQuery) -> Vec<usize> {
        query.list(&grid(), None).unwrap().places
    }

    #[test]
    fn rollouts_are_taken_by_outcome_and_reward() {
        let by = |outcome: &str| {
            list(&ListQuery {
                outcome: Some(outcome.to_owned()),
                ..ListQuery::default()
            })
        };
        assert_eq!(by("agent_failed,waiting"), [4, 5]);
        assert_eq!(by("passed"), [0]);
        assert_eq!(by("failed"), [1, 2, 3, 4]);
        let below = list(&ListQuery {
            reward_below: Some(0.5),
            ..ListQuery::default()
        });
        assert_eq!(below, [1], "what has no reward is not below one");
        let wrong = ListQuery {
            outcome: Some("x".to_owned()),
            ..ListQuery::default()
        };
        wrong.list(&grid(), None).unwrap_err();
    }

    #[test]
    fn what_has_no_value_comes_last_in_either_order() {
        let by = |sort: &str| {
            list(&ListQuery {
                sort: Some(sort.to_owned()),
                ..ListQuery::default()
            })
        };
        assert_eq!(by("reward"), [1, 2, 3, 0, 4, 5]);
        assert_eq!(by("-reward"), [0, 2, 3, 1, 4, 5]);
        assert_eq!(by("-variance"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(by("time"), [5, 4, 3, 2, 1, 0]);
        assert_eq!(by("-length"), [5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn pages_follow_each_other_without_a_gap() {
        let mut cursor = None;
        let mut seen = vec![];
        loop {
            let query = ListQuery {
                sort: Some("-reward".to_owned()),
                limit: Some(4),
                cursor,
                ..ListQuery::default()
            };
            let page = query.list(&grid(), None).unwrap();
            assert_eq!(page.total_count, 6);
            seen.extend(page.places);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, [0, 2, 3, 1, 4, 5]);
    }
}
