//! Grammars over tokens: what may come next, and which replies that leaves.

use osmosis_core::generation::Constraint;
use osmosis_tokens::{ChatFormat, StructuredReply, TokenMatcher, TokensError};
use serde_json::{Value, json};

use crate::toy::{CHATML, format, format_with};

fn json_reply(schema: &Value) -> StructuredReply<'_> {
    StructuredReply {
        json: Some(schema),
        tools: &[],
        most_calls: 1,
    }
}

fn matcher(format: &ChatFormat, reply: &StructuredReply<'_>) -> TokenMatcher {
    let constraint = format.constraint(reply).unwrap();
    format.grammars().unwrap().compile(&constraint).unwrap()
}

/// How much of a text the grammar takes, token by token, and whether the turn may end after it.
fn taken(format: &ChatFormat, reply: &StructuredReply<'_>, text: &str) -> (String, bool) {
    let mut matcher = matcher(format, reply);
    let mut said = Vec::new();
    for id in format.encode(text).unwrap() {
        if !matcher.allowed().unwrap().contains(&id) {
            break;
        }
        matcher.take(id).unwrap();
        said.push(id);
    }
    let end = format.end_of_turn()[0];
    let may_end = matcher.allowed().unwrap().contains(&end);
    (format.decode(&said, false).unwrap(), may_end)
}

#[track_caller]
fn takes(format: &ChatFormat, reply: &StructuredReply<'_>, text: &str) {
    assert_eq!(
        taken(format, reply, text),
        (text.to_owned(), true),
        "{text}"
    );
}

/// Draws among the allowed tokens until the grammar has ended, the last of them first: never the same.
fn drawn(format: &ChatFormat, reply: &StructuredReply<'_>, mut draw: usize) -> String {
    let mut matcher = matcher(format, reply);
    let mut said = Vec::new();
    let end = format.end_of_turn()[0];
    for _ in 0..2000 {
        let allowed = matcher.allowed().unwrap();
        draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let id = allowed[(draw >> 33) % allowed.len()];
        if id == end {
            return format.decode(&said, false).unwrap();
        }
        matcher.take(id).unwrap();
        said.push(id);
    }
    panic!(
        "no end after 2000 tokens: {}",
        format.decode(&said, false).unwrap()
    );
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "kind": {"enum": ["cat", "dog"]},
            "legs": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "kind", "legs"],
        "additionalProperties": false,
    })
}

fn tool(name: &str, parameters: Option<Value>) -> Value {
    let mut tool = json!({"type": "function", "function": {"name": name}});
    if let Some(parameters) = parameters {
        tool["function"]["parameters"] = parameters;
    }
    tool
}

#[test]
fn a_reply_by_a_schema_is_that_json_and_nothing_else() {
    let format = format(CHATML);
    let schema = person();
    let reply = json_reply(&schema);
    takes(
        &format,
        &reply,
        r#"{"name": "abc", "kind": "dog", "legs": 4}"#,
    );
    for (text, as_far_as) in [
        ("Sure: {", ""),
        (r#"{"kind""#, r#"{""#),
        (r#"{"name": "abcdef""#, r#"{"name": "abcde"#),
        (
            r#"{"name": "a", "kind": "cow""#,
            r#"{"name": "a", "kind": "c"#,
        ),
        ("{\"name\":\n", "{\"name\":"),
        (
            r#"{"name": "a", "kind": "cat", "legs": 7} and"#,
            r#"{"name": "a", "kind": "cat", "legs": 7}"#,
        ),
    ] {
        assert_eq!(taken(&format, &reply, text).0, as_far_as, "{text}");
    }
    for draw in 0..30 {
        let text = drawn(&format, &reply, draw);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(
            ["cat", "dog"].contains(&value["kind"].as_str().unwrap()),
            "{text}"
        );
        assert!(value["legs"].as_u64().unwrap() <= 99, "{text}");
    }
}

#[test]
fn special_tokens_are_no_text() {
    let format = format(CHATML);
    let schema = json!({"type": "string"});
    let mut matcher = matcher(&format, &json_reply(&schema));
    for id in format.encode("\"a").unwrap() {
        matcher.take(id).unwrap();
    }
    let allowed = matcher.allowed().unwrap();
    for special in ["<|im_start|>", "<|im_end|>", "<|endoftext|>"] {
        let ids = format.encode(special).unwrap();
        assert_eq!(ids.len(), 1);
        assert!(!allowed.contains(&ids[0]), "{special}");
    }
    // Most other tokens are; bytes within characters are not.
    assert!(allowed.len() > 100, "{}", allowed.len());
}

#[test]
fn after_the_end_only_the_end_of_the_turn_is_left() {
    let format = format(CHATML);
    let schema = json!({"enum": ["a"]});
    let mut matcher = matcher(&format, &json_reply(&schema));
    let mut said = Vec::new();
    for _ in 0..20 {
        let allowed = matcher.allowed().unwrap();
        assert_eq!(allowed.len(), 1, "there is only one such reply");
        matcher.take(allowed[0]).unwrap();
        said.push(allowed[0]);
        if allowed[0] == format.end_of_turn()[0] {
            break;
        }
    }
    let end = said.pop().unwrap();
    assert_eq!(end, format.end_of_turn()[0]);
    // Forced text comes in the tokens that the tokenizer makes of it.
    assert_eq!(said, format.encode("\"a\"").unwrap());
}

#[test]
fn forced_calls_are_in_the_models_own_format_and_read_back() {
    let format = format(CHATML);
    let numbers = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
        "additionalProperties": false});
    let tools = [
        tool("f", Some(numbers)),
        tool("say \"g\"", Some(json!({"enum": [{}]}))),
    ];
    let reply = StructuredReply {
        json: None,
        tools: &tools,
        most_calls: 2,
    };
    takes(
        &format,
        &reply,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 2}}\n</tool_call>",
    );
    let both = "<tool_call>\n{\"name\": \"say \\\"g\\\"\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n\
        {\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    takes(&format, &reply, both);
    let parsed = format.parse_reply(both);
    assert_eq!((parsed.tool_calls.len(), parsed.content), (2, None));
    let third = format!("{both}\n");
    assert_eq!(taken(&format, &reply, &third), (both.to_owned(), true));
    for draw in 0..20 {
        let text = drawn(&format, &reply, draw);
        let parsed = format.parse_reply(&text);
        assert!(
            !parsed.tool_calls.is_empty() && parsed.content.is_none(),
            "{text}"
        );
    }
}

#[test]
fn tags_that_are_special_tokens_come_as_such() {
    let format = format_with(CHATML, &["<tool_call>", "</tool_call>"]);
    let tools = [tool("f", Some(json!({"enum": [{}]})))];
    let reply = StructuredReply {
        json: None,
        tools: &tools,
        most_calls: 1,
    };
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let mut matcher = matcher(&format, &reply);
    for id in format.encode(text).unwrap() {
        assert_eq!(
            matcher.allowed().unwrap(),
            [id],
            "there is only one such reply"
        );
        matcher.take(id).unwrap();
    }
}

#[test]
fn json_or_a_call_may_come_where_the_model_decides() {
    let format = format(CHATML);
    let schema = json!({"enum": [{"answer": 1}]});
    let tools = [tool("f", Some(json!({"enum": [{}]})))];
    let reply = StructuredReply {
        json: Some(&schema),
        tools: &tools,
        most_calls: 1,
    };
    takes(&format, &reply, "{\"answer\": 1}");
    takes(
        &format,
        &reply,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
    );
    assert_eq!(taken(&format, &reply, "I").0, "");
}

#[test]
fn a_tool_without_parameters_takes_any_object() {
    let format = format(CHATML);
    let tools = [tool("f", None)];
    let reply = StructuredReply {
        json: None,
        tools: &tools,
        most_calls: 1,
    };
    takes(
        &format,
        &reply,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"any\": [null, 1.5]}}\n</tool_call>",
    );
}

#[test]
fn arguments_have_no_properties_but_those_of_the_tool() {
    let format = format(CHATML);
    let size = json!({"type": "integer", "minimum": 1, "maximum": 9});
    let inner = json!({"type": "object", "properties": {"size": size}, "required": ["size"]});
    let tools = [
        tool("nothing", Some(json!({"type": "object", "properties": {}}))),
        tool(
            "some",
            Some(json!({"type": "object", "properties": {"a": inner, "b": {"type": "null"}}})),
        ),
    ];
    let reply = StructuredReply {
        json: None,
        tools: &tools,
        most_calls: 1,
    };
    for draw in 0..30 {
        let text = drawn(&format, &reply, draw);
        let call = format.parse_reply(&text).tool_calls.remove(0);
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        let names = |value: &Value| {
            let names = value.as_object().unwrap().keys().cloned();
            names.collect::<Vec<_>>()
        };
        if call.name == "nothing" {
            assert_eq!(names(&arguments), [""; 0], "{text}");
        } else {
            assert!(
                names(&arguments)
                    .iter()
                    .all(|name| name == "a" || name == "b"),
                "{text}"
            );
            if let Some(inner) = arguments.get("a") {
                assert_eq!(names(inner), ["size"], "{text}");
            }
        }
    }
    // What is open on purpose stays open.
    let open = json!({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "null"}});
    takes(&format, &json_reply(&open), r#"{"a": null, "b": null}"#);
}

#[test]
fn reasoning_that_the_prompt_opens_comes_first() {
    let template =
        format!("{CHATML}{{%- if add_generation_prompt %}}{{{{ '<think>\\n' }}}}{{% endif %}}");
    let format = format(&template);
    let schema = json!({"enum": ["a"]});
    let reply = json_reply(&schema);
    takes(&format, &reply, "so { or\nso</think>\n\n\"a\"");
    assert!(
        !taken(&format, &reply, "\"a\"").1,
        "the reasoning has no end"
    );
}

#[test]
fn what_no_reply_can_follow_is_refused_with_the_reason() {
    let format = format(CHATML);
    let refused = |schema: Value| {
        let error = format.constraint(&json_reply(&schema)).unwrap_err();
        let TokensError::Constraint { message } = &error else {
            panic!("{error}");
        };
        message.clone()
    };
    for (schema, reason) in [
        (
            json!({"type": "integer", "minimum": 5, "maximum": 3}),
            "nsatisfiable",
        ),
        (
            json!({"type": "string", "format": "moon-phase"}),
            "moon-phase",
        ),
        (
            json!({"$ref": "https://example.com/schema.json"}),
            "example.com",
        ),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"type": "string", "pattern": "("}), "("),
        (json!(3), "is not an object"),
    ] {
        let message = refused(schema.clone());
        assert!(message.contains(reason), "{schema}: {message}");
        assert!(
            message.starts_with("the JSON schema of the reply"),
            "{message}"
        );
        assert!(message.chars().count() < 500, "{message}");
    }
    let tools = [
        tool("good", Some(json!({"type": "object"}))),
        tool(
            "bad",
            Some(
                json!({"type": "object", "properties": {"a": {"format": "x-y", "type": "string"}}}),
            ),
        ),
    ];
    let reply = StructuredReply {
        json: None,
        tools: &tools,
        most_calls: 1,
    };
    let message = format.constraint(&reply).unwrap_err().to_string();
    assert!(
        message.contains("the parameters of tool `bad`"),
        "{message}"
    );
}

#[test]
fn grammars_are_bounded() {
    let format = format(CHATML);
    let grammars = format.grammars().unwrap();
    let compile = |grammar: String| {
        let constraint = Constraint {
            grammar: grammar.into(),
        };
        grammars.compile(&constraint).map(|_| ())
    };
    let long = compile(format!("start: \"{}\"", "a".repeat(300 << 10)));
    assert!(long.unwrap_err().to_string().contains("are the most"));
    // Many small ones do not add up, and each can be had again.
    for round in 0..2 {
        for number in 0..40 {
            compile(format!("start: \"{number}\""))
                .unwrap_or_else(|error| panic!("{round}: {error}"));
        }
    }
    assert!(compile("start: (".to_owned()).is_err());
    // An automaton with far more states than are kept ends with an error, not with the memory.
    let mut matcher = grammars
        .compile(&Constraint {
            grammar: "start: /(a|b)*a(a|b){18}c/".into(),
        })
        .unwrap();
    let letters = ["a", "b"].map(|letter| format.encode(letter).unwrap()[0]);
    let mut failed = None;
    let mut draw: u64 = 1;
    for _ in 0..100_000 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let letter = letters[usize::from(draw >> 63 == 1)];
        if let Err(error) = matcher.allowed().and_then(|_| matcher.take(letter)) {
            failed = Some(error);
            break;
        }
    }
    let failed = failed.unwrap().to_string();
    assert!(
        failed.starts_with("the reply can't be constrained"),
        "{failed}"
    );
}
