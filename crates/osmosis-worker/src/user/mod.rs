//! The user of the operating system that workers run as.
//!
//! Where the engine is root, its workers get a user of their own, as long as that user can reach what they need
//! (`reach`). The guard above a worker stays root, so that it can end everything below it.

mod decision;
mod identity;
mod reach;

pub use self::decision::{RunsAs, decide};
pub(crate) use self::identity::NOT_INHERITED;
pub use self::identity::WorkerIdentity;
pub use self::reach::{Needed, NeededPath};
pub(crate) use self::reach::{is_open_to_all, open_program, open_tree};
use crate::{Launch, environment};

impl Launch {
    /// Has the process run as another user than the engine.
    pub async fn run_as(&mut self, identity: WorkerIdentity) {
        let sdk = self.needed.iter().find(|it| it.needed == Needed::Sdk);
        if let Some(NeededPath { path: sdk, .. }) = sdk {
            environment::compile_sdk(sdk, &self.program).await;
            if let Err(error) = reach::open_tree(sdk) {
                tracing::debug!(%sdk, %error, "could not be opened to others");
            }
        }
        self.user = Some(identity);
    }
}

/// Why workers can't run as a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    #[error("`user = \"{user}\"` in [workers]: only root can start workers as another user")]
    NotRoot { user: String },
    #[error("`user = \"{user}\"` in [workers]: root is not an unprivileged user")]
    IsRoot { user: String },
    #[error("`user = \"{name}\"` in [workers]: /etc/passwd has no such user")]
    Unknown { name: String },
    #[error("user id {uid} belongs to `{name}` here")]
    Taken { uid: u32, name: String },
    #[error("this system or container does not let root start processes as user {uid}: {message}")]
    CannotSwitch { uid: u32, message: String },
    /// `closed` is `path` or a folder above it.
    #[error("user {uid} can't use {needed} `{path}`: `{closed}` is closed to it (mode {mode:04o})")]
    Closed {
        uid: u32,
        needed: Needed,
        path: String,
        closed: String,
        mode: u32,
    },
}

impl UserError {
    pub fn hint(&self) -> String {
        match self {
            Self::NotRoot { .. } | Self::IsRoot { .. } => {
                "write `user = \"same\"`, or leave it out".to_owned()
            }
            Self::Unknown { .. } => {
                "write the number of the user: `user = 1001`; or make the user with `useradd`"
                    .to_owned()
            }
            Self::Taken { .. } => "name an unprivileged user: `user = NAME` in [workers]".to_owned(),
            Self::CannotSwitch { .. } => {
                "the engine needs the capabilities CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID and SETUID".to_owned()
            }
            Self::Closed { needed, closed, .. } => match needed {
                Needed::Interpreter => format!(
                    "install Python where all users can read it (/usr/local, /opt), or open `{closed}` to them"
                ),
                Needed::Environment => format!(
                    "open it with `chmod -R go+rX {closed}`, or remove the environment: it is made again, readable"
                ),
                Needed::Program | Needed::Project => format!(
                    "open it with `chmod -R go+rX {closed}`, or move the workspace to a folder that all users can enter"
                ),
                Needed::UserPackages => {
                    "install them in an environment (a `pyproject.toml` in the project makes one)".to_owned()
                }
                Needed::Sdk | Needed::Snapshot => {
                    "set OSMOSIS_CACHE_DIR to a folder that all users can enter, such as /var/cache/osmosis".to_owned()
                }
                Needed::Variable(name) => {
                    format!("let `{name}` name something that all users can read, or unset it")
                }
            },
        }
    }
}
