use std::fmt::Write as _;

/// Appends `text` as a JSON string, with its quotes.
pub(crate) fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_control() || matches!(c, '"' | '\\')) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            other => {
                // Writing to a string can't fail.
                let _ = write!(out, "\\u{other:04x}");
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_from_its_json_string() {
        let all: String = (0..=0x7f_u8).map(char::from).collect();
        for text in ["", "plain", "é\u{10ffff}\u{2028}", "\"\\", &all] {
            let mut json = String::new();
            push_json_string(&mut json, text);
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
