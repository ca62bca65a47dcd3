//! Which rollouts of a run are listed, and in which order: `rollouts?outcome=&reward_below=&q=&sort=&cursor=&limit=`.
//! This is how the query is written; `osmosis_run::rollout_query` filters, sorts and turns pages.

use osmosis_run::rollout_query::{RolloutSearch, RolloutSort, StateFilter};
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

impl ListQuery {
    /// All of it but the texts, which an index is searched for.
    pub(crate) fn search(&self) -> Result<RolloutSearch, ApiError> {
        let (sort, reverse) = self.order()?;
        let after = match &self.cursor {
            Some(cursor) => Some(cursor.parse().map_err(|_| {
                ApiError::usage(&format!("cursor `{cursor}` is no place in this list"))
                    .hint("give `next` of the page before, or begin again without `cursor`")
            })?),
            None => None,
        };
        Ok(RolloutSearch {
            any_of: self.states()?,
            reward_below: self.reward_below,
            reward_above: self.reward_above,
            sort,
            reverse,
            after,
            limit: self.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MOST),
            ..RolloutSearch::default()
        })
    }

    fn states(&self) -> Result<Vec<StateFilter>, ApiError> {
        let words = self.outcome.as_deref().unwrap_or_default().split(',');
        words
            .filter(|word| !word.is_empty())
            .map(|word| {
                StateFilter::deserialize(serde_json::Value::from(word)).map_err(|_| {
                    ApiError::usage(&format!("`{word}` is no outcome")).hint(
                        "write scored, agent_failed, timed_out, ungraded, rejected, infrastructure_failed, \
                         cancelled, waiting, running, passed or failed",
                    )
                })
            })
            .collect()
    }

    /// Smallest first here; a search has the most interesting first.
    fn order(&self) -> Result<(RolloutSort, bool), ApiError> {
        let text = self.sort.as_deref().filter(|text| !text.is_empty());
        let text = text.unwrap_or("row");
        let (word, down) = match text.strip_prefix('-') {
            Some(word) => (word, true),
            None => (text, false),
        };
        let sort = RolloutSort::parse(word).ok_or_else(|| {
            ApiError::usage(&format!("rollouts can't be sorted by `{word}`"))
                .hint("write row, reward, variance, length or time, with a minus for the reverse")
        })?;
        let reverse = match sort {
            RolloutSort::Row | RolloutSort::Reward => down,
            RolloutSort::Variance | RolloutSort::Length | RolloutSort::Time => !down,
        };
        Ok((sort, reverse))
    }
}

#[cfg(test)]
mod tests {
    use osmosis_run::reports::{RolloutGrid, RolloutState};

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
        let found = query.search().unwrap().in_grid(&grid(), None).unwrap();
        found.places.iter().map(|(place, _)| *place).collect()
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
        wrong.search().unwrap_err();
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
        assert_eq!(by("time"), [4, 3, 2, 1, 0, 5]);
        assert_eq!(by("-length"), [4, 3, 2, 1, 0, 5]);
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
            let page = query.search().unwrap().in_grid(&grid(), None).unwrap();
            assert_eq!(page.total_count, 6);
            seen.extend(page.places.iter().map(|(place, _)| *place));
            cursor = page.next.map(|next| next.to_string());
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, [0, 2, 3, 1, 4, 5]);
    }
}
