//! Changes to a JSON text that leave every other byte as it is.

use std::ops::Range;

/// Changes to a text, applied in one go.
#[derive(Debug)]
pub struct Edits<'a> {
    text: &'a str,
    edits: Vec<(Range<usize>, String)>,
}

impl<'a> Edits<'a> {
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            edits: Vec::new(),
        }
    }

    /// Puts another value in the place of one. `value` is a part of the text.
    pub fn replace(&mut self, value: &'a str, with: &str) {
        let span = self.span(value);
        self.edits.push((span, with.to_owned()));
    }

    /// Takes a field out of its object: name, value and one comma. `value` is a part of the text.
    pub fn remove_field(&mut self, value: &'a str) {
        let Range { start, end } = self.span(value);
        let before = self.text[..start].trim_end_matches(SPACE);
        let before = before.strip_suffix(':').unwrap_or(before);
        let before = before.trim_end_matches(SPACE);
        let before = before.strip_suffix('"').unwrap_or(before);
        // Names that are looked for contain no quote, escaped or not.
        let name = before.rfind('"').unwrap_or(before.len());
        let before = self.text[..name].trim_end_matches(SPACE);
        let span = if let Some(before) = before.strip_suffix(',') {
            before.len()..end
        } else {
            let after = self.text[end..].trim_start_matches(SPACE);
            match after.strip_prefix(',') {
                Some(after) => name..self.text.len() - after.trim_start_matches(SPACE).len(),
                None => name..end,
            }
        };
        self.edits.push((span, String::new()));
    }

    /// Adds fields, written as JSON and parted by commas, at the end of the outermost object.
    pub fn append_fields(&mut self, fields: &str) {
        let Some(end) = self.text.rfind('}') else {
            return;
        };
        let is_empty = self.text[..end].trim_end_matches(SPACE).ends_with('{');
        let comma = if is_empty { "" } else { "," };
        self.edits.push((end..end, format!("{comma}{fields}")));
    }

    /// The changed text; `None` when nothing changed.
    pub fn finish(mut self) -> Option<String> {
        if self.edits.is_empty() {
            return None;
        }
        self.edits.sort_by_key(|(span, _)| span.start);
        let mut changed = String::with_capacity(self.text.len());
        let mut at = 0;
        for (span, with) in &self.edits {
            // Two fields that are taken out may share a comma.
            changed.push_str(self.text.get(at..span.start).unwrap_or_default());
            changed.push_str(with);
            at = at.max(span.end);
        }
        changed.push_str(&self.text[at..]);
        Some(changed)
    }

    fn span(&self, part: &'a str) -> Range<usize> {
        let start = part.as_ptr() as usize - self.text.as_ptr() as usize;
        start..start + part.len()
    }
}

const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

#[cfg(test)]
mod tests {
    use super::*;

    fn part<'a>(text: &'a str, part: &str) -> &'a str {
        let at = text.find(part).unwrap();
        &text[at..at + part.len()]
    }

    #[test]
    fn a_field_goes_with_one_comma_wherever_it_stands() {
        for (text, expected) in [
            (r#"{"a":1,"x":[7],"b":2}"#, r#"{"a":1,"b":2}"#),
            (r#"{"x":[7],"b":2}"#, r#"{"b":2}"#),
            (r#"{"x": [7], "b": 2}"#, r#"{"b": 2}"#),
            (r#"{"a": 1, "x": [7]}"#, r#"{"a": 1}"#),
            (r#"{"x":[7]}"#, "{}"),
            ("{\"a\":1 ,\n \"x\" : [7] }", "{\"a\":1  }"),
        ] {
            let mut edits = Edits::new(text);
            edits.remove_field(part(text, "[7]"));
            assert_eq!(edits.finish().unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn neighbours_can_go_together_and_values_can_change() {
        let text = r#"{"x":[7],"y":[8]}"#;
        let mut edits = Edits::new(text);
        edits.remove_field(part(text, "[8]"));
        edits.remove_field(part(text, "[7]"));
        assert_eq!(edits.finish().unwrap(), "{}");
        let mut edits = Edits::new(text);
        edits.replace(part(text, "[7]"), "null");
        edits.append_fields("\"z\":1");
        assert_eq!(edits.finish().unwrap(), r#"{"x":null,"y":[8],"z":1}"#);
        let mut edits = Edits::new("{ }");
        edits.append_fields("\"z\":1");
        assert_eq!(edits.finish().unwrap(), r#"{ "z":1}"#);
        assert_eq!(Edits::new(text).finish(), None);
    }
}
