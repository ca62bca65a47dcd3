//! `--view`: the page of a run, served while the run goes on.

use std::net::{Ipv4Addr, SocketAddr};

use osmosis_run::RunError;
use osmosis_run::workspace::Workspace;
use osmosis_view::{Viewer, ViewerEnd, ViewerOptions};
use tokio::task::JoinSet;

use super::{ServedPage, browser, segment};
use crate::output::Output;

/// A viewer that ends with the run that it is started for.
#[derive(Debug)]
pub(crate) struct ViewBeside {
    end: ViewerEnd,
    serving: JoinSet<Result<(), RunError>>,
}

impl ViewBeside {
    /// Nothing unless it is `wanted`. The address goes to standard error: what a run prints is its report.
    pub(crate) async fn start(
        wanted: bool,
        run: &str,
        workspace: &Workspace,
        output: &Output,
    ) -> Result<Option<Self>, RunError> {
        if !wanted {
            return Ok(None);
        }
        let viewer = Viewer::listen(ViewerOptions {
            workspace: workspace.clone(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        })
        .await?;
        let page = ServedPage {
            url: viewer.url(&format!("/runs/{}", segment(run))),
            api_key: viewer.api_key().to_owned(),
        };
        output.served_meanwhile(format_args!("view: {}", page.url), &page);
        if output.can_ask() {
            browser::open(&page.url, output);
        }
        let end = viewer.end();
        let mut serving = JoinSet::new();
        serving.spawn(viewer.serve(std::future::pending()));
        Ok(Some(Self { end, serving }))
    }

    /// Open pages show how the run ended before the viewer goes.
    pub(crate) async fn end(beside: Option<Self>) {
        if let Some(Self { end, mut serving }) = beside {
            end.end_after_last_look().await;
            // It ends by itself; what it failed with is no part of the run.
            while serving.join_next().await.is_some() {}
        }
    }
}
