//! `osmosis model merge` and `model export`.

use osmosis_policy::GgufType;
use osmosis_run::RunError;
use osmosis_run::figures::bytes_text;
use osmosis_run::model_export::{ModelFormat, export, model_path};
use osmosis_run::reports::ExportedModelReport;

use crate::arguments::{DtypeArgument, ModelCommand, ModelFormatArgument, ModelMergeArguments};
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::{WorkspaceChoice, absolute};

pub(crate) async fn run(
    command: ModelCommand,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let (arguments, format, status) = match command {
        ModelCommand::Merge(arguments) => (arguments, ModelFormat::Hf, "merged"),
        ModelCommand::Export(arguments) => {
            let format = match (arguments.format, arguments.dtype) {
                (ModelFormatArgument::Hf, _) => ModelFormat::Hf,
                (ModelFormatArgument::Peft, _) => ModelFormat::Peft,
                (ModelFormatArgument::Gguf, DtypeArgument::F32) => ModelFormat::Gguf(GgufType::F32),
                (ModelFormatArgument::Gguf, DtypeArgument::F16) => ModelFormat::Gguf(GgufType::F16),
            };
            (arguments.model, format, "exported")
        }
    };
    let ModelMergeArguments { model, to } = arguments;
    let workspace = workspace.find(None)?;
    let exported = export(&workspace, model_path(&model)?, &absolute(&to)?, format).await?;
    let report = ExportedModelReport::of(&exported);
    let files = match report.files.len() {
        1 => "one file".to_owned(),
        count => format!("{count} files"),
    };
    output.line(format_args!(
        "Wrote `{}` as {} to {}: {files}, {}.",
        report.model,
        report.format,
        report.folder,
        bytes_text(report.bytes)
    ));
    output.operation(status, &report);
    Ok(Exit::Ok)
}
