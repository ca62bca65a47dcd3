//! What of a run's workspace goes into its package.

use std::os::unix::fs::PermissionsExt as _;

use bytes::Bytes;
use camino::Utf8Path;
use osmosis_core::config::{Experiment, ModelPath};

use super::package::{CHAT_TEMPLATE, JUDGE_SCRIPT, MODEL_SCRIPT, PackageBuilder};
use crate::source_files::files_to_pack;
use crate::user_code::UserCode;
use crate::workspace::Workspace;
use crate::{RunError, io_error as io};

/// The project's files, scripts and the chat template.
pub fn pack(
    code: &UserCode,
    workspace: &Workspace,
    judge_model: Option<&ModelPath>,
    seed: u64,
) -> Result<PackageBuilder, RunError> {
    let mut package = PackageBuilder::new(seed);
    let experiment = &code.experiment;
    pack_project(&mut package, code)?;
    for (model, name) in [
        (Some(&experiment.model_path), MODEL_SCRIPT),
        (judge_model, JUDGE_SCRIPT),
    ] {
        if let Some(ModelPath::Script(path)) = model {
            package.attach(name, read(&workspace.root.join(path))?);
        }
    }
    pack_template(&mut package, experiment, workspace)?;
    Ok(package)
}

fn pack_project(package: &mut PackageBuilder, code: &UserCode) -> Result<(), RunError> {
    let project = code.experiment.rollout.as_str();
    for name in files_to_pack(&code.rollout_dir)? {
        let path = code.rollout_dir.join(&name);
        let metadata = path.metadata().map_err(|error| io(&path, &error))?;
        let executable = metadata.permissions().mode() & 0o100 != 0;
        let place = format!("rollouts/{project}/{name}");
        package.add_file(&place, read(&path)?, executable);
    }
    Ok(())
}

fn pack_template(
    package: &mut PackageBuilder,
    experiment: &Experiment,
    workspace: &Workspace,
) -> Result<(), RunError> {
    if let Some(template) = &experiment.chat_template {
        package.attach(CHAT_TEMPLATE, read(&workspace.root.join(template))?);
    }
    Ok(())
}

fn read(path: &Utf8Path) -> Result<Bytes, RunError> {
    let content = std::fs::read(path).map_err(|error| io(path, &error))?;
    Ok(content.into())
}
