//! The smallest engine that can employ a worker.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use osmosis_core::frame::{
    self, ADDRESS_VARIABLE, Channel, FromWorker, GradeTask, Hello, Load, RunTask, TOKEN_VARIABLE,
    ToWorker,
};
use osmosis_core::{JsonText, RolloutId, Sample};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const TOKEN: &str = "a-token-of-this-test";

/// Nothing here takes this long; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) trait Socket: Read + Write + Send {}
impl<T: Read + Write + Send> Socket for T {}

/// A worker process that was started and welcomed.
pub(crate) struct Worker {
    pub(crate) hello: Hello,
    child: Child,
    control: Box<dyn Socket>,
    /// What it prints, line by line.
    lines: mpsc::Receiver<String>,
    next_task: u64,
    _folder: TempDir,
}

/// The command that starts this binary as a worker.
pub(crate) fn worker_command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(worker_arguments())
        .env_remove(ADDRESS_VARIABLE)
        .env_remove(TOKEN_VARIABLE)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

pub(crate) fn worker_arguments() -> [&'static str; 4] {
    [
        "guest::worker_process",
        "--exact",
        "--ignored",
        "--nocapture",
    ]
}

pub(crate) fn read_frame(stream: &mut dyn Read) -> Option<FromWorker> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).ok()?;
    Some(frame::decode(&body).unwrap())
}

pub(crate) fn write_body(stream: &mut dyn Write, body: &[u8]) {
    let length = u32::try_from(body.len()).unwrap();
    stream.write_all(&length.to_be_bytes()).unwrap();
    stream.write_all(body).unwrap();
}

pub(crate) fn write_frame(stream: &mut dyn Write, frame: &ToWorker) {
    write_body(stream, &frame::encode(frame).unwrap());
}

fn expect_hello(stream: &mut dyn Read) -> Hello {
    match read_frame(stream) {
        Some(FromWorker::Hello(hello)) => hello,
        other => panic!("expected a hello, got {other:?}"),
    }
}

pub(crate) fn json(value: &Value) -> JsonText {
    JsonText::of(value).unwrap()
}

/// What a test wants to know of a failure: its category, kind and message.
pub(crate) fn told(answer: &FromWorker) -> (String, &str, &str) {
    match answer {
        FromWorker::TaskFailed { failure, .. } => {
            let category = serde_json::to_value(failure.category).unwrap();
            let category = category.as_str().unwrap().to_owned();
            (category, &failure.kind, &failure.message)
        }
        other => panic!("expected a failure, got {other:?}"),
    }
}

impl Worker {
    /// Starts a worker that dials in over a Unix socket.
    pub(crate) fn start() -> Self {
        Self::start_with(worker_command())
    }

    pub(crate) fn start_with(command: Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let address = format!("unix:{}", path.display());
        Self::employ(command, &address, folder, move || {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Box::new(stream)
        })
    }

    pub(crate) fn start_over_tcp() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = format!("tcp:{}", listener.local_addr().unwrap());
        let folder = tempfile::tempdir().unwrap();
        Self::employ(worker_command(), &address, folder, move || {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Box::new(stream)
        })
    }

    fn employ(
        mut command: Command,
        address: &str,
        folder: TempDir,
        accept: impl Fn() -> Box<dyn Socket> + Send + 'static,
    ) -> Self {
        let child = command
            .env(ADDRESS_VARIABLE, address)
            .env(TOKEN_VARIABLE, TOKEN)
            .spawn()
            .unwrap();
        let (tell, arrived) = mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..2 {
                let mut stream = accept();
                let hello = expect_hello(&mut stream);
                write_frame(&mut stream, &ToWorker::Welcome { worker: 1 });
                tell.send((hello, stream)).unwrap();
            }
        });
        let (hello, control) = arrived.recv_timeout(PATIENCE).unwrap();
        assert_eq!(hello.channel, Channel::Control);
        let (output_hello, output) = arrived.recv_timeout(PATIENCE).unwrap();
        assert_eq!(output_hello.channel, Channel::Output);
        assert_eq!(output_hello.token, TOKEN);
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            hello,
            child,
            control,
            lines,
            next_task: 1,
            _folder: folder,
        }
    }

    /// Started, and loaded with empty tables.
    pub(crate) fn ready() -> Self {
        let mut worker = Self::start();
        let answer = worker.load("{}", "{}");
        assert!(matches!(answer, FromWorker::Loaded { .. }), "{answer:?}");
        worker
    }

    pub(crate) fn load(&mut self, workflow: &str, grader: &str) -> FromWorker {
        self.load_project(env!("CARGO_MANIFEST_DIR"), workflow, grader)
    }

    pub(crate) fn load_project(
        &mut self,
        project_path: &str,
        workflow: &str,
        grader: &str,
    ) -> FromWorker {
        self.send(&ToWorker::Load(Load {
            project_path: project_path.to_owned(),
            entrypoint: "Cargo.toml".to_owned(),
            workflow: JsonText::parse(workflow).unwrap(),
            grader: JsonText::parse(grader).unwrap(),
        }));
        self.hear()
    }

    pub(crate) fn send(&mut self, frame: &ToWorker) {
        write_frame(&mut self.control, frame);
    }

    /// A frame whose msgpack is already there.
    pub(crate) fn send_body(&mut self, body: &[u8]) {
        write_body(&mut self.control, body);
    }

    pub(crate) fn hear(&mut self) -> FromWorker {
        self.hear_or_end().expect("the worker hung up")
    }

    /// `None` at the end of the connection.
    pub(crate) fn hear_or_end(&mut self) -> Option<FromWorker> {
        loop {
            match read_frame(&mut self.control) {
                // The answer to a cancel, beside what comes of it.
                Some(FromWorker::LoopUnblocked {}) => {}
                other => return other,
            }
        }
    }

    pub(crate) fn hear_started(&mut self, task: u64) {
        assert_eq!(self.hear(), FromWorker::Started { task });
    }

    /// A run on one row, without waiting for anything.
    pub(crate) fn send_run(&mut self, metadata: &Value) -> u64 {
        self.send_run_leaving_files(metadata, None)
    }

    pub(crate) fn send_run_leaving_files(
        &mut self,
        metadata: &Value,
        artifacts_dir: Option<&Path>,
    ) -> u64 {
        let task = self.new_task();
        self.send(&ToWorker::Run(RunTask {
            task,
            rollout_id: RolloutId::of(task, 0),
            prompt: JsonText::parse(r#"[{"role":"user","content":"6 × 7?"}]"#).unwrap(),
            metadata: Some(json(metadata)),
            chat_completions_url: "http://127.0.0.1:1/v1/chat/completions".to_owned(),
            api_key: "osm-key".to_owned(),
            artifacts_dir: artifacts_dir.map(|path| path.display().to_string()),
            row: None,
            is_eval: false,
            other_api_key: None,
        }));
        task
    }

    /// Starts a run and waits until its code executes.
    pub(crate) fn start_run(&mut self, metadata: &Value) -> u64 {
        let task = self.send_run(metadata);
        self.hear_started(task);
        task
    }

    /// Runs to the end.
    pub(crate) fn run(&mut self, metadata: &Value) -> FromWorker {
        self.start_run(metadata);
        self.hear()
    }

    pub(crate) fn grade(
        &mut self,
        metadata: &Value,
        label: Option<&str>,
        samples: Vec<Sample>,
    ) -> FromWorker {
        let task = self.new_task();
        self.send(&ToWorker::Grade(GradeTask {
            task,
            rollout_id: RolloutId::of(task, 0),
            label: label.map(str::to_owned),
            samples,
            metadata: Some(json(metadata)),
            artifacts_dir: None,
            project_path: env!("CARGO_MANIFEST_DIR").to_owned(),
            judge: None,
            turns: BTreeMap::new(),
        }));
        self.hear_started(task);
        self.hear()
    }

    /// The next line of its output.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Hangs up and waits for its end.
    pub(crate) fn hang_up(self) -> ExitStatus {
        drop(self.control);
        wait(self.child)
    }

    /// Waits for its end, with the connection open.
    pub(crate) fn end(self) -> ExitStatus {
        let status = wait(self.child);
        drop(self.control);
        status
    }

    fn new_task(&mut self) -> u64 {
        let task = self.next_task;
        self.next_task += 1;
        task
    }
}

/// Waits for a process, but not for ever.
pub(crate) fn wait(mut child: Child) -> ExitStatus {
    let (tell, ended) = mpsc::channel();
    let process = rustix::process::Pid::from_child(&child);
    std::thread::spawn(move || tell.send(child.wait()));
    let Ok(status) = ended.recv_timeout(PATIENCE) else {
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        panic!("the worker did not end");
    };
    status.unwrap()
}

/// An engine that turns whoever dials in away.
pub(crate) fn refuse_one_worker(mut command: Command) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let refusing = std::thread::spawn(move || {
        let (mut stream, _): (UnixStream, _) = listener.accept().unwrap();
        expect_hello(&mut stream);
        let reason = "not today".to_owned();
        write_frame(&mut stream, &ToWorker::Refused { reason });
    });
    let output = command
        .env(ADDRESS_VARIABLE, format!("unix:{}", path.display()))
        .env(TOKEN_VARIABLE, TOKEN)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    refusing.join().unwrap();
    output
}
