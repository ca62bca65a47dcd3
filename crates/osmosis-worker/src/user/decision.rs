use camino::Utf8Path;
use osmosis_core::config::WorkerUser;

use super::identity::known_users;
use super::reach::{NeededPath, Opening, can_read, check};
use super::{UserError, WorkerIdentity};

/// As whom workers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunsAs {
    /// As the engine's user.
    Engine,
    /// As the engine's user, which is root, because no other one will do.
    Root(UserError),
    Other(WorkerIdentity),
}

impl RunsAs {
    /// As whom they would run with `auto`. Changes nothing.
    pub fn expected(needed: &[NeededPath], cache: Option<&Utf8Path>) -> Self {
        if rustix::process::geteuid().is_root() && cfg!(target_os = "linux") {
            unprivileged(needed, cache, Opening::Never)
        } else {
            Self::Engine
        }
    }
}

impl WorkerIdentity {
    /// Whether this user can read a file, or all of a folder.
    pub fn can_read(&self, path: &Utf8Path) -> bool {
        can_read(self, path)
    }
}

/// Decides as whom workers run that need `needed`; what of it is in our `cache` is opened to that user. An error only
/// where a user was named.
pub fn decide(
    choice: &WorkerUser,
    needed: &[NeededPath],
    cache: Option<&Utf8Path>,
) -> Result<RunsAs, UserError> {
    let engine = rustix::process::geteuid().as_raw();
    let named = match choice {
        WorkerUser::Same => return Ok(RunsAs::Engine),
        WorkerUser::Auto if engine != 0 || !cfg!(target_os = "linux") => return Ok(RunsAs::Engine),
        WorkerUser::Auto => return Ok(unprivileged(needed, cache, Opening::Now)),
        WorkerUser::Named(name) => WorkerIdentity::of_name(name, &known_users())
            .ok_or_else(|| UserError::Unknown { name: name.clone() })?,
        WorkerUser::Uid(uid) => WorkerIdentity::of_uid(*uid, &known_users()),
    };
    let user = match choice {
        WorkerUser::Uid(uid) => uid.to_string(),
        WorkerUser::Named(name) => name.clone(),
        WorkerUser::Auto | WorkerUser::Same => String::new(),
    };
    if named.uid == 0 {
        return Err(UserError::IsRoot { user });
    }
    if named.uid == engine {
        return Ok(RunsAs::Engine);
    }
    if engine != 0 {
        return Err(UserError::NotRoot { user });
    }
    check(&named, needed, cache, Opening::Now)?;
    Ok(RunsAs::Other(named))
}

fn unprivileged(needed: &[NeededPath], cache: Option<&Utf8Path>, opening: Opening) -> RunsAs {
    let found = WorkerIdentity::unprivileged(&known_users()).map_err(|name| UserError::Taken {
        uid: WorkerIdentity::OWN_ID,
        name,
    });
    let checked = found.and_then(|identity| {
        check(&identity, needed, cache, opening)?;
        Ok(identity)
    });
    match checked {
        Ok(identity) => RunsAs::Other(identity),
        Err(error) => RunsAs::Root(error),
    }
}
