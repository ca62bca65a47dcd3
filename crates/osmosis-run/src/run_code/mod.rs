//! The code that a run executes: a snapshot of the project, which nothing that happens to the project changes.
//!
//! - The *snapshot* has the project's files by digest, in the user's cache. Workers import from it.
//! - The *scratch copy* is the folder that workers run in, beside the project's. What the project writes below its own
//!   folder is written there.
//! - The *seal* notes both, the environment and the SDK; it is compared before each process that is started, and at the
//!   end of the run.

mod scratch;
mod snapshot;

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::WorkerUser;
use osmosis_worker::environment::Surroundings;
use osmosis_worker::seal::{Seal, Sealed, Unsealed};
use osmosis_worker::user::{self, Needed, NeededPath, RunsAs};
use osmosis_worker::{Launch, WorkerError};
use serde_json::json;

use self::scratch::Scratch;
use self::snapshot::{Snapshot, snapshots_folder};
use crate::notices::Notices;
use crate::prepared::Prepared;
use crate::source_digest::bytes_digest;
use crate::source_files::ProjectSource;
use crate::{RunError, RunErrorKind, io_error};

/// Tells a Python worker where the snapshot is, a JSON object.
const SNAPSHOT_VARIABLE: &str = "_OSMOSIS_SNAPSHOT";

/// Larger files are not copied: the original is read, and has to stay as it is.
const MOST_COPIED: u64 = 64 << 20;

/// A project that keeps changing while it is copied is read again so often.
const ATTEMPTS: u32 = 5;

/// What one run executes, from its preparation to its end.
#[derive(Debug)]
pub struct RunCode {
    prepared: Prepared,
    project: Utf8PathBuf,
    source: ProjectSource,
    snapshot: Snapshot,
    scratch: Scratch,
    seal: Arc<Seal>,
    /// Of a project in Rust: its binary.
    _binary: Option<Snapshot>,
}

impl RunCode {
    /// Copies what is not in the cache yet, and notes how everything is.
    pub async fn take(project: &Utf8Path, prepared: Prepared) -> Result<Self, RunError> {
        let project = project.to_owned();
        let taking = tokio::task::spawn_blocking(move || Self::take_now(&project, prepared));
        let taken = taking.await;
        taken.map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?
    }

    fn take_now(project: &Utf8Path, mut prepared: Prepared) -> Result<Self, RunError> {
        let project = project
            .canonicalize_utf8()
            .map_err(|error| io_error(project, &error))?;
        let cache = snapshots_folder()?;
        let binary = match &mut prepared {
            Prepared::Python(_) => None,
            Prepared::Rust(built) => {
                let binary = Snapshot::of_binary(&cache, &built.program)?;
                built.program = binary.only_file();
                Some(binary)
            }
        };
        let (source, snapshot) = copy_project(&cache, &project)?;
        let scratch = Scratch::make(&project, &source, &snapshot)?;
        let mut sealed = prepared.sealed();
        sealed.push(Sealed::Folder(snapshot.files.clone()));
        sealed.push(Sealed::Files(scratch.files.clone()));
        sealed.extend(binary.iter().map(|one| Sealed::Folder(one.files.clone())));
        let python = prepared.interpreter().map(Utf8Path::to_owned);
        let seal = Seal::new(sealed, python).map_err(|error| io_error(&project, &error))?;
        Ok(Self {
            prepared,
            project,
            source,
            snapshot,
            scratch,
            seal: Arc::new(seal),
            _binary: binary,
        })
    }

    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// The digests of the files that are executed.
    pub fn source(&self) -> &ProjectSource {
        &self.source
    }

    /// Where the content of one of them is.
    pub(crate) fn file(&self, name: &str) -> Utf8PathBuf {
        let copied = self.snapshot.files.join(name);
        if copied.exists() {
            copied
        } else {
            self.project.join(name)
        }
    }

    /// The folder that workers run in.
    pub fn folder(&self) -> &Utf8Path {
        &self.scratch.folder
    }

    /// How to start workers, as the user that was chosen, with variables beside what workers inherit. Says so where they
    /// run as root although another user was to be found.
    pub async fn launch_as(
        &self,
        choice: &WorkerUser,
        variables: Vec<(String, String)>,
        notices: &dyn Notices,
    ) -> Result<Launch, RunError> {
        let mut launch = self.launch(variables);
        let cache = Surroundings::from_environment().cache;
        let decided = user::decide(choice, &launch.needed, cache.as_deref());
        match decided.map_err(WorkerError::from)? {
            RunsAs::Engine => {}
            RunsAs::Root(error) => notices.note(format_args!(
                "workers run as root, like the engine: {error}\nhint: {}; `user = \"same\"` in [workers] hides this note",
                error.hint()
            )),
            RunsAs::Other(identity) => {
                self.scratch
                    .lend_to(&identity)
                    .map_err(|error| io_error(&self.scratch.folder, &error))?;
                Box::pin(launch.run_as(identity)).await;
            }
        }
        Ok(launch)
    }

    fn launch(&self, mut variables: Vec<(String, String)>) -> Launch {
        let snapshot = json!({
            "project": self.project,
            "folder": self.scratch.folder,
            "snapshot": self.snapshot.files,
            "importable": self.scratch.importable,
        });
        if self.prepared.interpreter().is_some() {
            variables.push((SNAPSHOT_VARIABLE.to_owned(), snapshot.to_string()));
        }
        let mut launch = self.prepared.launch(&self.scratch.folder, variables);
        launch.seal = Some(Arc::clone(&self.seal));
        // The scratch copy is lent to the workers' user; the project has to be open to it, for what is not copied.
        let project = launch
            .needed
            .iter_mut()
            .find(|it| it.path == self.scratch.folder);
        if let Some(project) = project {
            project.path.clone_from(&self.project);
        }
        launch.needed.push(NeededPath {
            needed: Needed::Snapshot,
            path: self.snapshot.files.clone(),
        });
        launch
    }

    /// The code was imported, and nothing has run yet: packages are as they should be.
    pub async fn imported(&self) -> Result<(), RunError> {
        let seal = Arc::clone(&self.seal);
        let noted = tokio::task::spawn_blocking(move || seal.note_packages()).await;
        let noted =
            noted.map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
        noted.map_err(|error| io_error(&self.project, &error))
    }

    /// The end of the run: everything is compared once more, and what the project wrote is told.
    pub async fn finish(self: Arc<Self>, notices: &dyn Notices) -> Result<(), RunError> {
        let finishing = tokio::task::spawn_blocking(move || {
            let unchanged = self.seal.check();
            let written = self.scratch.finish();
            (unchanged, written, self)
        });
        let finished = finishing.await;
        let (unchanged, written, code) = finished
            .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
        if !written.is_empty() {
            notices.note(format_args!(
                "The project wrote below its own folder: {}. A run works in a copy, so that this is in `{}`, for {} days",
                named(&written),
                code.folder(),
                scratch::KEPT_DAYS,
            ));
        }
        Ok(unchanged?)
    }
}

fn named(paths: &[Utf8PathBuf]) -> String {
    const MOST: usize = 10;
    let shown = paths.iter().take(MOST).map(|path| format!("`{path}`"));
    let text = shown.collect::<Vec<_>>().join(", ");
    match paths.len().saturating_sub(MOST) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// The project's files as they are at one moment: what is copied is what was digested.
fn copy_project(
    cache: &Utf8Path,
    project: &Utf8Path,
) -> Result<(ProjectSource, Snapshot), RunError> {
    for _ in 0..ATTEMPTS {
        let source = ProjectSource::read(project)?;
        let copied = source.packed.iter().filter(|(name, _)| {
            let metadata = project.join(name).metadata();
            metadata.is_ok_and(|metadata| metadata.len() <= MOST_COPIED)
        });
        let files = copied.map(|(name, file)| (name.clone(), file.clone()));
        let read = |name: &str| std::fs::read(project.join(name));
        if let Some(snapshot) = Snapshot::make(cache, &files.collect(), read)? {
            return Ok((source, snapshot));
        }
    }
    Err(RunError::failed(
        RunErrorKind::CodeChanged,
        format!("the files of `{project}` keep changing while they are copied"),
    )
    .hint("wait until they are written, or list those that don't count in `.osmosisignore`"))
}

impl From<Unsealed> for RunError {
    fn from(changed: Unsealed) -> Self {
        Self::failed(
            RunErrorKind::CodeChanged,
            format!("the code of the run changed while it was active: {changed}"),
        )
        .hint(
            "an agent or another program wrote there, so results may be of other code: find out which, then start \
             again with `--fresh`. Files that a project may write are listed in its `.osmosisignore`",
        )
    }
}

/// Whether the content there is that of a digest.
fn is_content(content: &[u8], sha256: &str) -> bool {
    bytes_digest(content) == sha256
}
