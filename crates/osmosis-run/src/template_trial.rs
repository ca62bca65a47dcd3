//! Chat templates are tried out in a process of their own before they run in this one: this program
//! again, with a limit on its memory and its time.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use osmosis_tokens::{TemplateTrial, TokensError};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, setrlimit};
use sha2::{Digest, Sha256};

/// What the other process is started with; no command of ours is called that.
const ARGUMENT: &str = "--try-chat-template";

/// Address space of the other process. A template needs a few megabytes.
const MEMORY_BYTES: u64 = 1 << 30;

/// Processor time of the other process. A template needs milliseconds.
const SECONDS: u64 = 5;

/// When the machine has no time for the other process, its own clock does not run.
const PATIENCE: Duration = Duration::from_mins(2);

/// How the other process ends when a limit of ours stopped the template; its last words say which.
const REFUSED: u8 = 3;

/// What came of the templates that were tried out already. Once is enough, also for those that were refused.
static TRIED: Mutex<Option<Tried>> = Mutex::new(None);

/// By the digest of a trial: what kept the template from being used.
type Tried = HashMap<[u8; 32], Result<(), String>>;

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
    if let Ok(trial) = trial
        && let Err(TokensError::TemplateRefused { message }) = trial.run()
    {
        let told = std::io::stderr().write_all(message.as_bytes());
        return Some(told.map_or(ExitCode::FAILURE, |()| ExitCode::from(REFUSED)));
    }
    Some(ExitCode::SUCCESS)
}

fn tried(trial: &TemplateTrial) -> Result<(), String> {
    let text = serde_json::to_vec(trial).map_err(|error| error.to_string())?;
    let digest: [u8; 32] = Sha256::digest(&text).into();
    let known = |tried: &Tried| tried.get(&digest).cloned();
    if let Some(result) = TRIED.lock().as_ref().and_then(known) {
        return result;
    }
    let end = ended(&text).map_err(|error| format!("it can't be tried out: {error}"))?;
    let result = if end.status.is_some_and(|status| status.success()) {
        Ok(())
    } else {
        Err(end.why())
    };
    let mut tried = TRIED.lock();
    tried.get_or_insert_default().insert(digest, result.clone());
    result
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

        let code = self.status.and_then(|status| status.code());
        if code == Some(i32::from(REFUSED)) {
            return self.stderr.clone();
        }
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
