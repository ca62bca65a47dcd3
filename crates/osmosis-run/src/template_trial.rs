//! Chat templates are tried out in a process of their own before they run in this one: this program
//! again, with a limit on its memory and its time.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use osmosis_tokens::TemplateTrial;
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, setrlimit};
use sha2::{Digest, Sha256};

/// What the other process is started with; no command of ours is called that.
const ARGUMENT: &str = "--try-chat-template";

/// Address space of the other process. A template needs a few megabytes.
const MEMORY_BYTES: u64 = 1 << 30;

/// Processor time of the other process. A template needs milliseconds.
const SECONDS: u64 = 10;

/// When the machine has no time for the other process, its own clock does not run.
const PATIENCE: Duration = Duration::from_mins(2);

/// Templates that have passed already.
static PASSED: Mutex<Option<HashSet<[u8; 32]>>> = Mutex::new(None);

/// From now on templates are tried out first.
pub fn install() {
    osmosis_tokens::try_templates_with(tried);
}

/// The other process: tries out what standard input holds, when this is one.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let asked = arguments
        .next()
        .is_some_and(|first| first == OsStr::new(ARGUMENT));
    if !asked || arguments.next().is_some() {
        return None;
    }
    let limit = |resource, most| {
        setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )
    };
    let limited = limit(Resource::Core, 0)
        .and_then(|()| limit(Resource::Cpu, SECONDS))
        .and_then(|()| limit(Resource::As, MEMORY_BYTES));
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    let trial = serde_json::from_str::<TemplateTrial>(&text);
    if limited.is_err() || read.is_err() {
        return Some(ExitCode::FAILURE);
    }
    if let Ok(trial) = trial {
        trial.run();
    }
    Some(ExitCode::SUCCESS)
}

fn tried(trial: &TemplateTrial) -> Result<(), String> {
    let text = serde_json::to_vec(trial).map_err(|error| error.to_string())?;
    let digest: [u8; 32] = Sha256::digest(&text).into();
    let known = |passed: &HashSet<_>| passed.contains(&digest);
    if PASSED.lock().as_ref().is_some_and(known) {
        return Ok(());
    }
    let end = ended(&text).map_err(|error| format!("it can't be tried out: {error}"))?;
    if end.status.is_some_and(|status| status.success()) {
        PASSED.lock().get_or_insert_default().insert(digest);
        return Ok(());
    }
    Err(end.why())
}

/// How the other process ended.
struct End {
    /// `None` when it had to be killed.
    status: Option<ExitStatus>,
    stderr: String,
}

fn ended(text: &[u8]) -> std::io::Result<End> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(ARGUMENT)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may end before it has read all of it; its end says why.
        let _ = stdin.write_all(text);
    }
    let status = wait(&mut child)?;
    let mut stderr = String::new();
    if let Some(pipe) = child.stderr.take() {
        // The last words of a process; a line or two.
        let _ = pipe.take(4096).read_to_string(&mut stderr);
    }
    Ok(End { status, stderr })
}

fn wait(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

impl End {
    fn why(&self) -> String {
        use std::os::unix::process::ExitStatusExt as _;

        use rustix::process::Signal;

        let signal = self.status.and_then(|status| status.signal());
        let is = |wanted: Signal| signal == Some(wanted.as_raw());
        let what = if self.status.is_none() || is(Signal::XCPU) || is(Signal::KILL) {
            format!("keeps it busy for more than {SECONDS} s")
        } else if self.stderr.contains("overflowed its stack") {
            "makes it overflow the stack".to_owned()
        } else if is(Signal::ABORT) {
            format!(
                "makes it take more than {} MiB of memory",
                MEMORY_BYTES >> 20
            )
        } else {
            let status = self.status.map(|status| status.to_string());
            format!("makes its process end with {}", status.unwrap_or_default())
        };
        format!("a short conversation {what}")
    }
}
