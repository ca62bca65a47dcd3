//! From TOML to rules, with every problem in one go.

use std::ops::Range;

use camino::Utf8Path;
use serde_json::{Number, Value};
use toml_edit::{Document, Item, TableLike};

use super::fields::{Place, Reader};
use super::problem::{Problems, ScriptErrors};
use super::rule::{Arguments, Reply, Rule, ToolCall, Variant, When};
use super::template::{BUILT_IN, Template, ValueTemplate};

/// What a script file says.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) seed: i64,
    pub(super) rules: Vec<Rule>,
}

const SCRIPT_KEYS: [&str; 2] = ["seed", "reply"];
const REPLY_KEYS: [&str; 11] = [
    "when",
    "times",
    "delay_ms",
    "chunk_delay_ms",
    "cut_after",
    "text",
    "tool_calls",
    "finish_reason",
    "variants",
    "error",
    "garbage",
];
const WHEN_KEYS: [&str; 5] = ["turn", "last_role", "last_user", "tool_result", "system"];
const VARIANT_KEYS: [&str; 4] = ["weight", "text", "tool_calls", "finish_reason"];
const TOOL_CALL_KEYS: [&str; 3] = ["name", "arguments", "arguments_text"];
const ERROR_KEYS: [&str; 2] = ["status", "message"];
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
const FINISH_REASONS: [&str; 4] = ["stop", "length", "tool_calls", "content_filter"];

pub(super) fn read(file: &Utf8Path, text: &str) -> Result<Script, ScriptErrors> {
    let mut reader = Reader {
        problems: Problems::new(file, text),
    };
    let script = match Document::parse(text) {
        Ok(document) => reader.script(document.as_table()),
        Err(error) => {
            reader.problems.add(error.span(), error.message().trim());
            Script {
                seed: 0,
                rules: Vec::new(),
            }
        }
    };
    reader.problems.into_result(script)
}

impl Reader<'_> {
    fn script(&mut self, table: &toml_edit::Table) -> Script {
        let place = Place {
            table,
            name: "the script",
        };
        self.check_keys(place, &SCRIPT_KEYS);
        let seed = self.integer(place, "seed").unwrap_or(0);
        let tables = self.tables(place, "reply");
        let mut rules = Vec::new();
        for (table, at) in &tables {
            let place = Place {
                table: *table,
                name: "[[reply]]",
            };
            rules.extend(self.rule(place, at.as_ref()));
        }
        if place.item("reply").is_none() {
            self.problems.add(
                None,
                "the script has no `[[reply]]`, so it could answer nothing",
            );
        }
        self.check_reachable(&tables);
        Script { seed, rules }
    }

    /// Says so, once, when a rule can never answer.
    fn check_reachable(&mut self, rules: &[(&dyn TableLike, Option<Range<usize>>)]) {
        let answers_everything =
            |table: &dyn TableLike| ["when", "times"].iter().all(|key| table.get(key).is_none());
        let Some(position) = rules
            .iter()
            .position(|(table, _)| answers_everything(*table))
        else {
            return;
        };
        if let [(_, everything), (_, next), ..] = &rules[position..] {
            let line = self.line_of(everything.as_ref());
            let message = format!("never reached: the rule at line {line} answers every call");
            self.problems.add(next.clone(), message);
        }
    }

    fn line_of(&self, span: Option<&Range<usize>>) -> usize {
        self.problems.place(span.map_or(0, |span| span.start)).0
    }

    fn rule(&mut self, place: Place<'_>, at: Option<&Range<usize>>) -> Option<Rule> {
        self.check_keys(place, &REPLY_KEYS);
        let (when, captured) = match place.item("when") {
            None => (When::default(), Vec::new()),
            Some(_) => self.when(place),
        };
        let known: Vec<&str> = BUILT_IN
            .into_iter()
            .chain(captured.iter().map(String::as_str))
            .collect();
        let times = self
            .whole_number(place, "times", 1)
            .and_then(|n| u32::try_from(n).ok());
        let delay = self.milliseconds(place, "delay_ms");
        let chunk_delay = self.milliseconds(place, "chunk_delay_ms");
        let cut_after = self
            .whole_number(place, "cut_after", 0)
            .and_then(|n| usize::try_from(n).ok());
        let reply = self.reply(place, at.cloned(), &known)?;
        if cut_after.is_some() && !matches!(reply, Reply::Say(_)) {
            self.problems.add(
                place.key_span("cut_after"),
                "`cut_after` needs a reply that says something to be cut",
            );
        }
        Some(Rule {
            line: self.line_of(at),
            when,
            times,
            delay,
            chunk_delay,
            cut_after,
            reply,
        })
    }

    /// The conditions, and the names of what they capture.
    fn when(&mut self, parent: Place<'_>) -> (When, Vec<String>) {
        let Some(table) = self.table(parent, "when") else {
            return (When::default(), Vec::new());
        };
        let place = Place {
            table,
            name: "`when`",
        };
        self.check_keys(place, &WHEN_KEYS);
        let mut captured = Vec::new();
        let mut expression = |reader: &mut Self, key: &str| {
            let expression = reader.expression(place, key)?;
            for name in expression.capture_names().flatten() {
                if BUILT_IN.contains(&name) {
                    let message = format!("the group name `{name}` is built in; choose another");
                    reader.problems.add(place.span(key), message);
                }
                captured.push(name.to_owned());
            }
            Some(expression)
        };
        let when = When {
            last_user: expression(self, "last_user"),
            tool_result: expression(self, "tool_result"),
            system: expression(self, "system"),
            turns: self.turns(place),
            last_role: self.one_of(place, "last_role", &ROLES),
        };
        (when, captured)
    }

    fn turns(&mut self, place: Place<'_>) -> Option<Vec<u64>> {
        let item = place.item("turn")?;
        let numbers: Option<Vec<u64>> = match item.as_array() {
            Some(array) => array
                .iter()
                .map(|value| positive(value.as_integer()))
                .collect(),
            None => positive(item.as_integer()).map(|turn| vec![turn]),
        };
        if numbers.as_ref().is_none_or(Vec::is_empty) {
            self.problems.add(
                place.span("turn"),
                "`turn` must be a number from 1, or a list of them",
            );
        }
        numbers
    }

    fn reply(
        &mut self,
        place: Place<'_>,
        at: Option<Range<usize>>,
        known: &[&str],
    ) -> Option<Reply> {
        let says = ["text", "tool_calls"]
            .into_iter()
            .find(|key| place.item(key).is_some());
        let given: Vec<&str> = says
            .into_iter()
            .chain(
                ["variants", "error", "garbage"]
                    .into_iter()
                    .filter(|key| place.item(key).is_some()),
            )
            .collect();
        match given.as_slice() {
            [] => {
                let message =
                    "a reply needs `text`, `tool_calls`, `variants`, `error` or `garbage`";
                self.problems.add(at, message);
                return None;
            }
            [_] => {}
            [first, second, ..] => {
                let message = format!("`{second}` and `{first}` exclude each other");
                self.problems.add(place.key_span(second), message);
            }
        }
        if place.item("finish_reason").is_some() && says.is_none() {
            let message = "`finish_reason` belongs to `text`, `tool_calls` or a variant";
            self.problems.add(place.key_span("finish_reason"), message);
        }
        match given[0] {
            "variants" => {
                let mut variants = Vec::new();
                for (table, at) in self.tables(place, "variants") {
                    let place = Place {
                        table,
                        name: "a variant",
                    };
                    self.check_keys(place, &VARIANT_KEYS);
                    if place.item("text").is_none() && place.item("tool_calls").is_none() {
                        self.problems
                            .add(at, "a variant needs `text` or `tool_calls`");
                    }
                    variants.push(self.variant(place, known));
                }
                if place
                    .item("variants")
                    .and_then(Item::as_array)
                    .is_some_and(toml_edit::Array::is_empty)
                {
                    self.problems
                        .add(place.span("variants"), "`variants` is empty");
                }
                Some(Reply::Say(variants))
            }
            "error" => self.error(place, known),
            "garbage" => self.template(place, "garbage", known).map(Reply::Garbage),
            _ => Some(Reply::Say(vec![self.variant(place, known)])),
        }
    }

    fn variant(&mut self, place: Place<'_>, known: &[&str]) -> Variant {
        let weight = self.whole_number(place, "weight", 1).unwrap_or(1);
        let text = self.template(place, "text", known);
        let mut tool_calls = Vec::new();
        for (table, at) in self.tables(place, "tool_calls") {
            let place = Place {
                table,
                name: "a tool call",
            };
            tool_calls.extend(self.tool_call(place, at, known));
        }
        Variant {
            weight,
            text,
            tool_calls,
            finish_reason: self.one_of(place, "finish_reason", &FINISH_REASONS),
        }
    }

    fn tool_call(
        &mut self,
        place: Place<'_>,
        at: Option<Range<usize>>,
        known: &[&str],
    ) -> Option<ToolCall> {
        self.check_keys(place, &TOOL_CALL_KEYS);
        if place.item("name").is_none() {
            self.problems.add(at, "a tool call needs a `name`");
        }
        let name = self.template(place, "name", known);
        let arguments = match (place.item("arguments"), place.item("arguments_text")) {
            (None, None) => Some(Arguments::Json(ValueTemplate::Table(Vec::new()))),
            (Some(item), None) => self
                .value(item, place.span("arguments"), known)
                .map(Arguments::Json),
            (None, Some(_)) => self
                .template(place, "arguments_text", known)
                .map(Arguments::Text),
            (Some(_), Some(_)) => {
                let message = "`arguments_text` and `arguments` exclude each other";
                self.problems.add(place.key_span("arguments_text"), message);
                None
            }
        };
        Some(ToolCall {
            name: name?,
            arguments: arguments?,
        })
    }

    fn error(&mut self, parent: Place<'_>, known: &[&str]) -> Option<Reply> {
        let place = Place {
            table: self.table(parent, "error")?,
            name: "`error`",
        };
        self.check_keys(place, &ERROR_KEYS);
        let message = match place.item("message") {
            Some(_) => self.template(place, "message", known)?,
            None => Template::parse("scripted error", &[]).ok()?,
        };
        let status = place
            .item("status")
            .and_then(Item::as_integer)
            .and_then(|status| u16::try_from(status).ok())
            .filter(|status| (400..600).contains(status));
        if status.is_none() {
            let span = place.span("status").or_else(|| parent.span("error"));
            self.problems
                .add(span, "`error` needs a `status` from 400 to 599");
        }
        Some(Reply::Error {
            status: status?,
            message,
        })
    }

    /// A TOML value as JSON, texts as templates.
    fn value(
        &mut self,
        item: &Item,
        span: Option<Range<usize>>,
        known: &[&str],
    ) -> Option<ValueTemplate> {
        if let Some(text) = item.as_str() {
            return self
                .parsed_template(text, span.as_ref(), known)
                .map(ValueTemplate::Text);
        }
        if let Some(number) = item.as_integer() {
            return Some(ValueTemplate::Fixed(Value::from(number)));
        }
        if let Some(number) = item.as_float() {
            let number = Number::from_f64(number);
            if number.is_none() {
                self.problems.add(span, "JSON has no such number");
            }
            return number.map(|number| ValueTemplate::Fixed(Value::Number(number)));
        }
        if let Some(flag) = item.as_bool() {
            return Some(ValueTemplate::Fixed(Value::Bool(flag)));
        }
        if let Some(array) = item.as_array() {
            let mut items = Vec::new();
            for value in array {
                let span = value.span().or_else(|| span.clone());
                items.push(self.value(&Item::Value(value.clone()), span, known)?);
            }
            return Some(ValueTemplate::List(items));
        }
        if let Some(table) = item.as_table_like() {
            let mut entries = Vec::new();
            for (key, item) in table.iter() {
                let span = item.span().or_else(|| span.clone());
                entries.push((key.to_owned(), self.value(item, span, known)?));
            }
            return Some(ValueTemplate::Table(entries));
        }
        if let Some(array) = item.as_array_of_tables() {
            let mut items = Vec::new();
            for table in array {
                items.push(self.value(&Item::Table(table.clone()), table.span(), known)?);
            }
            return Some(ValueTemplate::List(items));
        }
        self.problems
            .add(span, "dates have no JSON form; write a text");
        None
    }
}

fn positive(number: Option<i64>) -> Option<u64> {
    number
        .and_then(|number| u64::try_from(number).ok())
        .filter(|number| *number > 0)
}
