//! What must hold for any bytes whatever, of chat templates and token records: for the programs in `fuzz/`, and
//! for their seeds in a test.

use serde_json::{Map, Value, json};

use crate::TokenRecord;
use crate::template::Template;

/// A template renders, or says why not. The messages stand behind a zero byte.
pub fn templates(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let Ok(source) = std::str::from_utf8(parts.next().unwrap_or_default()) else {
        return;
    };
    let messages = parts
        .next()
        .and_then(|text| serde_json::from_slice(text).ok());
    let messages: Vec<Value> =
        messages.unwrap_or_else(|| vec![json!({"role": "user", "content": "question"})]);
    let tokens = [("eos_token".to_owned(), json!("</s>"))];
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let Ok(template) = Template::new(source, &tokens) else {
        return;
    };
    for tools in [None, Some(&tools[..])] {
        if let Err(error) = template.render(&messages, tools, true, &Map::new()) {
            assert!(!error.to_string().is_empty());
        }
    }
}

/// A record that can be read is written and read again as the same one.
pub fn records(data: &[u8]) {
    if let Ok(record) = TokenRecord::decode(data) {
        let written = record.encode();
        let again = TokenRecord::decode(&written).map(|record| record.encode());
        assert_eq!(again.ok(), Some(written));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../../fuzz/run_seeds.rs");

    #[test]
    fn every_seed_of_the_fuzzers_and_its_changes_pass() {
        run_seeds(&[("templates", templates), ("records", records)]);
    }
}
