//! Another name for a run.

use osmosis_core::RunName;
use osmosis_store::RunKey;

use super::{RunUse, RunUses, told};
use crate::run_folder::{RunFolder, replace_file};
use crate::runs::FoundRun;
use crate::runs::stores::catalogue;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// A run that has another name now.
#[derive(Debug, Clone)]
pub struct Renamed {
    pub run: RunKey,
    pub former_name: RunName,
    pub folder: RunFolder,
    /// Who names it as it was called before. They find it all the same, until another run gets that name.
    pub used_by: Vec<RunUse>,
}

pub async fn rename(workspace: &Workspace, run: &str, to: &RunName) -> Result<Renamed, RunError> {
    let from = FoundRun::of_any_kind(workspace, run).await?;
    let former = from.key();
    if from.name == *to {
        return Err(RunError::usage(
            RunErrorKind::Usage,
            format!("run `{from}` has that name already"),
        ));
    }
    let catalogue = catalogue(workspace)?;
    let uses = RunUses::of(workspace, &*catalogue).await?;
    let used_by = uses.of_run(&former);
    catalogue
        .rename(&former, to)
        .await
        .map_err(|error| told(error, &former))?;
    let folder = RunFolder::of(workspace, from.kind, to);
    correct_metrics(&from.folder, &folder)?;
    Ok(Renamed {
        run: RunKey {
            kind: from.kind,
            name: to.clone(),
        },
        former_name: from.name,
        folder,
        used_by,
    })
}

/// `metrics.json` has the name and paths in it. Edited as text, so that every number stays as it was written.
fn correct_metrics(from: &RunFolder, to: &RunFolder) -> Result<(), RunError> {
    let Ok(text) = std::fs::read_to_string(to.metrics()) else {
        // A run that has not come so far, or a server's.
        return Ok(());
    };
    let named = |folder: &RunFolder| format!("\"run_name\": \"{}\"", folder.name());
    let corrected = text
        .replacen(&named(from), &named(to), 1)
        .replace(&format!("\"{}\"", from.path), &format!("\"{}\"", to.path))
        .replace(&format!("\"{}/", from.path), &format!("\"{}/", to.path));
    replace_file(&to.metrics(), |file| {
        std::io::Write::write_all(file, corrected.as_bytes())
    })
}
