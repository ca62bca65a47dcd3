//! Names of runs: given by the user, or made from the config's name and the time.

use osmosis_core::RunName;
use osmosis_store::RunKind;

use crate::run_folder::RunFolder;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// The value of `--name`, checked.
pub fn given_name(name: Option<&str>) -> Result<Option<RunName>, RunError> {
    name.map(|name| {
        RunName::new(name)
            .map_err(|error| RunError::usage(RunErrorKind::Usage, format!("--name: {error}")))
    })
    .transpose()
}

/// The name of a run, a new one unless one is given, and its folder.
pub fn named_folder(
    name: Option<RunName>,
    stem: &str,
    workspace: &Workspace,
    kind: RunKind,
) -> Result<(RunName, RunFolder), RunError> {
    let name = match name {
        Some(name) => name,
        None => fresh_name(stem, workspace, kind)?,
    };
    let folder = RunFolder::of(workspace, kind, &name);
    Ok((name, folder))
}

/// `multiply-20260101-120000`, with a number behind it when that is taken.
pub fn fresh_name(stem: &str, workspace: &Workspace, kind: RunKind) -> Result<RunName, RunError> {
    let stem: String = stem
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '-'
            }
        })
        .take(80)
        .collect();
    let time = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    for number in 1.. {
        let name = if number == 1 {
            format!("{stem}-{time}")
        } else {
            format!("{stem}-{time}-{number}")
        };
        let name = RunName::new(name)
            .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
        if !RunFolder::of(workspace, kind, &name).path.exists() {
            return Ok(name);
        }
    }
    Err(RunError::failed(RunErrorKind::Internal, "no free run name"))
}
