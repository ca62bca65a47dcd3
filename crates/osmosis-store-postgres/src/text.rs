//! Texts that PostgreSQL can't store as they are: those that hold a NUL byte.

use std::borrow::Cow;

/// Before a text in which `\0` is a NUL and `\\` a backslash. A text that begins with it is escaped too.
const ESCAPED: char = '\u{1}';

/// A text as it is stored.
pub(crate) fn stored(text: &str) -> Cow<'_, str> {
    if !text.contains('\0') && !text.starts_with(ESCAPED) {
        return Cow::Borrowed(text);
    }
    let escaped = text.replace('\\', "\\\\").replace('\0', "\\0");
    Cow::Owned(format!("{ESCAPED}{escaped}"))
}

/// The text that was stored.
pub(crate) fn read(stored: String) -> String {
    let Some(escaped) = stored.strip_prefix(ESCAPED) else {
        return stored;
    };
    let mut text = String::with_capacity(escaped.len());
    let mut characters = escaped.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' if characters.next() == Some('0') => text.push('\0'),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_and_none_is_stored_with_a_nul() {
        for text in [
            "",
            "plain \\0",
            "a\0b",
            "\u{1}",
            "\u{1}a\\0\0\\",
            "\0",
            "\\\\\0\\0é",
        ] {
            let stored = stored(text).into_owned();
            assert!(!stored.contains('\0'));
            assert_eq!(read(stored), text);
        }
        assert!(matches!(stored("plain \\0"), Cow::Borrowed(_)));
    }
}
