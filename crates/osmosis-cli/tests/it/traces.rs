//! A run as spans of OpenTelemetry, at a collector of the test's own.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::workspace::{AGENT, TOOL_SCRIPT, Workspace, product_rows};

/// Takes what is sent to it, for as long as the test runs.
struct Collector {
    url: String,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&spans);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || while take(&stream, &shared).is_some() {});
            }
        });
        Self { url, spans }
    }
}

/// Reads one request; `None` at the end of a connection.
fn take(stream: &TcpStream, spans: &Mutex<Vec<Value>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body: Value = serde_json::from_slice(&body).ok()?;
    for scope in body["resourceSpans"][0]["scopeSpans"].as_array()? {
        spans
            .lock()
            .unwrap()
            .extend(scope["spans"].as_array()?.iter().cloned());
    }
    let mut stream = stream;
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        .ok()
}

fn attribute<'a>(span: &'a Value, name: &str) -> Option<&'a Value> {
    let attributes = span["attributes"].as_array()?;
    let found = attributes
        .iter()
        .find(|attribute| attribute["key"] == name)?;
    found["value"].as_object()?.values().next()
}

fn operation(span: &Value) -> &str {
    let operation = attribute(span, "gen_ai.operation.name").and_then(Value::as_str);
    operation.unwrap_or_else(|| span["name"].as_str().unwrap())
}

#[test]
fn a_run_is_traced_and_its_totals_are_the_store_s() {
    let collector = Collector::start();
    let mut workspace = Workspace::new(AGENT, TOOL_SCRIPT, &product_rows(4));
    workspace.variable("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
    workspace.submit(&[]).expect(0);
    let spans = collector.spans.lock().unwrap().clone();
    let of = |name: &str| -> Vec<&Value> {
        spans
            .iter()
            .filter(|span| operation(span) == name)
            .collect()
    };

    let store = rusqlite::Connection::open(workspace.run_folder("t").join("run.db")).unwrap();
    let totals: (u32, u32, u32) = store
        .query_row(
            "SELECT count(*), sum(prompt_tokens), sum(completion_tokens) FROM calls",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .unwrap();
    let tokens = |spans: &[&Value], name: &str| -> u32 {
        let counts = spans
            .iter()
            .filter_map(|span| attribute(span, name)?.as_str());
        counts.map(|count| count.parse::<u32>().unwrap()).sum()
    };
    for name in ["chat", "invoke_agent"] {
        let found = of(name);
        assert_eq!(
            tokens(&found, "gen_ai.usage.input_tokens"),
            totals.1,
            "{name}"
        );
        assert_eq!(
            tokens(&found, "gen_ai.usage.output_tokens"),
            totals.2,
            "{name}"
        );
    }
    assert_eq!(of("chat").len(), totals.0 as usize);
    assert_eq!(
        (
            of("invoke_agent").len(),
            of("execute_tool").len(),
            of("grade").len()
        ),
        (4, 4, 4)
    );

    let by_id: HashMap<&str, &Value> = spans
        .iter()
        .map(|span| (span["spanId"].as_str().unwrap(), span))
        .collect();
    for span in &spans {
        if operation(span) == "invoke_agent" {
            assert!(span.get("parentSpanId").is_none());
            let event = &span["events"][0];
            assert_eq!(event["name"], "gen_ai.evaluation.result");
            continue;
        }
        let parent = by_id[span["parentSpanId"].as_str().unwrap()];
        assert_eq!(operation(parent), "invoke_agent");
        assert_eq!(parent["traceId"], span["traceId"]);
        let at = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
        assert!(at(span, "startTimeUnixNano") >= at(parent, "startTimeUnixNano"));
        assert!(at(span, "endTimeUnixNano") <= at(parent, "endTimeUnixNano"));
    }
    assert_eq!(
        attribute(of("execute_tool")[0], "gen_ai.tool.name").unwrap(),
        "multiply"
    );
}
