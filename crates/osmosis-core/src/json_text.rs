use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON document that we carry but do not interpret: prompts, messages, metadata.
///
/// In JSON it appears as the document itself, in msgpack as a string that holds the document, so
/// nothing between the user's process and the store re-encodes what the user produced.
#[derive(Clone)]
pub struct JsonText(Box<RawValue>);

/// Arrays and objects that stand within each other in a document of a user's. Readers recurse, ours stop at
/// 127, and an export puts documents into documents. The Python SDK has the same limit.
pub const MAX_JSON_DEPTH: usize = 100;

/// What is wrong with a document of more levels.
#[derive(Debug, thiserror::Error)]
#[error("nested deeper than {MAX_JSON_DEPTH} levels")]
pub(crate) struct TooDeep;

/// A text that should have been JSON.
#[derive(Debug, thiserror::Error)]
#[error("not a JSON document: {0}")]
pub struct JsonTextError(#[from] serde_json::Error);

impl JsonText {
    /// Takes a text after checking that it is one JSON document.
    pub fn parse(text: impl Into<String>) -> Result<Self, JsonTextError> {
        Ok(Self(RawValue::from_string(text.into())?))
    }

    /// Renders a value; fails for what JSON cannot say (a map with non-text keys).
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, JsonTextError> {
        Ok(Self(serde_json::value::to_raw_value(value)?))
    }

    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Whether arrays and objects stand within each other more than [`MAX_JSON_DEPTH`] levels deep.
    /// The servers reject such a document; one that an older version recorded is carried as text.
    pub fn is_too_deep(&self) -> bool {
        json_is_too_deep(self.as_str())
    }

    /// Why nobody could read the document as values; [`json_problem`] says what that is.
    pub fn problem(&self) -> Option<String> {
        json_problem(self.as_str())
    }

    /// Reads the document as `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, JsonTextError> {
        Ok(serde_json::from_str(self.0.get())?)
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for JsonText {}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Whoever puts the document into another one could not read it, and would panic (`json!`).
        if serializer.is_human_readable() && self.problem().is_none() {
            self.0.serialize(serializer)
        } else {
            serializer.serialize_str(self.as_str())
        }
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            // Not `RawValue` directly: that fails behind serde's buffering (tagged enums, flatten).
            let value = serde_json::Value::deserialize(deserializer)?;
            Self::of(&value).map_err(serde::de::Error::custom)
        } else {
            let text = String::deserialize(deserializer)?;
            Self::parse(text).map_err(serde::de::Error::custom)
        }
    }
}

/// Any document.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for JsonText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AnyJson".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        true.into()
    }
}

/// Why a JSON text can't be read as values, though it is one: it is nested too deeply, a number is out of
/// range (`1e999`), or a text has half a surrogate pair.
pub fn json_problem(json: &str) -> Option<String> {
    if json_is_too_deep(json) {
        return Some(TooDeep.to_string());
    }
    // Only these can be out of range, or no text; most documents have neither.
    let bytes = json.as_bytes();
    let exponent = |pair: &[u8]| pair[0].is_ascii_digit() && matches!(pair[1], b'e' | b'E');
    let long = |run: &[u8]| run.len() > 300 && run[0].is_ascii_digit();
    let same = |one: &u8, other: &u8| one.is_ascii_digit() == other.is_ascii_digit();
    let suspicious =
        bytes.windows(2).any(exponent) || json.contains("\\u") || bytes.chunk_by(same).any(long);
    if !suspicious {
        return None;
    }
    serde_json::from_str::<serde_json::Value>(json)
        .err()
        .map(|error| error.to_string())
}

/// Whether arrays and objects of a JSON text stand within each other more than [`MAX_JSON_DEPTH`] levels
/// deep. Its brackets are balanced: it was parsed.
pub fn json_is_too_deep(json: &str) -> bool {
    let bytes = json.as_bytes();
    // Most documents have fewer brackets than that in all.
    let opening = |byte: &&u8| matches!(byte, b'[' | b'{');
    if bytes.iter().filter(opening).nth(MAX_JSON_DEPTH).is_none() {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_JSON_DEPTH {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The first name that an object of a JSON text has twice, at any depth: one reader would take the first value, another
/// the last. `None` also where the text ends, or stops being JSON, before there is one.
pub fn duplicate_json_field(json: &str) -> Option<String> {
    let mut found = None;
    let mut reader = serde_json::Deserializer::from_str(json);
    // What else is wrong is for others to tell.
    let _ = Duplicates(&mut found).deserialize(&mut reader);
    found
}

/// Reads any value and notes a name that comes twice.
struct Duplicates<'a>(&'a mut Option<String>);

impl<'de> DeserializeSeed<'de> for Duplicates<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Duplicates<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if let Some(name) = names.replace(name) {
                let error = A::Error::custom(format_args!("duplicate field `{name}`"));
                *self.0 = Some(name);
                return Err(error);
            }
            map.next_value_seed(Duplicates(self.0))?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Duplicates(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> JsonText {
        let text = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        JsonText::parse(text).unwrap()
    }

    #[test]
    fn a_name_that_an_object_has_twice_is_found_at_any_depth() {
        for (text, expected) in [
            (
                r#"{"a": 1, "b": [{"a": 1}, {"a": null}], "c": {"a": 1.5}}"#,
                None,
            ),
            (r#"{"a": 1, "b": true, "a": 1}"#, Some("a")),
            (r#"{"a": 1, "\u0061": 2}"#, Some("a")),
            (r#"[1, {"b": [{"": -1, "x": "y", "": {}}]}]"#, Some("")),
            (r#"{"a": {"x": 1, "x": 2}, "a": 3}"#, Some("x")),
            // Another matter.
            (r#"{"a": 1, "b": 1e999, "a": 2}"#, None),
            ("nonsense", None),
        ] {
            assert_eq!(duplicate_json_field(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn depth_is_of_brackets_outside_of_strings() {
        assert!(!nested(MAX_JSON_DEPTH).is_too_deep());
        assert!(nested(MAX_JSON_DEPTH + 1).is_too_deep());
        for text in [
            format!(r#"["{}", "\\", "\"{}"]"#, "[".repeat(200), "{".repeat(200)),
            format!("[{}0]", "[],".repeat(200)),
        ] {
            assert!(!JsonText::parse(text).unwrap().is_too_deep());
        }
        let text = format!(
            r#"{}{{"\\":{}{}}}{}"#,
            "[".repeat(99),
            "[",
            "]",
            "]".repeat(99)
        );
        assert!(JsonText::parse(text).unwrap().is_too_deep());
    }

    #[test]
    fn a_document_that_is_too_deep_goes_into_others_as_text() {
        let deep = nested(50_000);
        let value = serde_json::json!({ "metadata": deep });
        assert_eq!(value["metadata"], deep.as_str());
        for odd in [
            r#"{"a": 1e999}"#.to_owned(),
            r#"{"a": "\ud800"}"#.to_owned(),
            format!("[{}]", "9".repeat(400)),
        ] {
            let odd = JsonText::parse(odd).unwrap();
            assert!(odd.problem().is_some());
            assert_eq!(serde_json::json!({ "a": odd })["a"], odd.as_str());
        }
        assert_eq!(
            JsonText::parse(r#"["1e5", 1e5, "\u00e9"]"#)
                .unwrap()
                .problem(),
            None
        );
        let whole = serde_json::json!({ "metadata": nested(MAX_JSON_DEPTH) });
        assert!(whole["metadata"].is_array());
        assert!(serde_json::from_str::<serde_json::Value>(&whole.to_string()).is_ok());
    }
}
