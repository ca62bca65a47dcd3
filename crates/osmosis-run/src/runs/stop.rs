//! Asks the process that holds a run to end, and waits until it has.

use std::time::Duration;

use osmosis_store::Holder;
use rustix::process::{Pid, Signal, kill_process};

use crate::run_folder::RunFolder;
use crate::{RunError, RunErrorKind};

/// The lock of another process gives no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How a process is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Like one Ctrl-C: it finishes what it has begun.
    ToDrain,
    /// At once; what was under way is run again by a resume.
    ToStopNow,
}

/// The process that holds a run, asked to end; `None` when there is none.
pub async fn ask_to_stop(folder: &RunFolder, ask: Ask) -> Result<Option<Holder>, RunError> {
    let Some(holder) = folder.records.holder().await? else {
        return Ok(None);
    };
    signal(&holder, ask, folder.name())?;
    Ok(Some(holder))
}

/// Waits until that process holds the run no more.
pub async fn until_stopped(folder: &RunFolder, holder: &Holder) {
    // A run that is gone is held by nobody.
    while let Ok(Some(now)) = folder.records.holder().await
        && now.pid == holder.pid
    {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn signal(holder: &Holder, ask: Ask, run: &str) -> Result<(), RunError> {
    let here = rustix::system::uname();
    if here.nodename().to_string_lossy() != holder.host {
        return Err(RunError::failed(
            RunErrorKind::RunElsewhere,
            format!("run `{run}` is held by {holder}, on another machine"),
        )
        .hint(format!(
            "stop it there: ssh {} kill {}",
            holder.host, holder.pid
        )));
    }
    let signal = match ask {
        Ask::ToDrain => Signal::INT,
        Ask::ToStopNow => Signal::TERM,
    };
    let cannot = |why: String| {
        RunError::failed(
            RunErrorKind::StopFailed,
            format!("{holder} can't be signalled: {why}"),
        )
    };
    let pid = i32::try_from(holder.pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| cannot("its process id is not known".to_owned()))?;
    kill_process(pid, signal).map_err(|error| cannot(error.to_string()))
}
