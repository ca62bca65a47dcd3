use osmosis_core::{JsonText, JsonTextError, Redactor};
use serde::de::{Deserialize, Deserializer, IgnoredAny, Visitor};

use crate::json_string::push_json_string;

/// JSON in a string in JSON: a tool's arguments are. Deeper than this nobody looks.
const MAX_DEPTH: u32 = 4;

/// What stands in place of a number that is a secret.
const MARK: &str = "\"[redacted]\"";

/// A document without secrets, on one line. Everything else stays the text it was: `1.50` is not
/// `1.5`.
///
/// To clean the document's text would miss a secret with a quote or a line end in it, which JSON
/// spells differently, and could leave something behind that is no JSON.
pub fn clean_json(redactor: &Redactor, json: &JsonText) -> Result<JsonText, JsonTextError> {
    let text = json.as_str();
    let unusual = memchr::memchr3(b'\\', b'\n', b'\r', text.as_bytes()).is_some();
    if !unusual && redactor.clean(text) == text {
        return Ok(json.clone());
    }
    JsonText::parse(clean_document(redactor, text, 0))
}

fn clean_document(redactor: &Redactor, text: &str, depth: u32) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('"') {
        clean_between(redactor, &rest[..open], &mut clean);
        let end = open + string_length(&rest[open..]);
        clean_string(redactor, &rest[open..end], depth, &mut clean);
        rest = &rest[end..];
    }
    clean_between(redactor, rest, &mut clean);
    clean
}

/// How long the string is that a text starts with, with its quotes.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// What stands between strings: brackets, numbers, names, space.
fn clean_between(redactor: &Redactor, text: &str, clean: &mut String) {
    let is_number = |c: char| matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E');
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let number = first == '-' || first.is_ascii_digit();
        let length = if number {
            rest.find(|c| !is_number(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let part = &rest[..length];
        if number && redactor.clean(part) != part {
            clean.push_str(MARK);
        } else if matches!(first, '\n' | '\r') {
            clean.push(' ');
        } else {
            clean.push_str(part);
        }
        rest = &rest[length..];
    }
}

fn clean_string(redactor: &Redactor, literal: &str, depth: u32, clean: &mut String) {
    let Ok(Lossy(text)) = serde_json::from_str(literal) else {
        // Every string of a document is one.
        clean.push_str(MARK);
        return;
    };
    let cleaned = clean_text(redactor, &text, depth);
    if cleaned == text {
        clean.push_str(literal);
    } else {
        push_json_string(clean, &cleaned);
    }
}

fn clean_text(redactor: &Redactor, text: &str, depth: u32) -> String {
    let clean = redactor.clean(text);
    let may_be_json = depth < MAX_DEPTH && clean.trim_start().starts_with(['{', '[', '"']);
    if may_be_json && serde_json::from_str::<IgnoredAny>(&clean).is_ok() {
        let inner = clean_document(redactor, &clean, depth + 1);
        // Line ends matter as little here, but a text without secrets stays as it was.
        if inner.replace(['\n', '\r'], " ") != clean.replace(['\n', '\r'], " ") {
            return inner;
        }
    }
    clean
}

/// A string of a document, also one with half a surrogate pair.
struct Lossy(String);

impl<'de> Deserialize<'de> for Lossy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Lossy;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Lossy, E> {
                Ok(Lossy(String::from_utf8_lossy(bytes).into_owned()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(secret: &str, document: &str, expected: &str) {
        let redactor = Redactor::new([secret.to_owned()]);
        let clean = clean_json(&redactor, &JsonText::parse(document).unwrap()).unwrap();
        assert_eq!(clean.as_str(), expected);
    }

    #[test]
    fn what_holds_no_secret_stays_as_it_was() {
        for document in [
            r#"{"a": 1.50, "b": [1e400, null, true], "c": "x\u00e9\n\"y\\"}"#,
            r#""\ud800""#,
            "12345678901234567890123",
            "[]",
            r#"{"arguments": "{\"a\":\n 1.50}"}"#,
        ] {
            check("secret", document, document);
        }
    }

    #[test]
    fn secrets_go_however_json_spells_them() {
        check(
            "hunter22",
            r#"{"a": "x hunter22 y"}"#,
            r#"{"a": "x [redacted] y"}"#,
        );
        check("hunter22", r#"{"hunter22": 1}"#, r#"{"[redacted]": 1}"#);
        check("a\"b\\c", r#"["a\"b\\c"]"#, r#"["[redacted]"]"#);
        check("pässword", r#"["p\u00e4ssword"]"#, r#"["[redacted]"]"#);
        check(
            "line1\nline2",
            r#"["line1\nline2", 2]"#,
            r#"["[redacted]", 2]"#,
        );
        check(
            "hunter22",
            r#"["\ud800hunter22"]"#,
            "[\"\u{fffd}\u{fffd}\u{fffd}[redacted]\"]",
        );
    }

    #[test]
    fn a_number_that_is_a_secret_becomes_a_text() {
        check(
            "12345678",
            r#"{"pin": 12345678, "n": 1}"#,
            r#"{"pin": "[redacted]", "n": 1}"#,
        );
        check("12345678", "12345678", r#""[redacted]""#);
    }

    #[test]
    fn json_within_strings_is_looked_into() {
        check(
            "a\"b\"c",
            r#"{"arguments": "{\"key\": \"a\\\"b\\\"c\"}"}"#,
            r#"{"arguments": "{\"key\": \"[redacted]\"}"}"#,
        );
        check(
            r#"{"type":"service_account"}"#,
            r#"["{\"type\":\"service_account\"}"]"#,
            r#"["[redacted]"]"#,
        );
    }

    #[test]
    fn a_document_of_several_lines_becomes_one_line() {
        check("secret", "{\n  \"a\":\r\n 1\n}", "{   \"a\":   1 }");
    }
}
