//! Rows whose columns have other names than ours.

use std::fmt;

use osmosis_core::config::{ColumnUse, DatasetColumns};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::json_string::push_json_string;

/// A JSON object with its columns under the names that we read them by. Their order and their values stay as they
/// are written.
pub(crate) fn renamed(text: &str, columns: &DatasetColumns) -> Result<String, serde_json::Error> {
    let Fields(fields) = serde_json::from_str(text)?;
    let mut body = String::with_capacity(text.len());
    body.push('{');
    for (name, value) in fields {
        let name = match columns.use_of(&name) {
            ColumnUse::Kept(name) => name,
            ColumnUse::ReadAs(ours) => ours,
            ColumnUse::LeftOut => continue,
        };
        if body.len() > 1 {
            body.push(',');
        }
        push_json_string(&mut body, name);
        body.push(':');
        body.push_str(value.get());
    }
    body.push('}');
    Ok(body)
}

/// The fields of an object in their order.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_renamed_and_values_stay_as_they_are_written() {
        let mut columns = DatasetColumns::default();
        columns.set("user_prompt", "question").unwrap();
        columns.set("ground_truth", "answer").unwrap();
        let row = r#"{"id": 1.50, "question": "6 \u00d7 7?", "answer": 42, "label": 3, "x": {"question": 1}}"#;
        assert_eq!(
            renamed(row, &columns).unwrap(),
            r#"{"id":1.50,"user_prompt":"6 \u00d7 7?","ground_truth":42,"x":{"question": 1}}"#
        );
        assert!(renamed("[1]", &columns).is_err());
    }
}
