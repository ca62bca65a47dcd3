//! A gateway that takes one call.

#![expect(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use osmosis_core::frame::RunTask;
use osmosis_core::{JsonText, RolloutId};

use crate::WorkflowContext;

const REPLY: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,
"message":{"role":"assistant","content":"forty-two"},"finish_reason":"stop"}],
"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

pub(super) fn context(url: &str) -> WorkflowContext {
    let task = RunTask {
        task: 1,
        rollout_id: RolloutId::of(3, 1),
        prompt: JsonText::parse(r#"[{"role":"user","content":"6 × 7?"}]"#).unwrap(),
        metadata: None,
        chat_completions_url: url.to_owned(),
        api_key: "osm-key".to_owned(),
        artifacts_dir: None,
        row: None,
        is_eval: false,
        other_api_key: None,
    };
    WorkflowContext::new(task, Arc::new(())).unwrap()
}

/// A URL, and what was sent to it: the request line and the headers, in lower case.
pub(super) fn serve_one_call() -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let head: Vec<String> = (&mut reader)
            .lines()
            .map(Result::unwrap)
            .take_while(|line| !line.is_empty())
            .map(|line| line.to_lowercase())
            .collect();
        let length = head
            .iter()
            .find_map(|line| line.strip_prefix("content-length: "))
            .unwrap();
        reader
            .read_exact(&mut vec![0; length.parse().unwrap()])
            .unwrap();
        let length = REPLY.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{REPLY}"
        )
        .unwrap();
        head
    });
    (url, serving)
}

/// Checks a call for sample `50% agent ✓` of the rollout of `context`.
pub(super) fn check_identity(head: &[String]) {
    assert_eq!(head[0], "post /v1/chat/completions http/1.1");
    for expected in [
        "authorization: bearer osm-key",
        "x-rollout-id: r3-1",
        "x-sample-id: 50%25%20agent%20%e2%9c%93",
    ] {
        assert!(
            head.iter().any(|line| line == expected),
            "{expected}: {head:?}"
        );
    }
}
