//! Which rows of a dataset a run takes: `--rows 3,7,10-20` and `--limit N`.
//!
//! ```
//! use osmosis_core::row_selection::{RowFilter, RowSelection, RowVerdict};
//!
//! let rows: RowSelection = "10-12,3".parse()?;
//! assert_eq!(rows.to_string(), "3,10-12");
//!
//! let mut filter = RowFilter::new(Some(rows), Some(2));
//! assert_eq!(filter.judge(2), RowVerdict::Skip);
//! assert_eq!(filter.judge(3), RowVerdict::Take);
//! assert_eq!(filter.judge(10), RowVerdict::Take);
//! assert_eq!(filter.judge(11), RowVerdict::Stop);
//! # Ok::<(), osmosis_core::row_selection::RowSelectionError>(())
//! ```

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Rows by their index, which counts from 0. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSelection {
    /// In order, with at least one row between two neighbours.
    ranges: Vec<RangeInclusive<u64>>,
}

/// Why a text selects no rows. Columns count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowSelectionError {
    #[error("no row at column {column}")]
    Missing { column: usize },
    #[error("`{text}` at column {column} is not a row index")]
    NotANumber { column: usize, text: String },
    #[error("the range `{first}-{last}` at column {column} ends before it starts")]
    Backwards {
        column: usize,
        first: u64,
        last: u64,
    },
}

impl RowSelectionError {
    pub fn hint(&self) -> String {
        match self {
            Self::Missing { .. } | Self::NotANumber { .. } => {
                "write indices and ranges that count from 0, such as `3,7,10-20`".to_owned()
            }
            Self::Backwards { first, last, .. } => format!("write `{last}-{first}`"),
        }
    }
}

impl FromStr for RowSelection {
    type Err = RowSelectionError;

    fn from_str(text: &str) -> Result<Self, RowSelectionError> {
        let mut ranges = Vec::new();
        let mut column = 1;
        for part in text.split(',') {
            ranges.push(parse_range(part, column)?);
            column += part.chars().count() + 1;
        }
        Ok(Self::merged(ranges))
    }
}

fn parse_range(part: &str, column: usize) -> Result<RangeInclusive<u64>, RowSelectionError> {
    let Some((first, last)) = part.split_once('-') else {
        let only = parse_index(part, column)?;
        return Ok(only..=only);
    };
    let last_column = column + first.chars().count() + 1;
    let first = parse_index(first, column)?;
    let last = parse_index(last, last_column)?;
    if last < first {
        return Err(RowSelectionError::Backwards {
            column,
            first,
            last,
        });
    }
    Ok(first..=last)
}

fn parse_index(text: &str, column: usize) -> Result<u64, RowSelectionError> {
    let column = column + text.chars().take_while(|c| c.is_whitespace()).count();
    let text = text.trim();
    if text.is_empty() {
        return Err(RowSelectionError::Missing { column });
    }
    // `u64::from_str` would take a leading `+` too.
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| RowSelectionError::NotANumber {
            column,
            text: text.escape_debug().to_string(),
        })
}

impl RowSelection {
    /// Exactly these rows; `None` without any.
    pub fn of(rows: impl IntoIterator<Item = u64>) -> Option<Self> {
        let selection = Self::merged(rows.into_iter().map(|row| row..=row).collect());
        (!selection.ranges.is_empty()).then_some(selection)
    }

    fn merged(mut ranges: Vec<RangeInclusive<u64>>) -> Self {
        ranges.sort_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                Some(_) | None => merged.push(range),
            }
        }
        Self { ranges: merged }
    }

    pub fn contains(&self, index: u64) -> bool {
        let at = self.ranges.partition_point(|range| *range.end() < index);
        self.ranges
            .get(at)
            .is_some_and(|range| range.contains(&index))
    }

    /// The highest selected index.
    pub fn last(&self) -> u64 {
        self.ranges.last().map_or(0, |range| *range.end())
    }

    /// The first selected index that a dataset of `rows` rows does not have.
    pub fn beyond(&self, rows: u64) -> Option<u64> {
        self.ranges
            .iter()
            .find(|range| *range.end() >= rows)
            .map(|range| (*range.start()).max(rows))
    }
}

impl fmt::Display for RowSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, range) in self.ranges.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            if range.start() == range.end() {
                write!(f, "{}", range.start())?;
            } else {
                write!(f, "{}-{}", range.start(), range.end())?;
            }
        }
        Ok(())
    }
}

impl Serialize for RowSelection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A selection and a limit together: the first `limit` of the selected rows.
#[derive(Debug, Clone)]
pub struct RowFilter {
    selection: Option<RowSelection>,
    left: Option<u64>,
}

/// What to do with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowVerdict {
    Take,
    Skip,
    /// Neither this row nor any later one.
    Stop,
}

impl RowFilter {
    /// `None` for a selection means every row, for a limit as many as there are.
    pub fn new(selection: Option<RowSelection>, limit: Option<u64>) -> Self {
        Self {
            selection,
            left: limit,
        }
    }

    /// Judges rows that come in order of their index.
    pub fn judge(&mut self, index: u64) -> RowVerdict {
        if self.left == Some(0) {
            return RowVerdict::Stop;
        }
        if let Some(selection) = &self.selection {
            if index > selection.last() {
                return RowVerdict::Stop;
            }
            if !selection.contains(index) {
                return RowVerdict::Skip;
            }
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        RowVerdict::Take
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: &str) {
        let shown = match text.parse::<RowSelection>() {
            Ok(selection) => selection.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected, "{text:?}");
    }

    #[test]
    fn a_selection_is_sorted_and_merged() {
        check("3,7,10-20", "3,7,10-20");
        check("20,3,3,19,4-6", "3-6,19-20");
        check("5-9,0-20,7", "0-20");
        check(" 1 - 2 , 4 ", "1-2,4");
        check("0-18446744073709551615,7", "0-18446744073709551615");
    }

    #[test]
    fn a_broken_selection_says_where() {
        check("", "no row at column 1");
        check("3,,4", "no row at column 3");
        check("3,7,", "no row at column 5");
        check("3,x", "`x` at column 3 is not a row index");
        check("1-2-3", "`2-3` at column 3 is not a row index");
        check("+1", "`+1` at column 1 is not a row index");
        check("-1", "no row at column 1");
        check("4-", "no row at column 3");
        check("1,9-8", "the range `9-8` at column 3 ends before it starts");
        check(
            "18446744073709551616",
            "`18446744073709551616` at column 1 is not a row index",
        );
        let hint = |text: &str| text.parse::<RowSelection>().unwrap_err().hint();
        assert_eq!(hint("1,9-8"), "write `8-9`");
        assert!(hint("x").contains("`3,7,10-20`"));
    }

    #[test]
    fn selected_rows_beyond_the_dataset_are_named() {
        let rows: RowSelection = "3,10-20".parse().unwrap();
        assert_eq!(rows.beyond(21), None);
        assert_eq!(rows.beyond(15), Some(15));
        assert_eq!(rows.beyond(5), Some(10));
        assert_eq!(rows.beyond(0), Some(3));
    }

    #[test]
    fn rows_become_the_selection_that_holds_them() {
        let selection = RowSelection::of([7, 3, 4, 5, 7, 20]).unwrap();
        assert_eq!(selection.to_string(), "3-5,7,20");
        assert_eq!(RowSelection::of([]), None);
    }

    fn taken(selection: Option<&str>, limit: Option<u64>) -> Vec<u64> {
        let mut filter = RowFilter::new(selection.map(|text| text.parse().unwrap()), limit);
        let mut taken = Vec::new();
        for index in 0..10 {
            match filter.judge(index) {
                RowVerdict::Take => taken.push(index),
                RowVerdict::Skip => {}
                RowVerdict::Stop => break,
            }
        }
        taken
    }

    #[test]
    fn a_limit_takes_the_first_of_the_selected() {
        assert_eq!(taken(None, Some(3)), [0, 1, 2]);
        assert_eq!(taken(Some("7,2-4"), Some(2)), [2, 3]);
        assert_eq!(taken(Some("7,2-4"), None), [2, 3, 4, 7]);
        assert_eq!(taken(None, None).len(), 10);
        assert_eq!(taken(None, Some(0)), [0; 0]);
    }

    proptest! {
        #[test]
        fn a_selection_holds_exactly_what_was_written(
            ranges in prop::collection::vec((0u64..60, 0u64..10), 1..8)
        ) {
            let text: Vec<_> = ranges.iter().map(|(a, n)| format!("{a}-{}", a + n)).collect();
            let selection: RowSelection = text.join(",").parse().unwrap();
            let expected: BTreeSet<u64> =
                ranges.iter().flat_map(|(a, n)| *a..=a + n).collect();
            let found: BTreeSet<u64> = (0..80).filter(|i| selection.contains(*i)).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(selection.last(), *expected.last().unwrap());
            prop_assert_eq!(selection.to_string().parse::<RowSelection>().unwrap(), selection);
        }
    }
}
