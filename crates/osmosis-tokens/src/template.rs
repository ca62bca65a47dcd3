//! A chat template, run as `transformers` runs it.

mod failure;
mod python_functions;

use std::fmt;
use std::io;

use jiff::Zoned;
use jiff::civil::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as TemplateValue;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::{Map, Value, json};

use self::failure::{Raised, failure, text_of};
use self::python_functions::{date_text, method, tojson};
use crate::TokensError;
use crate::messages::{self, Dialect, to_template_value};

const NAME: &str = "chat_template";

/// The longest template: fifty times as long as any that was published.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// Steps that a template may take, about a second. A thousand messages take some hundred thousand, and a few
/// million where a template looks through all messages at each of them.
const MAX_STEPS: u64 = if cfg!(feature = "fuzzing") {
    // A fuzzer has no use for slow inputs.
    20_000
} else {
    10_000_000
};

/// The longest prompt, as much as a request may have.
const MAX_OUTPUT_BYTES: usize = 64 << 20;

/// One template, compiled, with the tokenizer's special tokens as variables.
pub(crate) struct Template {
    environment: Environment<'static>,
    variables: Vec<(String, TemplateValue)>,
    dialect: Dialect,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template")
            .field("dialect", &self.dialect)
            .finish_non_exhaustive()
    }
}

impl Template {
    pub(crate) fn new(
        source: &str,
        special_tokens: &[(String, Value)],
    ) -> Result<Self, TokensError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TokensError::TemplateRefused {
                message: format!("it is longer than {MAX_SOURCE_BYTES} bytes"),
            });
        }
        let environment = environment(source).map_err(|error| TokensError::TemplateSyntax {
            line: error.line().unwrap_or(0),
            message: text_of(&error),
        })?;
        let variables = special_tokens
            .iter()
            .map(|(name, value)| (name.clone(), to_template_value(value)))
            .collect();
        let mut template = Self {
            environment,
            variables,
            dialect: Dialect::ALL[0],
        };
        template.dialect = template.find_dialect()?;
        Ok(template)
    }

    /// Fixes what `strftime_now` says.
    pub(crate) fn set_date(&mut self, date: DateTime) {
        self.environment
            .add_function("strftime_now", move |format: &str| {
                date_text(jiff::fmt::strtime::format(format, date))
            });
    }

    pub(crate) fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, TokensError> {
        self.render_as(self.dialect, messages, tools, add_generation_prompt, extra)
    }

    fn render_as(
        &self,
        dialect: Dialect,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, TokensError> {
        let messages = messages::prepare(messages, dialect)?;
        let tools = match tools {
            None | Some([]) => TemplateValue::from(()),
            Some(tools) => tools.iter().map(to_template_value).collect(),
        };
        let extra = extra
            .iter()
            .map(|(name, value)| (name.clone(), to_template_value(value)));
        let given = [
            ("messages", messages),
            ("tools", tools),
            ("documents", TemplateValue::from(())),
            (
                "add_generation_prompt",
                TemplateValue::from(add_generation_prompt),
            ),
        ];
        let context = TemplateValue::from_pairs(
            self.variables
                .iter()
                .cloned()
                .chain(extra)
                .chain(given.map(|(name, value)| (name.to_owned(), value))),
        );
        let mut prompt = Prompt(Vec::new());
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(context, &mut prompt).map(drop))
            .map_err(|error| failure(&error))?;
        String::from_utf8(prompt.0).map_err(|error| TokensError::TemplateFailed {
            line: 0,
            message: error.to_string(),
        })
    }

    /// The first way of handing over tool calls with which a short conversation renders, shows the
    /// arguments, and has no `None` in it. A template that knows no tools shows no arguments in any way.
    fn find_dialect(&self) -> Result<Dialect, TokensError> {
        let messages = [
            json!({"role": "user", "content": "question"}),
            json!({"role": "assistant", "content": null, "tool_calls": [{
                "id": "abcdefghi",
                "type": "function",
                "function": {"name": "tool", "arguments": "{\"what_was_given\": 1}"},
            }]}),
            json!({"role": "tool", "tool_call_id": "abcdefghi", "name": "tool", "content": "result"}),
        ];
        let tools = [json!({"type": "function", "function": {
            "name": "tool",
            "description": "description",
            "parameters": {"type": "object", "properties": {"argument": {"type": "integer"}}},
        }})];
        let mut rendered = vec![];
        for dialect in Dialect::ALL {
            match self.render_as(dialect, &messages, Some(&tools), true, &Map::new()) {
                Ok(text) if !text.contains("None") => rendered.push((dialect, text)),
                // Each time it would take as long.
                Err(error @ TokensError::TemplateStopped { .. }) => return Err(refused(&error)),
                Ok(_) | Err(_) => {}
            }
        }
        let found = rendered
            .iter()
            .find(|(_, text)| text.contains("what_was_given"))
            .or(rendered.first())
            .map_or(Dialect::ALL[0], |(dialect, _)| *dialect);
        Ok(found)
    }
}

/// A template that a limit stopped at a short conversation.
pub(crate) fn refused(stopped: &TokensError) -> TokensError {
    TokensError::TemplateRefused {
        message: format!("at a short conversation, {stopped}"),
    }
}

/// What a template has written, up to the limit.
struct Prompt(Vec<u8>);

impl io::Write for Prompt {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |message: String| -> Result<(), Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: &str| {
        date_text(jiff::fmt::strtime::format(format, &Zoned::now()))
    });
    environment.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(environment)
}

/// `{% generation %}` marks what the model wrote, for masks; for rendering it is a scope.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let body = &tag[..end];
        let word = body.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        out.push_str(&body.replacen(word, replacement, 1));
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, TokensError> {
        let tokens = [("eos_token".to_owned(), json!("</s>"))];
        let messages = [
            json!({"role": "user", "content": "one", "name": null}),
            json!({"role": "assistant", "content": "two"}),
        ];
        Template::new(source, &tokens)?.render(&messages, None, true, &Map::new())
    }

    #[test]
    fn templates_find_what_transformers_gives_them() {
        for (source, expected) in [
            ("{{ eos_token }}{{ bos_token }}", "</s>"),
            ("{{ messages[::-1][0].content }}", "two"),
            ("{{ messages[0].name is defined }}", "False"),
            ("{{ tools is none }} {{ documents is none }}", "True True"),
            (
                "{%- for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
                "assistant",
            ),
            ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "2",
            ),
            (
                "{{ {'b': [1, none], 'a': '<é>'} | tojson }}",
                "{\"b\": [1, null], \"a\": \"<é>\"}",
            ),
            ("{{ {'b': 1} | tojson(indent=2) }}", "{\n  \"b\": 1\n}"),
            (
                "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}",
                "{\"a\":2,\"b\":1}",
            ),
            (
                "{{ 'a</think>b'.split('</think>')[-1] }}{{ 'xxa'.lstrip('x') }}",
                "ba",
            ),
            (
                "{{ 'prefix-a'.removeprefix('prefix-') }}{{ 'a.b'.partition('.')[2] }}{{ 'a.b.c'.rpartition('.')[0] }}",
                "aba.b",
            ),
            (
                "{{ messages[0] is mapping }}{{ 'x' is string }}{{ messages is iterable }}",
                "TrueTrueTrue",
            ),
            (
                "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
                "onetwo",
            ),
            ("{%- generation -%} x {%- endgeneration -%}", "x"),
            ("{{ strftime_now('%Y')|length }}", "4"),
            ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('y') }}", "[y]"),
            (
                "{{ messages[0].get('missing', 'default') }}{% for k, v in messages[0].items() %}{{ k }}{% endfor %}",
                "defaultrolecontent",
            ),
            (
                "{{ {'a': True, 'b': [none, 'x']} }}",
                "{'a': True, 'b': [None, 'x']}",
            ),
        ] {
            assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn a_date_can_be_fixed() {
        let mut template = Template::new("{{ strftime_now('%d %b %Y, %H:%M') }}", &[]).unwrap();
        template.set_date(jiff::civil::date(2024, 7, 26).at(9, 5, 0, 0));
        assert_eq!(
            template.render(&[], None, false, &Map::new()).unwrap(),
            "26 Jul 2024, 09:05"
        );
    }

    #[test]
    fn a_template_that_raises_says_its_own_words() {
        let error =
            render("\n{% macro f() %}{{ raise_exception('No ' + 'way!') }}{% endmacro %}{{ f() }}")
                .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the chat template refuses these messages: No way!"
        );
    }

    #[test]
    fn a_broken_template_is_named_with_its_line() {
        let broken = render("fine\n{% if %}").unwrap_err().to_string();
        assert!(
            broken.starts_with("the chat template is broken at line 2: "),
            "{broken}"
        );
        let failing = render("fine\n\n{{ messages.content.text + 1 }}")
            .unwrap_err()
            .to_string();
        assert!(
            failing.starts_with("the chat template failed at line 3: "),
            "{failing}"
        );
    }

    #[test]
    fn what_a_template_did_wrong_is_told() {
        for (source, told) in [
            (
                "{{ 'a' | tojson(separators=['x']) }}",
                "tojson: separators are two texts",
            ),
            // As in Python, where an empty separator is a ValueError.
            ("{{ 'a'.partition('') }}", "partition"),
            ("{{ 'a'.rpartition('') }}", "rpartition"),
        ] {
            let error = render(source).unwrap_err().to_string();
            let message = error.strip_prefix("the chat template failed at line 1: ");
            assert!(message.is_some_and(|text| text.contains(told)), "{error}");
        }
    }

    #[test]
    fn a_template_that_goes_on_for_ever_is_stopped() {
        let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}";
        let macros = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        let output = "{% for a in range(99999) %}{{ 'x' * 1000000 }}{% endfor %}";
        let nested = "{% set n = namespace(l=[]) %}{% for a in range(300) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l | tojson }}";
        for (source, told) in [
            (loops, "it takes more than 10000000 steps"),
            (macros, "recursion"),
            (output, "it writes more than 67108864 bytes"),
            (nested, "nested deeper than 100 levels"),
        ] {
            let error = render(source).unwrap_err().to_string();
            assert!(error.contains(told), "{source}: {error}");
        }
        let long = " ".repeat(MAX_SOURCE_BYTES + 1);
        let error = render(&long).unwrap_err().to_string();
        assert_eq!(
            error,
            "the chat template can't be used: it is longer than 1048576 bytes"
        );
    }

    #[test]
    fn long_conversations_are_far_from_the_limits() {
        // Each message looks at all that follow, as some published templates do.
        let source = "{% for m in messages %}{% for i in range(loop.index0 + 1, messages | length) %}\
            {% if messages[i].role == 'x' %}{{ i }}{% endif %}{% endfor %}{{ m.content }}{% endfor %}";
        let messages: Vec<Value> = (0..1000)
            .map(|at| json!({"role": "user", "content": format!("{at} ")}))
            .collect();
        let template = Template::new(source, &[]).unwrap();
        let text = template.render(&messages, None, true, &Map::new());
        assert!(text.unwrap().ends_with(" 999 "));
    }

    #[test]
    fn arguments_come_as_text_or_as_mapping_as_the_template_wants() {
        let template = Template::new(
            "{% for m in messages %}{% for call in m.tool_calls or [] %}\
             {{ '<' + call.function.arguments + '>' }}{% endfor %}{% endfor %}",
            &[],
        )
        .unwrap();
        let calls = |arguments: serde_json::Value| {
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": arguments}},
            ]})
        };
        let messages = [calls(json!({"a": [1, "b"]})), calls(json!(r#"{"a":1}"#))];
        assert_eq!(
            template
                .render(&messages, None, false, &Map::new())
                .unwrap(),
            r#"<{"a": [1, "b"]}><{"a":1}>"#
        );
        let template = Template::new(
            "{% for m in messages %}{% for call in m.tool_calls or [] %}\
             {{ call.function.arguments.keys() | join }};{% endfor %}{% endfor %}",
            &[],
        )
        .unwrap();
        assert_eq!(
            template
                .render(&messages, None, false, &Map::new())
                .unwrap(),
            "a;a;"
        );
    }

    #[test]
    fn reasoning_has_both_names_whichever_it_came_under() {
        let template = Template::new(
            "{% for m in messages %}[{{ m.reasoning_content }}|{{ m.thinking }}]{% endfor %}",
            &[],
        )
        .unwrap();
        let messages = [
            json!({"role": "assistant", "content": "", "reasoning": "r"}),
            json!({"role": "assistant", "content": "", "reasoning_content": null, "thinking": "t"}),
            json!({"role": "assistant", "content": "", "reasoning_content": "c", "thinking": "t"}),
            json!({"role": "assistant", "content": "", "reasoning_content": null}),
        ];
        assert_eq!(
            template
                .render(&messages, None, false, &Map::new())
                .unwrap(),
            "[r|r][t|t][c|t][|]"
        );
    }

    #[test]
    fn a_message_without_content_has_an_empty_one() {
        let template = Template::new(
            "{% for m in messages %}[{{ m.content is defined }}{{ m.content }}]{% endfor %}",
            &[],
        )
        .unwrap();
        let messages = [
            json!({"role": "assistant"}),
            json!({"role": "assistant", "content": null}),
            json!({"role": "user", "content": "one"}),
        ];
        assert_eq!(
            template
                .render(&messages, None, false, &Map::new())
                .unwrap(),
            "[True][True][Trueone]"
        );
    }
}
