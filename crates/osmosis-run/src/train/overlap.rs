//! Rows that are trained on and held out at once.

use std::collections::HashMap;
use std::fmt::Write as _;

use camino::Utf8Path;
use osmosis_data::{ContentDigest, RowContent};

use crate::reports::{ErrorDetails, OverlappingRow};
use crate::{RunError, RunErrorKind};

/// So many pairs are named.
const NAMED: usize = 5;

/// Held-out rows, to be compared with those that are trained on. Only digests are kept of them.
#[derive(Debug, Default)]
pub(crate) struct HeldOutContents {
    by_content: HashMap<ContentDigest, Found>,
    /// By prompt and label alone.
    by_question: HashMap<ContentDigest, Found>,
}

/// Held-out rows of one content.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// Of the first.
    line: u64,
    rows: u64,
    is_trained_on: bool,
}

/// What both sides have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Overlap {
    /// Held-out rows that are trained on.
    pub(crate) rows: u64,
    /// Lines of the dataset and of the held-out rows; the first ones.
    pub(crate) pairs: Vec<(u64, u64)>,
    /// Held-out rows that have prompt and label of a row to train on, and other metadata.
    pub(crate) alike: u64,
    pub(crate) first_alike: Option<(u64, u64)>,
}

impl HeldOutContents {
    pub(crate) fn add(&mut self, line: u64, content: &RowContent) {
        let add = |digest: Option<ContentDigest>, found: &mut HashMap<ContentDigest, Found>| {
            let Some(digest) = digest else { return };
            let found = found.entry(digest).or_insert(Found {
                line,
                rows: 0,
                is_trained_on: false,
            });
            found.rows += 1;
        };
        add(Some(content.all), &mut self.by_content);
        add(content.question, &mut self.by_question);
    }

    /// Compares a row to train on.
    pub(crate) fn compare(&mut self, line: u64, content: &RowContent, overlap: &mut Overlap) {
        if let Some(found) = self.by_content.get_mut(&content.all) {
            if !std::mem::replace(&mut found.is_trained_on, true) {
                overlap.rows += found.rows;
                if overlap.pairs.len() < NAMED {
                    overlap.pairs.push((line, found.line));
                }
            }
            return;
        }
        let question = content.question.as_ref();
        if let Some(found) = question.and_then(|digest| self.by_question.get_mut(digest))
            && !std::mem::replace(&mut found.is_trained_on, true)
        {
            overlap.alike += found.rows;
            overlap.first_alike.get_or_insert((line, found.line));
        }
    }
}

impl Overlap {
    /// Refuses what is not held out, naming both places of the first rows.
    pub(crate) fn check(
        &self,
        held_out: u64,
        dataset: &Utf8Path,
        eval_dataset: &Utf8Path,
    ) -> Result<(), RunError> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut message = format!(
            "{} of {held_out} held-out rows are also rows to train on: what is measured on them says \
             nothing about other rows",
            self.rows
        );
        for (line, held_out) in &self.pairs {
            let _ = write!(
                message,
                "\n  {dataset}:{line} is held out at {eval_dataset}:{held_out}"
            );
        }
        let more = self.rows.saturating_sub(self.pairs.len() as u64);
        if more > 0 {
            let _ = write!(message, "\n  and {more} more");
        }
        let rows = self.pairs.iter().map(|(line, held_out)| OverlappingRow {
            dataset: dataset.to_owned(),
            line: *line,
            eval_dataset: eval_dataset.to_owned(),
            eval_line: *held_out,
        });
        Err(RunError::failed(RunErrorKind::HeldOutOverlap, message)
            .hint(
                "hold out other rows, or write `allow_overlap = true` in [training] if you mean it",
            )
            .details(ErrorDetails::Overlap {
                overlap: self.rows,
                held_out,
                rows: rows.collect(),
            }))
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::JsonText;
    use osmosis_data::{Row, Taking};
    use serde_json::json;

    use super::*;

    fn content(prompt: &str, id: u64) -> RowContent {
        let body = json!({"user_prompt": prompt, "label": "x", "metadata": {"id": id}});
        let row = Row::from_body(0, 1, &JsonText::of(&body).unwrap()).unwrap();
        row.content(Taking::Columns)
    }

    fn overlap(train: &[(&str, u64)], held_out: &[(&str, u64)]) -> Overlap {
        let mut contents = HeldOutContents::default();
        for (row, line) in held_out.iter().zip(1..) {
            contents.add(line, &content(row.0, row.1));
        }
        let mut overlap = Overlap::default();
        for (row, line) in train.iter().zip(1..) {
            contents.compare(line, &content(row.0, row.1), &mut overlap);
        }
        overlap
    }

    #[test]
    fn every_held_out_row_that_is_trained_on_is_counted_once() {
        let found = overlap(
            &[("a", 1), ("b", 1), ("a", 1), ("c", 1)],
            &[("d", 1), ("a", 1), ("a", 1), ("c", 1)],
        );
        assert_eq!(found.rows, 3);
        assert_eq!(found.pairs, [(1, 2), (4, 4)]);
        let error = found
            .check(4, "data/d.jsonl".into(), "data/e.jsonl".into())
            .unwrap_err();
        insta::assert_snapshot!(error.message(), @r"
        3 of 4 held-out rows are also rows to train on: what is measured on them says nothing about other rows
          data/d.jsonl:1 is held out at data/e.jsonl:2
          data/d.jsonl:4 is held out at data/e.jsonl:4
          and 1 more
        ");
    }

    #[test]
    fn rows_that_differ_in_metadata_alone_are_alike() {
        let found = overlap(&[("a", 1), ("b", 1)], &[("a", 2), ("c", 1)]);
        assert_eq!((found.rows, found.alike), (0, 1));
        assert_eq!(found.first_alike, Some((1, 1)));
        assert!(found.check(2, "d".into(), "e".into()).is_ok());
    }
}
