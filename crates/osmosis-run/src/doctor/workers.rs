//! As whom workers run, and what user code can therefore read and write.

use osmosis_worker::environment::{self, Surroundings};
use osmosis_worker::user::{Needed, NeededPath, RunsAs};

use crate::reports::DoctorFinding;
use crate::workspace::Workspace;

/// For runs whose config does not name a user. Changes nothing.
pub(super) fn finding(workspace: &Workspace, mut needed: Vec<NeededPath>) -> DoctorFinding {
    const NAME: &str = "workers";
    if let Ok(sdk) = environment::sdk_state() {
        needed.push(NeededPath {
            needed: Needed::Sdk,
            path: sdk.path,
        });
    }
    let cache = Surroundings::from_environment().cache;
    match RunsAs::expected(&needed, cache.as_deref()) {
        RunsAs::Engine => {
            let uid = rustix::process::geteuid().as_raw();
            let text = format!(
                "run as you (user {uid}): user code can read and write what you can, `.osmosis` and `data` included"
            );
            DoctorFinding::good(NAME, text)
        }
        RunsAs::Root(error) => DoctorFinding {
            hint: Some(format!("{error}; {}", error.hint())),
            ..DoctorFinding::good(
                NAME,
                "run as root: user code can read and write everything, `.osmosis` and `data` included",
            )
        },
        RunsAs::Other(user) => {
            let data = workspace.root.join("data");
            let data = if data.exists() && user.can_read(&data) {
                ", `data` included"
            } else {
                ""
            };
            let text = format!(
                "run as user {}: user code can read what all users can{data}, and write to its own folders and where all users can",
                user.uid
            );
            DoctorFinding::good(NAME, text)
        }
    }
}
