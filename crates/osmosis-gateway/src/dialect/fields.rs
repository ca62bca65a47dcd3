//! Takes a request apart field by field; what does not fit is refused by its name and place.

use serde_json::{Map, Value};

use crate::error_reply::ErrorReply;

/// An object of a request. A field is taken at most once; what is never taken is [`Fields::rest`].
#[derive(Debug)]
pub(super) struct Fields {
    /// What stands before a field's name in messages: nothing, or `input[3].`.
    place: String,
    map: Map<String, Value>,
}

impl Fields {
    pub(super) fn top(map: Map<String, Value>) -> Self {
        Self {
            place: String::new(),
            map,
        }
    }

    pub(super) fn of(place: &str, value: Value) -> Result<Self, ErrorReply> {
        match value {
            Value::Object(map) => Ok(Self {
                place: format!("{place}."),
                map,
            }),
            _ => Err(ErrorReply::bad_field(
                place,
                format!("`{place}` is not an object"),
            )),
        }
    }

    /// Where a field stands.
    pub(super) fn place(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// The value of a field, when there is one that is not null.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ErrorReply> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "is not a text")),
        }
    }

    pub(super) fn needed_text(&mut self, name: &str) -> Result<String, ErrorReply> {
        match self.text(name)? {
            Some(text) => Ok(text),
            None => Err(self.wrong(name, "is missing")),
        }
    }

    pub(super) fn list(&mut self, name: &str) -> Result<Vec<Value>, ErrorReply> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(self.wrong(name, "is not an array")),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ErrorReply> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(self.wrong(name, "is neither true nor false")),
        }
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<Self>, ErrorReply> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => Self::of(&self.place(name), value).map(Some),
        }
    }

    /// Refuses a field that asks for something: more than null, false or nothing in a list.
    pub(super) fn refuse(&mut self, name: &str, why: &str) -> Result<(), ErrorReply> {
        match self.take(name) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(Value::Array(items)) if items.is_empty() => Ok(()),
            Some(_) => Err(self.unsupported(name, why)),
        }
    }

    /// More than one answer to a call is something only chat has.
    pub(super) fn refuse_several_choices(&mut self) -> Result<(), ErrorReply> {
        match self.take("n") {
            None => Ok(()),
            Some(n) if n.as_u64() == Some(1) => Ok(()),
            Some(_) => Err(self.unsupported("n", "this dialect has one answer to a call")),
        }
    }

    pub(super) fn wrong(&self, name: &str, what: &str) -> ErrorReply {
        let place = self.place(name);
        ErrorReply::bad_field(&place, format!("`{place}` {what}"))
    }

    pub(super) fn unsupported(&self, name: &str, why: &str) -> ErrorReply {
        let place = self.place(name);
        ErrorReply::unsupported_field(&place, format!("`{place}` is not served here: {why}"))
    }

    /// Adds what nobody took: unknown here, perhaps not to the policy. It replaces nothing.
    pub(super) fn rest_into(self, chat: &mut Map<String, Value>) {
        for (name, value) in self.map {
            chat.entry(name).or_insert(value);
        }
    }

    /// What nobody took.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.map
    }
}

/// Puts a value into an object, unless there is none.
pub(super) fn put(map: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        map.insert(name.to_owned(), value);
    }
}
