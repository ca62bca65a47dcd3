use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON document that we carry but do not interpret: prompts, messages, metadata.
///
/// In JSON it appears as the document itself, in msgpack as a string that holds the document, so
/// nothing between the user's process and the store re-encodes what the user produced.
#[derive(Clone)]
pub struct JsonText(Box<RawValue>);

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
        if serializer.is_human_readable() {
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
