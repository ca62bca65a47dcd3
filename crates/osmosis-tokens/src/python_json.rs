//! JSON as Python's `json.dumps` writes it, which is what models saw in training.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use osmosis_core::MAX_JSON_DEPTH;

/// The arguments of `json.dumps` that templates use.
#[derive(Debug, Clone)]
pub(crate) struct Style {
    pub ensure_ascii: bool,
    /// Spaces, or any text, for each level; nothing keeps all on one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            sort_keys: false,
        }
    }
}

pub(crate) fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write_value(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_value(out: &mut String, value: &Value, style: &Style, level: usize) -> Result<(), Error> {
    if level > MAX_JSON_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson: a value is nested deeper than {MAX_JSON_DEPTH} levels"),
        ));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => {
            let _ = write!(out, "{value}");
        }
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Map => {
            let mut entries = Vec::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                entries.push((key_text(&key)?, item));
            }
            if style.sort_keys {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_items(
                out,
                style,
                level,
                ('{', '}'),
                entries,
                |out, (key, item)| {
                    write_string(out, &key, style);
                    out.push_str(&style.key_separator);
                    write_value(out, &item, style, level + 1)
                },
            )?;
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items(out, style, level, ('[', ']'), items, |out, item| {
                write_value(out, &item, style, level + 1)
            })?;
        }
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a value of type {kind} can't be written as JSON"),
            ));
        }
    }
    Ok(())
}

fn write_items<T>(
    out: &mut String,
    style: &Style,
    level: usize,
    (open, close): (char, char),
    items: Vec<T>,
    mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    let empty = items.is_empty();
    for (n, item) in items.into_iter().enumerate() {
        if n > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, style, level + 1);
        write(out, item)?;
    }
    if !empty {
        new_line(out, style, level);
    }
    out.push(close);
    Ok(())
}

fn new_line(out: &mut String, style: &Style, level: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..level {
            out.push_str(indent);
        }
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.to_string()),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => dumps(key, &Style::default()),
        kind => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value of type {kind} can't be a JSON key"),
        )),
    }
}

fn write_string(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `repr` of a Python float: the shortest digits, with an exponent below 1e-4 and from 1e16.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let mut plain = number.to_string();
        if !plain.contains('.') {
            plain.push_str(".0");
        }
        return plain;
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::to_template_value;

    fn dump(json: &str, style: &Style) -> String {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        dumps(&to_template_value(&value), style).unwrap()
    }

    #[test]
    fn json_is_written_as_python_does() {
        let text =
            r#"{"b": [1, -2.5, true, null, {}], "a": {"ü": "é\"\\\n\u0001</>&'🙂"}, "empty": []}"#;
        assert_eq!(dump(text, &Style::default()), text);
    }

    #[test]
    fn indentation_puts_each_item_on_its_own_line() {
        let style = Style {
            indent: Some("  ".to_owned()),
            item_separator: ",".to_owned(),
            sort_keys: true,
            ..Style::default()
        };
        assert_eq!(
            dump(r#"{"b": [1, 2], "a": {}}"#, &style),
            "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2\n  ]\n}"
        );
    }

    #[test]
    fn what_is_nested_is_indented_by_its_depth() {
        let style = Style {
            indent: Some(" ".to_owned()),
            item_separator: ",".to_owned(),
            ..Style::default()
        };
        assert_eq!(
            dump(r#"[[1, [2]], {"a": {"b": 3}}]"#, &style),
            "[\n [\n  1,\n  [\n   2\n  ]\n ],\n {\n  \"a\": {\n   \"b\": 3\n  }\n }\n]"
        );
    }

    #[test]
    fn spaces_stay_and_control_characters_are_escaped() {
        let text = "\" ~\u{7f}\\u001f\"";
        assert_eq!(dump(text, &Style::default()), text);
        let style = Style {
            ensure_ascii: true,
            ..Style::default()
        };
        assert_eq!(dump(text, &style), r#"" ~\u007f\u001f""#);
    }

    #[test]
    fn ascii_output_uses_surrogate_pairs() {
        let style = Style {
            ensure_ascii: true,
            ..Style::default()
        };
        assert_eq!(dump("\"é🙂\"", &style), r#""\u00e9\ud83d\ude42""#);
    }

    #[test]
    fn floats_look_like_pythons() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (-2e300, "-2e+300"),
        ] {
            assert_eq!(float(number), text);
        }
    }
}
