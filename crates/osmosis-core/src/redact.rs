mod spelling;

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::AhoCorasick;

use crate::Failure;

/// The start of every gateway key, by which a key is recognised in any text.
pub const KEY_PREFIX: &str = "osm-";

/// A key has at least this many characters after its prefix.
const KEY_MIN_LENGTH: usize = 24;

const MARK: &str = "[redacted]";

/// Takes secrets out of texts before they are written anywhere: as they are, and as JSON, a URL or base64 has them.
///
/// ```
/// use osmosis_core::Redactor;
///
/// let redactor = Redactor::new([r#"pa"ss/wörd"#.to_owned()]);
/// assert_eq!(redactor.clean(r#"{"pw": "pa\"ss/w\u00f6rd"}"#), r#"{"pw": "[redacted]"}"#);
/// assert_eq!(redactor.clean("?pw=pa%22ss%2Fw%c3%b6rd&x=1"), "?pw=[redacted]&x=1");
/// ```
#[derive(Clone, Default)]
pub struct Redactor {
    secrets: usize,
    /// Finds every form of every secret in one pass; `None` without secrets.
    forms: Option<AhoCorasick>,
    /// A form is so long that tools break it into lines.
    long: bool,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.secrets)
    }
}

impl Redactor {
    /// Secrets of fewer than four characters are left alone: they would blot out ordinary text.
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let secrets: BTreeSet<String> = secrets.into_iter().filter(|s| s.len() >= 4).collect();
        if secrets.is_empty() {
            return Self::default();
        }
        let forms = spelling::forms(&secrets);
        #[expect(clippy::expect_used, reason = "it fails only for gigabytes of secrets")]
        let finder = AhoCorasick::new(&forms).expect("secrets are short");
        Self {
            secrets: secrets.len(),
            long: forms.iter().any(|form| form.len() > spelling::LINE),
            forms: Some(finder),
        }
    }

    /// The text without secrets and gateway keys.
    pub fn clean(&self, text: &str) -> String {
        let mut found = key_places(text);
        if let Some(forms) = &self.forms {
            spelling::find(forms, self.long, text, &mut found);
        }
        without(text, found)
    }

    pub fn clean_failure(&self, failure: Failure) -> Failure {
        Failure {
            category: failure.category,
            kind: failure.kind,
            message: self.clean(&failure.message),
            traceback: failure.traceback.map(|text| self.clean(&text)),
        }
    }
}

fn key_places(text: &str) -> Vec<Range<usize>> {
    let mut found = vec![];
    let mut at = 0;
    while let Some(next) = text[at..].find(KEY_PREFIX) {
        let start = at + next;
        let tail = &text[start + KEY_PREFIX.len()..];
        let length = tail.bytes().take_while(u8::is_ascii_alphanumeric).count();
        at = start + KEY_PREFIX.len() + length;
        if length >= KEY_MIN_LENGTH {
            found.push(start..at);
        }
    }
    found
}

/// The text with a mark in place of each range; ranges that overlap are one.
fn without(text: &str, mut found: Vec<Range<usize>>) -> String {
    found.sort_unstable_by_key(|range| range.start);
    let mut clean = String::with_capacity(text.len());
    // What is before this stands in the clean text, or was left out of it.
    let mut done = 0;
    for range in found {
        if range.start >= done {
            clean.push_str(&text[done..range.start]);
            clean.push_str(MARK);
        }
        done = done.max(range.end);
    }
    clean.push_str(&text[done..]);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_secrets_go_and_everything_else_stays() {
        let key = format!("{KEY_PREFIX}{}", "a1B2".repeat(10));
        let redactor = Redactor::new([
            "s3cret-value".to_owned(),
            "s3cret".to_owned(),
            "ab".to_owned(),
        ]);
        assert_eq!(
            redactor.clean(&format!(
                "Bearer {key}, osm-short, s3cret-value, s3cret, ab"
            )),
            "Bearer [redacted], osm-short, [redacted], [redacted], ab"
        );
        assert_eq!(redactor.clean("osm-"), "osm-");
    }

    /// A line for each form that is left in a text.
    fn left(secret: &str, texts: &[&str]) -> String {
        let redactor = Redactor::new([secret.to_owned()]);
        let missed = texts
            .iter()
            .filter(|text| redactor.clean(text) != format!("<{MARK}>"));
        missed.copied().collect::<Vec<&str>>().join("\n")
    }

    #[test]
    fn a_secret_is_found_as_json_a_url_and_python_spell_it() {
        let texts = [
            "<pä\"s\\ /é😀>",
            // JSON: as ours, as Python's, PHP's, Go's and .NET's writers have it.
            r#"<pä\"s\\ /é😀>"#,
            r#"<p\u00e4\"s\\ /\u00e9\ud83d\ude00>"#,
            r#"<p\u00E4\"s\\ \/\u00E9\uD83D\uDE00>"#,
            r"<p\u00E4\u0022s\\ \/\u00E9\uD83D\uDE00>",
            // JSON in JSON, and once more.
            r#"<p\\u00e4\\\"s\\\\ /\\u00e9\\ud83d\\ude00>"#,
            r#"<p\\\\u00e4\\\\\\\"s\\\\\\\\ /\\\\u00e9\\\\ud83d\\\\ude00>"#,
            // URLs, also within JSON and around it.
            "<p%C3%A4%22s%5C%20%2F%C3%A9%F0%9F%98%80>",
            "<p%c3%a4%22s%5c%20/%c3%a9%f0%9f%98%80>",
            "<p%C3%A4%22s%5C+%2F%C3%A9%F0%9F%98%80>",
            "<p%5Cu00e4%5C%22s%5C%5C%20%2F%5Cu00e9%5Cud83d%5Cude00>",
            "<p%25C3%25A4%2522s%255C%2520%252F%25C3%25A9%25F0%259F%2598%2580>",
            // Python's `repr` of bytes.
            r#"<p\xc3\xa4"s\\ /\xc3\xa9\xf0\x9f\x98\x80>"#,
        ];
        assert_eq!(left("pä\"s\\ /é😀", &texts), "");
        // A password as the URL of a database has it gives away the password itself.
        assert_eq!(
            left(
                "p%40ss\"word",
                &["<p%40ss\\\"word>", "<p@ss\"word>", "<p%40ss%22word>"]
            ),
            ""
        );
    }

    #[test]
    fn a_secret_is_found_in_base64_wherever_it_stands_in_what_was_encoded() {
        use base64::Engine as _;
        use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
        let secret = "hün>?ter2~~";
        let redactor = Redactor::new([secret.to_owned()]);
        for before in ["", "u", "us", "use", "user:"] {
            for after in ["", "x", "xy"] {
                let text = format!("{before}{secret}{after}");
                for encoded in [
                    STANDARD.encode(&text),
                    URL_SAFE.encode(&text),
                    STANDARD_NO_PAD.encode(&text),
                ] {
                    for form in [
                        encoded.clone(),
                        encoded
                            .replace('+', "%2B")
                            .replace('/', "%2f")
                            .replace('=', "%3D"),
                    ] {
                        let clean = redactor.clean(&form);
                        assert!(clean.contains(MARK), "{form}");
                        // What is left are the characters that share bits with what stands beside it.
                        assert!(
                            form.len() - (clean.len() - MARK.len()) >= secret.len() * 4 / 3 - 2,
                            "{clean}"
                        );
                    }
                }
            }
        }
        // Tools break long lines.
        let long = "0123456789abcdef".repeat(8);
        let redactor = Redactor::new([long.clone()]);
        let encoded = STANDARD.encode(format!("k{long}"));
        let lines: Vec<&str> = encoded
            .as_bytes()
            .chunks(76)
            .map(|line| std::str::from_utf8(line).unwrap())
            .collect();
        for end in ["\n", "\r\n", "\\n"] {
            let clean = redactor.clean(&lines.join(end));
            assert!(clean.len() < MARK.len() + 6, "{clean}");
        }
    }

    #[test]
    fn json_stays_json_and_what_holds_no_secret_stays_as_it_was() {
        let redactor = Redactor::new([
            "\"quoted\\".to_owned(),
            "tail\\".to_owned(),
            "over-lap".to_owned(),
            "lap-over".to_owned(),
        ]);
        for value in [
            "\"quoted\\",
            "x\\\"quoted\\",
            "\"quoted\\\\n",
            "tail\\\\",
            "tail\\\"",
            "a tail\\ \\ \n%zz \\u12 100%",
        ] {
            let text = serde_json::to_string(&[value]).unwrap();
            let clean = redactor.clean(&text);
            let [inner] = serde_json::from_str::<[String; 1]>(&clean)
                .unwrap_or_else(|error| panic!("{clean}: {error}"));
            assert!(inner.contains(MARK), "{clean}");
        }
        assert_eq!(
            redactor.clean("<over-lap-over><over-lapover-lap>"),
            "<[redacted]><[redacted][redacted]>"
        );
        for text in [r"C:\users\new \ud83d \u00e4 %41 100% \", "", "é\\"] {
            assert_eq!(redactor.clean(text), text);
        }
    }
}
