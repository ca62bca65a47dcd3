/// Messages are compared up to here, in characters.
const LONGEST: usize = 300;

/// What stands for a value that was left out.
const VALUE: &str = "…";

/// The first line of a message without what differs from rollout to rollout: numbers, ids, hexadecimal,
/// UUIDs, paths, addresses and quoted values.
pub fn normalised(message: &str) -> String {
    let line = message
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or_default();
    let without_quotes = without_quoted(line);
    let words: Vec<String> = without_quotes.split_whitespace().map(word).collect();
    words.join(" ").chars().take(LONGEST).collect()
}

/// Quoted values become `'…'`, whatever the quotes. An apostrophe inside a word opens nothing.
fn without_quoted(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    let mut before: Option<char> = None;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let opens = matches!(c, '\'' | '"' | '`') && !before.is_some_and(char::is_alphanumeric);
        if opens && let Some(end) = closing(after, c) {
            text.push('\'');
            text.push_str(VALUE);
            text.push('\'');
            before = Some(c);
            rest = &after[end + c.len_utf8()..];
            continue;
        }
        text.push(c);
        before = Some(c);
        rest = after;
    }
    text
}

/// Where the quote closes: the first one that no letter or digit follows.
fn closing(text: &str, quote: char) -> Option<usize> {
    text.match_indices(quote).map(|(at, _)| at).find(|at| {
        let next = text[at + quote.len_utf8()..].chars().next();
        !next.is_some_and(char::is_alphanumeric)
    })
}

/// One word: a path or address as a whole, otherwise piece by piece between its punctuation.
fn word(word: &str) -> String {
    let core = word.trim_matches(|c: char| "()[]{},;:.!?=<>".contains(c));
    if is_path(core) {
        let start = word.find(core).unwrap_or(0);
        let (before, after) = (&word[..start], &word[start + core.len()..]);
        return format!("{before}<path>{after}");
    }
    let mut text = String::new();
    let mut piece = String::new();
    for c in word.chars() {
        // A dash belongs to an id (a UUID), a dot to a number.
        if c.is_alphanumeric() || c == '_' || c == '-' || c == '.' {
            piece.push(c);
        } else {
            text.push_str(&value_free(&piece));
            piece.clear();
            text.push(c);
        }
    }
    text.push_str(&value_free(&piece));
    text
}

fn is_path(text: &str) -> bool {
    text.contains("://")
        || text.starts_with('/') && text.len() > 1
        || text.starts_with("./")
        || text.starts_with("~/")
        || text.contains(":\\")
        || text.matches('/').count() >= 2
}

/// A piece with a digit in it is a number or an id; `utf-8`, `int64` and `gpt-4o` go the same way, which
/// puts together what is alike otherwise.
fn value_free(piece: &str) -> String {
    let number = piece.chars().any(|c| c.is_ascii_digit());
    let letters_of_an_id = piece.len() >= 8
        && piece.contains('-')
        && piece.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if !(number || letters_of_an_id) {
        return piece.to_owned();
    }
    // A full stop after a number is the sentence's.
    let stop = if piece.ends_with('.') { "." } else { "" };
    format!("<n>{stop}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::normalised;

    fn check(message: &str, expected: &str) {
        assert_eq!(normalised(message), expected, "{message}");
    }

    #[test]
    fn what_differs_from_rollout_to_rollout_is_left_out() {
        check("'price'", "'…'");
        check(
            "no tool \"add\" among `mul`, 'sub'",
            "no tool '…' among '…', '…'",
        );
        check("it said 'that's all' twice", "it said '…' twice");
        check("expected 3.5 but got -17", "expected <n> but got <n>");
        check("row 17: failed after 3s.", "row <n>: failed after <n>.");
        check("object at 0x7f3a2b is gone", "object at <n> is gone");
        check(
            "job 550e8400-e29b-41d4-a716-446655440000 was lost",
            "job <n> was lost",
        );
        check("commit deadbeef-cafe is unknown", "commit <n> is unknown");
        check(
            "[Errno 2] No such file or directory: /tmp/x/y.json",
            "[Errno <n>] No such file or directory: <path>",
        );
        check(
            "GET http://127.0.0.1:8000/v1/models failed",
            "GET <path> failed",
        );
        for path in ["~/x", "C:\\x", "x/y/z", "/x", "x://y"] {
            check(&format!("at {path} it failed"), "at <path> it failed");
        }
        check("call_abc123 has no output", "<n> has no output");
        check("first line\nsecond 5", "first line");
        check("", "");
    }

    #[test]
    fn words_stay_as_they_are() {
        for message in [
            "the tool doesn't answer",
            "list index out of range",
            "and/or is no operator",
            "division by zero",
            "can't decode it, it's broken",
        ] {
            check(message, message);
        }
    }

    proptest! {
        #[test]
        fn no_message_is_too_strange(message in ".{0,400}") {
            let once = normalised(&message);
            prop_assert!(once.chars().count() <= 300);
        }

        #[test]
        fn numbers_make_no_difference(a in any::<u32>(), b in any::<i64>(), c in -1e6..1e6f64) {
            let with = |a: u32, b: i64, c: f64| {
                normalised(&format!("item {a} of order {b} costs {c}, '{a}'"))
            };
            prop_assert_eq!(with(a, b, c), with(1, 2, 3.0));
        }
    }
}
