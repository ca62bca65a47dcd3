//! Deleting runs: what would go, how large it is and who uses it, before anything is touched.

use osmosis_store::{Catalogue, RunKey, RunPlace, RunSize, StoreError};

use super::archive::find_archived;
use super::{RunUse, RunUses, reference_of, renamed_from, told};
use crate::runs::FoundRun;
use crate::runs::stores::catalogue;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// A run that is about to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunToRemove {
    pub run: RunKey,
    pub place: RunPlace,
    pub size: RunSize,
    /// Who will miss it.
    pub used_by: Vec<RunUse>,
}

impl RunToRemove {
    pub(super) async fn of(
        catalogue: &dyn Catalogue,
        uses: &RunUses,
        run: RunKey,
        place: RunPlace,
    ) -> Result<Self, RunError> {
        let used_by = match &place {
            RunPlace::Listed(run) => uses.of_run(run),
            // Whoever uses its name means another run, or none.
            RunPlace::Archived(_) => vec![],
        };
        let size = catalogue.size(&place).await;
        Ok(Self {
            size: size.map_err(|error| told(error, &run))?,
            run,
            place,
            used_by,
        })
    }

    /// Deletes it, for good.
    pub async fn remove(&self, workspace: &Workspace) -> Result<(), RunError> {
        let removed = catalogue(workspace)?.remove(&self.place).await;
        removed.map_err(|error| told(error, &self.run))
    }
}

/// The runs that these names mean, each once. Nothing is removed when one of them is held, or does not exist.
pub async fn to_remove(
    workspace: &Workspace,
    runs: &[String],
    archived: bool,
) -> Result<Vec<RunToRemove>, RunError> {
    let catalogue = catalogue(workspace)?;
    let uses = RunUses::of(workspace, &*catalogue).await?;
    let mut found: Vec<RunToRemove> = vec![];
    for text in runs {
        let (run, place) = if archived {
            let archived = find_archived(workspace, text).await?;
            (archived.key, RunPlace::Archived(archived.id))
        } else {
            let run = FoundRun::of_any_kind(workspace, text).await?;
            refuse_former_name(workspace, &run, text).await?;
            (run.key(), RunPlace::Listed(run.key()))
        };
        if let RunPlace::Listed(run) = &place
            && let Some(holder) = catalogue.holder(run).await?
        {
            let held = StoreError::Held {
                path: workspace.runs_dir(run.kind).join(run.name.as_str()),
                holder: holder.to_string(),
            };
            return Err(told(held, run));
        }
        if found.iter().all(|other| other.place != place) {
            found.push(RunToRemove::of(&*catalogue, &uses, run, place).await?);
        }
    }
    Ok(found)
}

/// Whoever deletes has to use the name that the run has now.
async fn refuse_former_name(
    workspace: &Workspace,
    run: &FoundRun,
    text: &str,
) -> Result<(), RunError> {
    let name = text.rsplit('/').next().unwrap_or(text);
    if run.name.as_str() != name
        && renamed_from(workspace, run.kind, name).await?.as_ref() == Some(&run.name)
    {
        return Err(RunError::usage(
            RunErrorKind::RunNotFound,
            format!(
                "`{text}` is a former name of run `{}`",
                reference_of(&run.key())
            ),
        )
        .hint("name it as it is called now"));
    }
    Ok(())
}
