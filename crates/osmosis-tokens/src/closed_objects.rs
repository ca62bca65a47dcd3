//! Objects of a JSON schema that list their properties have no others.
//!
//! By the standard, a schema that says nothing of `additionalProperties` allows any. Agent frameworks write such
//! schemas for tools (Strands, smolagents, LangChain without `strict`), and a model that is held to them may go on
//! with properties that nobody asked for; smolagents rejects such a call. The closed schema allows less, so what
//! follows it follows the original too.

use serde_json::{Map, Value};

/// Keywords with a schema.
const WITH_SCHEMA: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
/// Keywords with a list of schemas.
const WITH_LIST: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
/// Keywords with schemas by name.
const WITH_NAMES: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Closes every object, unless parts of the schema describe one object together: each part alone does not know the
/// properties of the others.
pub(crate) fn close(schema: &mut Map<String, Value>) {
    if !combines(schema) {
        close_all(schema);
    }
}

fn close_all(schema: &mut Map<String, Value>) {
    if can_be_closed(schema) {
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    for (keyword, value) in schema {
        for part in parts(keyword, value) {
            close_all(part);
        }
    }
}

fn can_be_closed(schema: &Map<String, Value>) -> bool {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return false;
    };
    let required = schema.get("required").and_then(Value::as_array);
    let mut required = required.into_iter().flatten().filter_map(Value::as_str);
    !schema.contains_key("additionalProperties")
        && !schema.contains_key("minProperties")
        && required.all(|name| properties.contains_key(name))
}

/// Whether a part of the schema is described by several others at once.
fn combines(schema: &mut Map<String, Value>) -> bool {
    let descriptions: usize = schema
        .iter()
        .map(|(keyword, value)| match (keyword.as_str(), value) {
            ("allOf", Value::Array(all)) => all.len(),
            ("properties" | "$ref" | "anyOf" | "oneOf", _) => 1,
            _ => 0,
        })
        .sum();
    let mut parts = schema
        .iter_mut()
        .flat_map(|(keyword, value)| parts(keyword, value));
    descriptions > 1 || parts.any(combines)
}

/// The schemas below a keyword. Values of `enum`, `default` and the like are none.
fn parts<'a>(keyword: &str, value: &'a mut Value) -> Vec<&'a mut Map<String, Value>> {
    match value {
        Value::Object(schema) => {
            if WITH_SCHEMA.contains(&keyword) {
                vec![schema]
            } else if WITH_NAMES.contains(&keyword) {
                let named = schema.values_mut();
                named.filter_map(Value::as_object_mut).collect()
            } else {
                Vec::new()
            }
        }
        Value::Array(list) if WITH_LIST.contains(&keyword) => {
            list.iter_mut().filter_map(Value::as_object_mut).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: Value, expected: &Value) {
        let Value::Object(mut schema) = schema else {
            panic!("{schema} is no object")
        };
        close(&mut schema);
        assert_eq!(&Value::Object(schema), expected);
    }

    #[test]
    fn objects_that_list_their_properties_get_no_others_at_any_depth() {
        let open = json!({"properties": {"a": {"type": "string"}}, "required": ["a"]});
        let mut closed = open.clone();
        closed["additionalProperties"] = json!(false);
        check(open.clone(), &closed);
        check(
            json!({"properties": {}}),
            &json!({"properties": {}, "additionalProperties": false}),
        );
        for wrap in [
            |inner: &Value| json!({"type": "array", "items": inner}),
            |inner: &Value| json!({"type": "array", "prefixItems": [{"type": "null"}, inner]}),
            |inner: &Value| json!({"anyOf": [inner, {"type": "null"}]}),
            |inner: &Value| json!({"allOf": [inner]}),
            |inner: &Value| json!({"$ref": "#/$defs/x", "$defs": {"x": inner}}),
            |inner: &Value| json!({"type": "object", "additionalProperties": inner}),
            |inner: &Value| json!({"properties": {"x": inner}, "additionalProperties": false}),
        ] {
            check(wrap(&open), &wrap(&closed));
        }
    }

    #[test]
    fn what_is_said_of_other_properties_stays() {
        for schema in [
            json!({"type": "object"}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}),
            json!({"properties": {"a": {}}, "required": ["b"]}),
            json!({"properties": {"a": {}}, "minProperties": 3}),
            json!({"enum": [{"properties": {"a": 1}}], "default": {"properties": {}}}),
        ] {
            check(schema.clone(), &schema);
        }
    }

    #[test]
    fn a_schema_with_parts_that_describe_one_object_together_stays_open() {
        let [a, b] = ["a", "b"].map(|name| json!({"properties": {name: {}}}));
        for schema in [
            json!({"allOf": [a, b]}),
            json!({"properties": {"c": {}}, "anyOf": [a, b]}),
            json!({"anyOf": [a, b], "oneOf": [a, b]}),
            json!({"properties": {"c": {}}, "$ref": "#/$defs/a", "$defs": {"a": a}}),
            json!({"items": {"allOf": [a, b]}, "$defs": {"a": a}}),
        ] {
            check(schema.clone(), &schema);
        }
    }
}
