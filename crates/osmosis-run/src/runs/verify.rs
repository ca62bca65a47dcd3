//! Checks every row, model call and checkpoint of a run against its checksum. Nothing is changed.

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::{Damage, ProgressVisitor, RunKind, VerifyReport};
use osmosis_train::checkpoints;

use super::{FoundRun, stores};
use crate::RunError;
use crate::workspace::Workspace;

/// A run that was checked.
#[derive(Debug)]
pub struct Verified {
    pub run: FoundRun,
    /// What was checked, and what is damaged; checkpoints included.
    pub report: VerifyReport,
    pub checkpoints: u64,
    /// Models of trainers outside, which have no checksums.
    pub checkpoints_without_checksum: u64,
}

/// Checks the run that `run` names; `progress` is called now and then.
pub async fn verify(
    workspace: &Workspace,
    run: &str,
    progress: ProgressVisitor,
) -> Result<Verified, RunError> {
    let run = FoundRun::of_any_kind(workspace, run).await?;
    let catalogue = stores::catalogue(workspace)?;
    let report = catalogue.verify(&run.key(), progress).await?;
    let mut verified = Verified {
        run,
        report,
        checkpoints: 0,
        checkpoints_without_checksum: 0,
    };
    if verified.run.kind == RunKind::Training {
        verified.check_checkpoints();
    }
    Ok(verified)
}

impl Verified {
    fn check_checkpoints(&mut self) {
        let folder = &self.run.folder.path;
        for checkpoint in checkpoints::list(folder).unwrap_or_default() {
            self.checkpoints += 1;
            if checkpoint.is_model_alone() {
                self.checkpoints_without_checksum += 1;
                continue;
            }
            if let Err(error) = checkpoint.verify() {
                let name: Utf8PathBuf = checkpoint
                    .folder
                    .strip_prefix(folder)
                    .map_or_else(|_| checkpoint.folder.clone(), Utf8Path::to_owned);
                self.report.findings += 1;
                self.report.damage.push(Damage {
                    place: name.into_string(),
                    message: error.to_string(),
                });
            }
        }
    }
}
