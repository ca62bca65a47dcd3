//! When two rows are the same row: to whoever is trained on one and measured on the other.
//!
//! The order of columns, how a number is written, whitespace, and whether a missing value is `null` make no
//! difference. The columns that nobody is given don't either.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{Row, Taking};

/// A digest of what a row says. Equal rows have equal digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentDigest(u128);

/// What rows are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowContent {
    /// Prompt, label and metadata, or the whole row.
    pub all: ContentDigest,
    /// Prompt and label alone; `None` for a row without a prompt.
    pub question: Option<ContentDigest>,
}

/// A marker for reports and no part of the task.
const MARKER: &str = "unseen_phrasing";

impl Row {
    /// What the row says to an agent that takes this of it, and to its grader.
    pub fn content(&self, taking: Taking) -> RowContent {
        match taking {
            Taking::WholeRows => RowContent {
                all: Canonical::of("row", |canonical| {
                    let mut row: Map<String, Value> = self.body.read().unwrap_or_default();
                    if let Some(metadata) = row.get("metadata").and_then(held_object) {
                        row.insert("metadata".to_owned(), metadata);
                    }
                    canonical.object(&row);
                }),
                question: None,
            },
            Taking::Columns => {
                let question = |canonical: &mut Canonical| {
                    for message in &self.prompt {
                        canonical.object(message);
                    }
                    canonical.text(self.label.as_deref().unwrap_or_default());
                };
                RowContent {
                    all: Canonical::of("columns", |canonical| {
                        question(canonical);
                        let metadata = self.metadata.as_ref();
                        let metadata = metadata.and_then(|it| it.read::<Map<String, Value>>().ok());
                        canonical.object(&metadata.unwrap_or_default());
                    }),
                    question: (!self.prompt.is_empty())
                        .then(|| Canonical::of("question", question)),
                }
            }
        }
    }
}

/// The object in a text, as metadata may be.
fn held_object(value: &Value) -> Option<Value> {
    let parsed = serde_json::from_str(value.as_str()?).ok()?;
    matches!(parsed, Value::Object(_)).then_some(parsed)
}

/// Values in the one form that all ways to write them share.
struct Canonical(Sha256);

impl Canonical {
    fn of(what: &str, write: impl FnOnce(&mut Self)) -> ContentDigest {
        let mut canonical = Self(Sha256::new());
        canonical.part(b'd', what.as_bytes());
        write(&mut canonical);
        let digest: [u8; 32] = canonical.0.finalize().into();
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        ContentDigest(u128::from_le_bytes(first))
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.part(b'n', b""),
            // A table of text has texts where others have booleans and numbers.
            Value::Bool(value) => self.text(if *value { "true" } else { "false" }),
            Value::Number(number) => self.text(&number.to_string()),
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                self.part(b'a', &(items.len() as u64).to_le_bytes());
                for item in items {
                    self.value(item);
                }
            }
            Value::Object(object) => self.object(object),
        }
    }

    fn object(&mut self, object: &Map<String, Value>) {
        let mut fields: Vec<(&String, &Value)> = object
            .iter()
            .filter(|(name, value)| !value.is_null() && *name != MARKER)
            .collect();
        fields.sort_unstable_by_key(|(name, _)| *name);
        self.part(b'o', &(fields.len() as u64).to_le_bytes());
        for (name, value) in fields {
            self.part(b'f', name.as_bytes());
            self.value(value);
        }
    }

    fn text(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        let number = plain_number(&text);
        self.part(b't', number.as_ref().unwrap_or(&text).as_bytes());
    }

    fn part(&mut self, kind: u8, bytes: &[u8]) {
        self.0.update([kind]);
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

/// A number as its digits and a power of ten: `1.50`, `15e-1` and `1.5` are the same, and no digit is lost.
/// `None` for a text that is no number of JSON.
fn plain_number(text: &str) -> Option<String> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text),
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((_, "")) => return None,
        Some((whole, fraction)) => (whole, fraction),
        None => (mantissa, ""),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_padded = whole.len() > 1 && whole.starts_with('0');
    if whole.is_empty() || is_padded || !digits(whole) || !digits(fraction) {
        return None;
    }
    let all = format!("{whole}{fraction}");
    let all = all.trim_start_matches('0');
    let short = all.trim_end_matches('0');
    if short.is_empty() {
        return Some("0".to_owned());
    }
    let power = exponent
        .checked_sub(i64::try_from(fraction.len()).ok()?)?
        .checked_add(i64::try_from(all.len() - short.len()).ok()?)?;
    Some(format!("{sign}{short}e{power}"))
}

#[cfg(test)]
mod tests {
    use osmosis_core::JsonText;

    use super::*;

    fn content(body: &str, taking: Taking) -> RowContent {
        let body = JsonText::parse(body).unwrap();
        crate::row::read(0, 1, body, taking)
            .unwrap()
            .content(taking)
    }

    #[track_caller]
    fn check(taking: Taking, one: &str, other: &str, same: bool) {
        let (one, other) = (content(one, taking), content(other, taking));
        assert_eq!(one.all == other.all, same);
    }

    #[test]
    fn rows_are_the_same_however_they_are_written() {
        let row = r#"{"user_prompt": "What is 6 * 7?", "ground_truth": 42, "metadata": {"a": 1, "b": "x"}}"#;
        for other in [
            r#"{"metadata": {"b": "x", "a": 1.0}, "ground_truth": "42", "user_prompt": "What is 6 * 7?"}"#,
            r#"{"user_prompt": " What is 6 *\r\n7?", "label": "42.0", "metadata": "{\"a\": 1, \"b\": \"x\"}"}"#,
            r#"{"id": 9, "user_prompt": "What is 6 * 7?", "ground_truth": 4.2e1,
                "metadata": {"a": 1, "b": "x", "c": null, "unseen_phrasing": true}}"#,
        ] {
            check(Taking::Columns, row, &other.replace('\n', " "), true);
        }
        for other in [
            r#"{"user_prompt": "What is 6 * 8?", "ground_truth": 42, "metadata": {"a": 1, "b": "x"}}"#,
            r#"{"user_prompt": "What is 6 * 7?", "ground_truth": 43, "metadata": {"a": 1, "b": "x"}}"#,
            r#"{"user_prompt": "What is 6 * 7?", "ground_truth": 42, "metadata": {"a": 2, "b": "x"}}"#,
            r#"{"user_prompt": "what is 6 * 7?", "ground_truth": 42, "metadata": {"a": 1, "b": "x"}}"#,
            r#"{"system_prompt": "Think.", "user_prompt": "What is 6 * 7?", "ground_truth": 42,
                "metadata": {"a": 1, "b": "x"}}"#,
        ] {
            check(Taking::Columns, row, &other.replace('\n', " "), false);
        }
    }

    #[test]
    fn the_question_is_prompt_and_label_alone() {
        let question = |body: &str| content(body, Taking::Columns).question;
        let one = question(r#"{"user_prompt": "p", "label": "l", "metadata": {"id": 1}}"#);
        assert_eq!(
            one,
            question(r#"{"user_prompt": "p", "label": "l", "metadata": {"id": 2}}"#)
        );
        assert_ne!(
            one,
            question(r#"{"user_prompt": "p", "label": "m", "metadata": {"id": 1}}"#)
        );
        assert_eq!(question(r#"{"metadata": {"task": 1}}"#), None);
    }

    #[test]
    fn whole_rows_are_compared_by_all_their_columns() {
        let row = r#"{"messages": [{"role": "user", "content": "hi"}], "answer": 1, "none": null}"#;
        let same = r#"{"answer": "1.0", "messages": [{"content": "hi", "role": "user"}]}"#;
        check(Taking::WholeRows, row, same, true);
        let other = r#"{"messages": [{"role": "user", "content": "hi"}], "answer": 1, "id": 3}"#;
        check(Taking::WholeRows, row, other, false);
        let nested = r#"{"messages": [[{"role": "user", "content": "hi"}]], "answer": 1}"#;
        check(Taking::WholeRows, row, nested, false);
    }

    #[test]
    fn numbers_are_the_same_however_they_are_written() {
        let same = |one: &str, other: &str| {
            plain_number(one).is_some() && plain_number(one) == plain_number(other)
        };
        for (one, other) in [
            ("1.50", "15e-1"),
            ("0", "-0.0"),
            ("1200", "1.2E+3"),
            ("0.05", "5e-2"),
        ] {
            assert!(same(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("9007199254740993", "9007199254740992"),
            ("1", "-1"),
            ("1", "10"),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
        for text in [
            "",
            "007",
            "1.",
            ".5",
            "1e",
            "e5",
            "1.5.2",
            "0x10",
            "NaN",
            "--1",
            "1e99999999999999999999",
        ] {
            assert_eq!(plain_number(text), None, "{text}");
        }
    }
}
