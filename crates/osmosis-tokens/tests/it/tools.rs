//! Tools in prompts: whether a template shows them, and the form that needs no template's help.

use osmosis_core::PolicyVersion;
use osmosis_core::config::ToolFormat;
use osmosis_tokens::{CallTree, ChatFormat, ChatSettings, Origin, ToolCall, ToolSupport};
use serde_json::{Map, Value, json};

use crate::toy;

/// ChatML that knows nothing of tools.
const PLAIN: &str = "\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// The same for a model without a system role, as Gemma has it.
const NO_SYSTEM: &str = "\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Mentions tools, and never shows one.
const TALKS_OF_TOOLS: &str = "\
{%- if tools %}{{ 'You have tools and tool_calls.\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}";

const REFUSES: &str = "\
{%- if tools %}{{ raise_exception('no tools here') }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}";

/// Word for word what Qwen2.5 would render.
const HERMES_PROMPT: &str = "<|im_start|>system
Be brief.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{\"type\": \"function\", \"function\": {\"name\": \"search\", \"description\": \"Finds é.\", \"parameters\": {\"type\": \"object\", \"properties\": {\"q\": {\"type\": \"string\"}}}}}
{\"type\": \"function\", \"function\": {\"name\": \"query\", \"description\": \"Finds é.\", \"parameters\": {\"type\": \"object\", \"properties\": {\"q\": {\"type\": \"string\"}}}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{\"name\": <function-name>, \"arguments\": <args-json-object>}
</tool_call><|im_end|>
<|im_start|>user
Where?<|im_end|>
<|im_start|>assistant
Let me see.
<tool_call>
{\"name\": \"search\", \"arguments\": {\"q\": \"a\"}}
</tool_call>
<tool_call>
{\"name\": \"query\", \"arguments\": {}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
here
</tool_response>
<tool_response>
there
</tool_response><|im_end|>
<|im_start|>assistant
";

fn hermes(template: &str) -> ChatFormat {
    let settings = ChatSettings {
        chat_template: None,
        tool_format: Some(ToolFormat::Hermes),
    };
    toy::format_of(template, &[], &settings)
}

fn tools() -> Vec<Value> {
    ["search", "query"]
        .map(|name| {
            json!({"type": "function", "function": {"name": name, "description": "Finds é.",
                "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}})
        })
        .to_vec()
}

fn render(format: &ChatFormat, messages: &[Value]) -> String {
    format
        .render(messages, Some(&tools()), true, &Map::new())
        .unwrap()
}

#[test]
fn a_template_is_judged_by_what_it_renders() {
    for (template, expected) in [
        (toy::CHATML, ToolSupport::Rendered),
        (PLAIN, ToolSupport::Ignored),
        (toy::OPEN_TURNS, ToolSupport::Ignored),
        (TALKS_OF_TOOLS, ToolSupport::Ignored),
        (NO_SYSTEM, ToolSupport::Ignored),
    ] {
        assert_eq!(
            *toy::format(template).tool_support(),
            expected,
            "{template}"
        );
        assert_eq!(
            *hermes(template).tool_support(),
            ToolSupport::Rendered,
            "{template}"
        );
    }
    let ToolSupport::Refused { message } = toy::format(REFUSES).tool_support().clone() else {
        panic!("it raises");
    };
    assert!(message.contains("no tools here"), "{message}");
}

#[test]
fn another_template_takes_the_place_of_the_models_own() {
    let settings = ChatSettings {
        chat_template: Some(toy::CHATML.to_owned()),
        tool_format: None,
    };
    // The model's own can't even be read.
    let format = toy::format_of("{% broken", &[], &settings);
    assert_eq!(*format.tool_support(), ToolSupport::Rendered);
    assert_eq!(format.parts().chat_template.as_deref(), Some(toy::CHATML));
}

#[test]
fn tools_calls_and_results_are_text_in_the_style_of_hermes() {
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": [{"type": "text", "text": "Where?"}]}),
        json!({"role": "assistant", "content": "Let me see.", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{\"q\":\"a\"}"}},
            {"id": "2", "type": "function", "function": {"name": "query", "arguments": ""}},
        ]}),
        json!({"role": "tool", "tool_call_id": "1", "content": "here"}),
        json!({"role": "tool", "tool_call_id": "2", "content": "there"}),
    ];
    assert_eq!(render(&hermes(PLAIN), &messages), HERMES_PROMPT);
}

#[test]
fn without_a_system_message_one_is_made_and_without_the_role_the_user_gets_the_tools() {
    let question = [json!({"role": "user", "content": "Where?"})];
    let text = render(&hermes(PLAIN), &question);
    assert!(text.starts_with("<|im_start|>system\n# Tools\n"), "{text}");
    let text = render(&hermes(NO_SYSTEM), &question);
    assert!(text.starts_with("<|im_start|>user\n# Tools\n"), "{text}");
    assert!(text.contains("</tool_call>\n\nWhere?<|im_end|>"), "{text}");
}

#[test]
fn a_call_of_the_prompt_is_read_back_as_it_was() {
    let format = hermes(PLAIN);
    let calls = json!([
        {"id": "1", "type": "function", "function": {"name": "se\"arch", "arguments": "{\"q\": \"</tool_call>\"}"}},
        {"id": "2", "type": "function", "function": {"name": "query", "arguments": "{}"}},
    ]);
    let said = json!({"role": "assistant", "content": null, "tool_calls": calls});
    let text = format
        .render(
            &[json!({"role": "user", "content": "?"}), said],
            None,
            false,
            &Map::new(),
        )
        .unwrap();
    let (_, turn) = text.split_once("assistant\n").unwrap();
    let reply = format.parse_reply(turn.trim_end().trim_end_matches("<|im_end|>"));
    let call = |name: &str, arguments: &str| ToolCall {
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    assert_eq!(reply.content, None);
    assert_eq!(
        reply.tool_calls,
        [
            call("se\"arch", "{\"q\": \"</tool_call>\"}"),
            call("query", "{}")
        ]
    );
    let malformed = "<tool_call>{\"name\": \"search\", \"arguments\": [1]}</tool_call>";
    let reply = format.parse_reply(malformed);
    assert_eq!(
        (reply.content.as_deref(), reply.tool_calls.len()),
        (Some(malformed), 0)
    );
}

#[test]
fn what_is_wrong_with_a_message_is_said_of_the_message_as_it_came() {
    let messages = [
        json!({"role": "user", "content": "?"}),
        json!({"content": "no role"}),
    ];
    let error = hermes(PLAIN)
        .render(&messages, Some(&tools()), true, &Map::new())
        .unwrap_err();
    assert!(error.to_string().contains("message 1"), "{error}");
}

#[test]
fn turns_with_tools_go_on_from_the_sampled_ids_verbatim() {
    let format = hermes(PLAIN);
    let (tools, extra) = (tools(), Map::new());
    let mut tree = CallTree::default();
    let mut messages = vec![json!({"role": "user", "content": "Where?"})];
    // Written as no renderer would: the keys the other way round, spaces, and two calls at once.
    let turns = [
        "<tool_call>{\"arguments\":{ \"q\" :\"a\"},\"name\":\"search\"}</tool_call> <tool_call>{\"name\":\"query\",\"arguments\":{}}</tool_call>",
        "<tool_call>\n{\"name\": \"query\", \"arguments\": {\"q\": 1.50}}\n</tool_call>",
        "Here.",
    ];
    let mut before: Vec<u32> = vec![];
    for (number, said) in turns.into_iter().enumerate() {
        let prompt = tree.plan(&format, &messages, Some(&tools), &extra).unwrap();
        assert!(prompt.ids.starts_with(&before), "turn {number}");
        if number > 0 {
            let Origin::Continues { call, .. } = prompt.origin else {
                panic!("turn {number}: {:?}", prompt.origin);
            };
            assert_eq!(call as usize, number - 1);
        }
        let sampled = format.encode(&format!("{said}<|im_end|>")).unwrap();
        before = [prompt.ids.clone(), sampled.clone()].concat();
        let parsed = format.parse_reply(said);
        let calls: Vec<Value> = (0..)
            .zip(&parsed.tool_calls)
            .map(|(n, call): (usize, _)| {
                json!({"id": format!("c{number}{n}"), "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments}})
            })
            .collect();
        let mut reply = json!({"role": "assistant", "content": parsed.content});
        let results: Vec<Value> = calls
            .iter()
            .map(|call| json!({"role": "tool", "tool_call_id": call["id"], "content": "found"}))
            .collect();
        if !calls.is_empty() {
            reply["tool_calls"] = json!(calls);
        }
        let (logprobs, versions) = (
            vec![-0.5; sampled.len()],
            vec![PolicyVersion(1); sampled.len()],
        );
        tree.finished(prompt, sampled, logprobs, versions, 1.0, Some(&reply));
        messages.push(reply);
        messages.extend(results);
    }
}

/// Tools and calls as the templates of Llama 3.1 and 3.2 write them.
const LLAMA: &str = "\
{%- if tools %}{{ 'Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its value}. Do not use variables.\n\n' }}
{%- for t in tools %}{{ t | tojson(indent=4) + '\n\n' }}{% endfor %}{% endif %}
{%- for message in messages %}
{%- if message.tool_calls is defined and message.tool_calls %}
{%- if not message.tool_calls | length == 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|im_start|>assistant\n{\"name\": \"' + call.name + '\", \"parameters\": ' + (call.arguments | tojson) + '}<|im_end|>\n' }}
{%- else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

#[test]
fn a_bare_object_is_a_call_where_the_template_writes_calls_so_and_nowhere_else() {
    let said = "{\"name\": \"search\", \"parameters\": {\"q\": \"a\"}}";
    let call = ToolCall {
        name: "search".to_owned(),
        arguments: "{\"q\": \"a\"}".to_owned(),
    };
    let llama = toy::format(LLAMA);
    assert_eq!(*llama.tool_support(), ToolSupport::Rendered);
    for text in [said.to_owned(), format!("<|python_tag|>{said}")] {
        let reply = llama.parse_reply(&text);
        assert_eq!(
            (reply.content, reply.tool_calls),
            (None, vec![call.clone()])
        );
    }
    for other in [toy::format(toy::CHATML), toy::format(PLAIN), hermes(LLAMA)] {
        let reply = other.parse_reply(said);
        assert_eq!(reply.content.as_deref(), Some(said));
        assert!(reply.tool_calls.is_empty());
    }
    // It is read back as it was rendered.
    let messages = [
        json!({"role": "user", "content": "?"}),
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{\"q\":\"a\"}"}}]}),
    ];
    let text = llama.render(&messages, None, false, &Map::new()).unwrap();
    let (_, turn) = text.split_once("assistant\n").unwrap();
    let turn = turn.trim_end().trim_end_matches("<|im_end|>");
    assert_eq!(llama.parse_reply(turn).tool_calls, [call]);
}

#[test]
fn a_chosen_tool_format_is_saved_with_the_model_and_another_template_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = camino::Utf8Path::from_path(folder.path()).unwrap();
    let trained = hermes(PLAIN);
    let before = trained.parts().clone();
    trained.save(path).unwrap();
    let opened = ChatFormat::load(path).unwrap();
    let question = [json!({"role": "user", "content": "Where?"})];
    assert_eq!(render(&opened, &question), render(&trained, &question));
    assert_eq!(*opened.tool_support(), ToolSupport::Rendered);
    // What it was made of, and so the identity of the model that the training began with, is as it was.
    assert_eq!(trained.parts(), &before);
    // A copy of the copy is the same.
    assert_eq!(&opened.saved_parts().unwrap(), opened.parts());

    let settings = ChatSettings {
        chat_template: Some(toy::CHATML.to_owned()),
        tool_format: None,
    };
    let chosen = ChatFormat::load_with(path, &settings).unwrap();
    let text = render(&chosen, &question);
    assert!(!text.contains("# Tools"), "{text}");
    let saved = chosen.saved_parts().unwrap();
    assert!(!saved.tokenizer_config.contains("tool_format"), "{saved:?}");

    let config = before
        .tokenizer_config
        .replacen('{', "{\"osmosis_tool_format\": \"xml\",", 1);
    let parts = osmosis_tokens::ChatFormatParts {
        tokenizer_config: config,
        ..before
    };
    let error = ChatFormat::from_parts(parts).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`osmosis_tool_format` is \"xml\""),
        "{error}"
    );
}
