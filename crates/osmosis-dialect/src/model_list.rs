use serde_json::{Value, json};

use crate::dialect::Dialect;

/// What `GET /v1/models` answers.
pub fn model_list(dialect: Dialect, names: &[String]) -> Value {
    match dialect {
        Dialect::ChatCompletions | Dialect::Responses | Dialect::Completions => {
            let entry =
                |id| json!({"id": id, "object": "model", "created": 0, "owned_by": "osmosis"});
            json!({ "object": "list", "data": names.iter().map(entry).collect::<Vec<_>>() })
        }
        Dialect::Messages => {
            let entry = |id| {
                json!({
                    "type": "model", "id": id, "display_name": id,
                    "created_at": "1970-01-01T00:00:00Z",
                })
            };
            json!({
                "data": names.iter().map(entry).collect::<Vec<Value>>(),
                "has_more": false, "first_id": names.first(), "last_id": names.last(),
            })
        }
    }
}
