//! What of a run's workspace goes into its package.

use bytes::Bytes;
use camino::Utf8Path;
use osmosis_core::config::{Experiment, ModelPath};

use super::package::{CHAT_TEMPLATE, JUDGE_SCRIPT, MODEL_SCRIPT, PackageBuilder};
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
    // As the snapshot has them, so that nodes run what is run here.
    let run_code = code.run_code()?;
    for (name, file) in &run_code.source().packed {
        let place = format!("rollouts/{project}/{name}");
        package.add_file(&place, read(&run_code.file(name))?, file.executable);
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
