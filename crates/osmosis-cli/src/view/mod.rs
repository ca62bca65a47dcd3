//! `osmosis view`: the page where people look at runs.

mod beside;
mod browser;

use std::fmt::Write as _;

use camino::Utf8PathBuf;
use osmosis_run::RunError;
use osmosis_run::runs::FoundRun;
use osmosis_run::stop_signals::OnTerminate;
use osmosis_view::export::{Export, ExportedSite};
use osmosis_view::{Viewer, ViewerOptions};
use serde::Serialize;

pub(crate) use beside::ViewBeside;

use crate::arguments::ViewArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::stop_signals::StopSignals;
use crate::workspace::{Workspace, WorkspaceChoice, absolute};

/// The `resource` of `view --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ServedPage {
    /// Works once.
    pub(crate) url: String,
    /// For `Authorization: Bearer`, until the command ends.
    pub(crate) api_key: String,
}

pub(crate) async fn run(
    arguments: ViewArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = workspace.find(None)?;
    if let Some(folder) = &arguments.export {
        return export(&arguments, absolute(folder)?, workspace, output).await;
    }
    let path = match &arguments.runs[..] {
        [] => "/".to_owned(),
        [run] => {
            FoundRun::of_any_kind(&workspace, run).await?;
            format!("/runs/{}", segment(run))
        }
        runs => {
            for run in runs {
                FoundRun::of_any_kind(&workspace, run).await?;
            }
            format!("/compare/{}", segment(&runs.join(",")))
        }
    };
    let signals = StopSignals::listen(OnTerminate::StopNow)?;
    let viewer = Viewer::listen(ViewerOptions {
        workspace,
        listen: arguments.listen,
    })
    .await?;
    let page = ServedPage {
        url: viewer.url(&path),
        api_key: viewer.api_key().to_owned(),
    };
    output.line(&page.url);
    output.line(format_args!("API key: {}", page.api_key));
    output.note("The address works once. Ctrl-C stops.");
    output.operation("serving", &page);
    if arguments.open || (!arguments.no_open && output.can_ask()) {
        browser::open(&page.url, output);
    }
    viewer.serve(signals.stop.drain.cancelled()).await?;
    Ok(Exit::Ok)
}

async fn export(
    arguments: &ViewArguments,
    folder: Utf8PathBuf,
    workspace: Workspace,
    output: &Output,
) -> Result<Exit, RunError> {
    let export = Export {
        workspace,
        runs: arguments.runs.clone(),
        folder,
        secrets_file: arguments.secrets_file.clone(),
    };
    let progress = crate::output::Counter::new(output, "rollouts written");
    let site: ExportedSite = export
        .write(&|done, total| progress.show(done, total))
        .await?;
    progress.finish();
    output.line(format_args!(
        "{} rollouts in {} files, {} MB: {}",
        site.rollouts,
        site.files,
        site.bytes.div_ceil(1_000_000),
        site.path
    ));
    output.note(format_args!(
        "Any web server can serve it, for example: python3 -m http.server --directory {}",
        site.path
    ));
    output.operation("exported", &site);
    Ok(Exit::Ok)
}

/// A name as one part of an address.
fn segment(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let mut text = String::new();
    for byte in name.bytes() {
        if plain(byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}
