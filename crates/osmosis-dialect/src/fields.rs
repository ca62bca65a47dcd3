//! Takes a request apart field by field; what does not fit is refused by its name and place.

use serde_json::{Map, Value};

use crate::rejection::RequestError;

/// An object of a request. A field is taken at most once; what is never taken is [`Fields::rest`].
#[derive(Debug)]
pub(crate) struct Fields {
    /// What stands before a field's name in messages: nothing, or `input[3].`.
    place: String,
    map: Map<String, Value>,
}

impl Fields {
    pub(crate) fn top(map: Map<String, Value>) -> Self {
        Self {
            place: String::new(),
            map,
        }
    }

    pub(crate) fn of(place: &str, value: Value) -> Result<Self, RequestError> {
        match value {
            Value::Object(map) => Ok(Self {
                place: format!("{place}."),
                map,
            }),
            _ => Err(RequestError::bad_field(
                place,
                format!("`{place}` is not an object"),
            )),
        }
    }

    /// Where a field stands.
    pub(crate) fn place(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// The value of a field, when there is one that is not null.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "is not a text")),
        }
    }

    pub(crate) fn needed_text(&mut self, name: &str) -> Result<String, RequestError> {
        match self.text(name)? {
            Some(text) => Ok(text),
            None => Err(self.wrong(name, "is missing")),
        }
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Vec<Value>, RequestError> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(self.wrong(name, "is not an array")),
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, RequestError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(self.wrong(name, "is neither true nor false")),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Self>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => Self::of(&self.place(name), value).map(Some),
        }
    }

    /// Refuses a field that asks for something: more than null, false or nothing in a list.
    pub(crate) fn refuse(&mut self, name: &str, why: &str) -> Result<(), RequestError> {
        match self.take(name) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(Value::Array(items)) if items.is_empty() => Ok(()),
            Some(_) => Err(self.unsupported(name, why)),
        }
    }

    /// More than one answer to a call is something only chat has.
    pub(crate) fn refuse_several_choices(&mut self) -> Result<(), RequestError> {
        match self.take("n") {
            None => Ok(()),
            Some(n) if n.as_u64() == Some(1) => Ok(()),
            Some(_) => Err(self.unsupported("n", "this dialect has one answer to a call")),
        }
    }

    pub(crate) fn wrong(&self, name: &str, what: &str) -> RequestError {
        let place = self.place(name);
        RequestError::bad_field(&place, format!("`{place}` {what}"))
    }

    pub(crate) fn unsupported(&self, name: &str, why: &str) -> RequestError {
        let place = self.place(name);
        RequestError::unsupported_field(&place, format!("`{place}` is not served here: {why}"))
    }

    /// Adds what nobody took: unknown here, perhaps not to the policy. It replaces nothing.
    pub(crate) fn rest_into(self, chat: &mut Map<String, Value>) {
        for (name, value) in self.map {
            chat.entry(name).or_insert(value);
        }
    }

    /// What nobody took.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }
}

/// Puts a value into an object, unless there is none.
pub(crate) fn put(map: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        map.insert(name.to_owned(), value);
    }
}
