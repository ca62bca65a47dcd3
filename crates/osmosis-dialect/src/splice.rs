//! Changes to a JSON text that leave its other bytes alone.

use std::ops::Range;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

pub(crate) const JSON_SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// A field's text; unlike `Option`, it tells `null` from absent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Field<'a>(pub(crate) Option<&'a RawValue>);

impl<'a> Field<'a> {
    /// The value, when the caller gave one that is not `null`.
    pub(crate) fn given(self) -> Option<&'a RawValue> {
        self.0.filter(|raw| raw.get() != "null")
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Field<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&'a RawValue>::deserialize(deserializer).map(|raw| Self(Some(raw)))
    }
}

/// Changes to a text, applied in one go.
pub(crate) struct Splice<'a> {
    text: &'a str,
    pub(crate) edits: Vec<(Range<usize>, String)>,
    added: String,
}

impl<'a> Splice<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self {
            text,
            edits: Vec::new(),
            added: String::new(),
        }
    }

    /// Replaces the field's value where it stands, or adds the field at the object's end.
    pub(crate) fn set(&mut self, name: &str, field: Field<'a>, value: &str) {
        if let Some(raw) = field.0 {
            let span = self.span(raw.get());
            self.edits.push((span, value.to_owned()));
        } else {
            self.added.push_str(",\"");
            self.added.push_str(name);
            self.added.push_str("\":");
            self.added.push_str(value);
        }
    }

    /// Where a part of the text stands in it.
    pub(crate) fn span(&self, part: &'a str) -> Range<usize> {
        let start = part.as_ptr() as usize - self.text.as_ptr() as usize;
        start..start + part.len()
    }

    /// The changed text; `None` when nothing changed.
    pub(crate) fn finish(mut self) -> Option<String> {
        if !self.added.is_empty()
            && let Some(end) = self.text.rfind('}')
        {
            let before = self.text[..end].trim_end_matches(JSON_SPACE);
            let comma = usize::from(before.ends_with('{'));
            let added = self.added.split_off(comma);
            self.edits.push((end..end, added));
        }
        if self.edits.is_empty() {
            return None;
        }
        self.edits.sort_by_key(|(span, _)| span.start);
        let more: usize = self.edits.iter().map(|(_, text)| text.len()).sum();
        let mut changed = String::with_capacity(self.text.len() + more);
        let mut at = 0;
        for (span, replacement) in &self.edits {
            changed.push_str(&self.text[at..span.start]);
            changed.push_str(replacement);
            at = span.end;
        }
        changed.push_str(&self.text[at..]);
        Some(changed)
    }
}
