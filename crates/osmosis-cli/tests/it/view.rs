//! `osmosis view` as a program meets it: the API of real runs. Its page is tested in a browser, in `osmosis-view`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use osmosis_testkit::python_environment;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

pub(crate) struct Viewing {
    child: Child,
    /// `127.0.0.1:PORT`
    host: String,
    key: String,
}

impl Viewing {
    pub(crate) fn start(workspace: &Workspace) -> Self {
        let mut child = workspace
            .command(&["view", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
        while !said.ends_with("\n}\n") {
            assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}");
        }
        let envelope: Value = serde_json::from_str(&said).unwrap();
        let resource = &envelope["resource"];
        let url = resource["url"].as_str().unwrap();
        let host = url
            .strip_prefix("http://")
            .and_then(|rest| rest.split('/').next());
        Self {
            child,
            host: host.unwrap().to_owned(),
            key: resource["api_key"].as_str().unwrap().to_owned(),
        }
    }

    fn get(&self, path: &str) -> (u16, Vec<u8>) {
        get(
            &self.host,
            path,
            &format!("authorization: Bearer {}\r\n", self.key),
        )
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        let text = String::from_utf8_lossy(&body);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn stop(mut self) -> Option<i32> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Viewing {
    /// Also when a test fails.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn get(host: &str, path: &str, headers: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(host).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {host}\r\n{headers}connection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = vec![];
    stream.read_to_end(&mut answer).unwrap();
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_off(end + 4);
    if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        return (status, unchunked(&body));
    }
    (status, body)
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut whole = vec![];
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(&String::from_utf8_lossy(&rest[..end]), 16).unwrap();
        whole.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[(end + 4 + size).min(rest.len())..];
    }
    whole
}

#[test]
fn the_api_has_what_the_other_commands_print() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(6));
    let report = workspace.submit_json(&[]);
    let viewing = Viewing::start(&workspace);
    let runs = viewing.json("/api/v1/runs");
    assert_eq!(runs["total_count"], 1);
    assert_eq!(runs["items"][0]["run"], "t");
    assert_eq!(runs["items"][0]["status"], "finished");
    let page = viewing.json("/api/v1/runs/t");
    for number in ["passed", "pass_rate", "outcomes", "reward", "model_calls"] {
        assert_eq!(page["data"]["report"][number], report[number], "{number}");
    }
    let shown = workspace
        .osmosis(&["eval", "show", "t", "3", "--json"])
        .expect(0)
        .json();
    let rollout = viewing.json("/api/v1/runs/t/rollouts/3.0");
    for part in ["reward", "samples", "calls", "rollout_id"] {
        assert_eq!(rollout["data"][part], shown["data"][0][part], "{part}");
    }
    // The number that `--raw` takes.
    assert_eq!(rollout["data"]["calls"][0]["number"], 0);
    for side in ["request", "reply"] {
        let printed = workspace
            .osmosis(&["eval", "show", "t", "3", "--raw", "0", "--part", side])
            .expect(0);
        let path = format!("/api/v1/runs/t/rollouts/3.0/calls/0/{side}");
        let (status, body) = viewing.get(&path);
        assert_eq!((status, body), (200, printed.stdout.into_bytes()), "{side}");
    }
    for path in ["calls/1/reply", "calls/0/else", "attempts/7/calls/0/reply"] {
        let path = format!("/api/v1/runs/t/rollouts/3.0/{path}");
        assert!(matches!(viewing.get(&path).0, 400 | 404), "{path}");
    }
    assert_eq!(
        viewing
            .get("/api/v1/runs/t/rollouts/2.0/calls/99999/reply")
            .0,
        404
    );
    let found = viewing.json("/api/v1/runs/t/rollouts?q=say%203&outcome=passed");
    assert!(found["total_count"].as_u64() >= Some(1), "{found}");
    assert_eq!(viewing.get("/api/v1/runs/none").0, 404);
    assert_eq!(get(&viewing.host, "/api/v1/runs", "").0, 401);
    assert_eq!(viewing.stop(), Some(0));
}

#[test]
fn a_submitted_run_serves_its_page_while_it_runs() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(4));
    let python = python_environment::python();
    let arguments = [
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--name",
        "seen",
        "--view",
        "--python",
    ];
    let mut child = workspace
        .command(&[&arguments[..], &[python.as_str()]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut served = None;
    for line in stderr.lines() {
        let line = line.unwrap();
        if let Some(url) = line.strip_prefix("view: http://") {
            let (host, rest) = url.split_once('/').unwrap();
            assert!(rest.starts_with("runs/seen?key="), "{url}");
            let (status, body) = get(host, &format!("/{rest}"), "");
            served = Some((
                status,
                String::from_utf8_lossy(&body).contains("osmosis view"),
            ));
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(served, Some((200, true)));
}

#[test]
fn a_static_copy_holds_no_secret_in_any_form_that_programs_write() {
    const SECRET: &str = "pä\"ss\\w/örd+1";
    const AGENT: &str = r#"
class Plain(AgentWorkflow):
    async def run(self, ctx):
        import base64, json, os, pathlib, urllib.parse
        key = os.environ["SITE_KEY"]
        forms = [key, json.dumps(key), json.dumps(json.dumps({"key": key})), json.dumps(key, ensure_ascii=False)]
        forms += [urllib.parse.quote(key), urllib.parse.quote_plus(key), repr(key.encode())]
        forms += [base64.b64encode(f"{user}:{key}".encode()).decode() for user in ["u", "us", "use"]]
        text = " ".join(forms)
        pathlib.Path(ctx.artifacts_dir, "notes.txt").write_text(text)
        pathlib.Path(ctx.artifacts_dir, "notes.json").write_text(json.dumps(forms))
        asked = [{"role": "system", "content": text}, *ctx.prompt]
        return [*asked, await ask(asked)]
"#;
    let (head, rest) = PLAIN.split_once("class Plain(AgentWorkflow):").unwrap();
    let grader = &rest[rest.find("class Exact").unwrap()..];
    let mut workspace = Workspace::new(
        &format!("{head}{AGENT}\n{grader}"),
        ECHO_SCRIPT,
        &echo_rows(1),
    );
    workspace.config("[secrets]\nrequired = [\"SITE_KEY\"]\n");
    workspace.variable("SITE_KEY", SECRET);
    workspace.submit(&[]).expect(0);
    workspace
        .osmosis(&["view", "t", "--export", "site"])
        .expect(0);
    let mut files = vec![workspace.root.join("site")];
    let mut redacted = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            let below = path.read_dir_utf8().unwrap();
            files.extend(below.map(|entry| entry.unwrap().into_path()));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        // Parts of it that every form leaves alone, and of its base64 behind `u:`, `us:` and `use:`.
        for part in ["rd+1", "rd%2B1", "DtnJkK", "w7ZyZC", "O2cmQr"] {
            assert!(!text.contains(part), "{path}: {part}");
        }
        if path.extension() == Some("json") {
            serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        redacted += u32::from(text.contains("[redacted]"));
    }
    assert!(redacted >= 5, "{redacted}");
}

#[test]
fn an_export_needs_a_run_and_a_folder_of_its_own() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    workspace.osmosis(&["view", "--export", "site"]).expect(2);
    workspace
        .osmosis(&["view", "none", "--export", "site", "--json"])
        .expect(1);
    workspace.write("site/notes.txt", "mine");
    workspace.submit(&[]).expect(0);
    let refused = workspace
        .osmosis(&["view", "t", "--export", "site", "--json"])
        .expect(2);
    assert_eq!(refused.error()["code"], "file_exists");
    assert_eq!(workspace.read("site/notes.txt"), "mine");
}
