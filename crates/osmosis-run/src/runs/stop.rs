//! Asks the processes that work on a run to end, and waits until they have: by a signal where one process of this machine
//! has the run alone, and by a request in the store where several may work on it.

use std::time::Duration;

use osmosis_store::{Holder, Member, MemberKind, StopRequest, Store};
use rustix::process::{Pid, Signal, kill_process};

use crate::run_folder::RunFolder;
use crate::{RunError, RunErrorKind};

/// The lock of another process gives no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Who was asked to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopTarget {
    /// Nobody works on the run.
    Nobody,
    /// The process that holds it, and its nodes with it.
    Process(Holder),
    /// So many nodes, whose controller is gone.
    Nodes(usize),
}

/// Asks those who work on a run to end.
pub async fn ask_to_stop(folder: &RunFolder, request: StopRequest) -> Result<StopTarget, RunError> {
    let holder = folder.records.holder().await?;
    let store = folder.records.open_read_only().await?;
    let asked = match (holder, store.shared()) {
        (None, None) => StopTarget::Nobody,
        (Some(holder), None) => {
            signal(&holder, request, folder.name())?;
            StopTarget::Process(holder)
        }
        (holder, Some(shared)) => {
            let asked = match (holder, living_nodes(&*store).await.len()) {
                (None, 0) => return Ok(StopTarget::Nobody),
                (None, nodes) => StopTarget::Nodes(nodes),
                (Some(holder), _) => StopTarget::Process(holder),
            };
            shared.ask_to_stop(Some(request)).await?;
            asked
        }
    };
    store.close().await?;
    Ok(asked)
}

/// The nodes of a run that were heard of not long ago.
async fn living_nodes(store: &dyn Store) -> Vec<Member> {
    let Some(shared) = store.shared() else {
        return vec![];
    };
    // Tables of an earlier version have no nodes.
    let mut members = shared.members().await.unwrap_or_default();
    members.retain(|member| member.kind == MemberKind::Node && member.alive);
    members
}

/// Waits until those who were asked have ended.
pub async fn until_stopped(folder: &RunFolder, asked: &StopTarget) -> Result<(), RunError> {
    match asked {
        StopTarget::Nobody => {}
        StopTarget::Process(holder) => {
            // A run that is gone is held by nobody.
            while let Ok(Some(now)) = folder.records.holder().await
                && (now.pid, &now.host) == (holder.pid, &holder.host)
            {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        StopTarget::Nodes(_) => {
            let store = folder.records.open_read_only().await?;
            while !living_nodes(&*store).await.is_empty() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }
    Ok(())
}

fn signal(holder: &Holder, request: StopRequest, run: &str) -> Result<(), RunError> {
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
    let signal = match request {
        StopRequest::Drain => Signal::INT,
        StopRequest::Now => Signal::TERM,
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
