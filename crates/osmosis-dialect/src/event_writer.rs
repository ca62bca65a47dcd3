//! Writes named server-sent events.

use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value};

/// Events that are not sent yet.
#[derive(Debug, Default)]
pub(crate) struct EventWriter {
    written: BytesMut,
    /// The number of the next event; `None` in a dialect that does not count them.
    next: Option<u64>,
}

impl EventWriter {
    pub(crate) fn numbered() -> Self {
        Self {
            written: BytesMut::new(),
            next: Some(0),
        }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.next.unwrap_or(0)
    }

    /// Writes an event of this name, with its type and number among the fields.
    pub(crate) fn event(&mut self, name: &str, fields: Value) {
        let mut data = Map::new();
        data.insert("type".to_owned(), Value::from(name));
        if let Some(number) = &mut self.next {
            data.insert("sequence_number".to_owned(), Value::from(*number));
            *number += 1;
        }
        if let Value::Object(fields) = fields {
            data.extend(fields);
        }
        let data = Value::Object(data).to_string();
        for part in ["event: ", name, "\ndata: ", &data, "\n\n"] {
            self.written.extend_from_slice(part.as_bytes());
        }
    }

    pub(crate) fn take(&mut self) -> Bytes {
        self.written.split().freeze()
    }
}
