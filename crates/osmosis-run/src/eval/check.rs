//! `--dry-run`: everything that an evaluation needs is tried out, and no run is made.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::frame::Manifest;
use osmosis_engine::RunEvent;
use serde_json::Value;

use super::evaluation::Evaluation;
use super::plan::UserSide;
use super::probe::ProbeResult;
use crate::RunError;
use crate::life::{Surroundings, rehearse};
use crate::notices::Notices;
use crate::stop_signals::StopSignals;
use crate::tracking;
use crate::user_code::UserCode;
use crate::withheld::Withheld;

/// What a check without a run found.
#[derive(Debug)]
pub struct EvalCheck {
    pub model_server: ProbeResult,
    pub side: CheckedSide,
}

#[derive(Debug)]
pub enum CheckedSide {
    Here {
        manifest: Box<Manifest>,
        /// The interpreter or binary.
        program: Utf8PathBuf,
        withheld: Withheld,
    },
    AtServer {
        url: String,
        health: Value,
    },
}

impl Evaluation {
    /// Checks everything that a run would need, and starts none.
    pub async fn check(
        &self,
        stop: &StopSignals,
        notices: &Arc<dyn Notices>,
    ) -> Result<EvalCheck, RunError> {
        rehearse(stop, notices, async |around| {
            self.plan.ready.end_with(around.parts);
            let model_server = self.probe(&**around.notices).await?;
            let side = match &self.plan.side {
                UserSide::Here(code) => self.check_code(code, around).await?,
                UserSide::AtServer(server) => {
                    let reached = server.reach().await?;
                    self.check_trackers(None).await?;
                    self.tell_server(&*reached, &**around.notices);
                    CheckedSide::AtServer {
                        url: server.url().to_owned(),
                        health: reached.health().clone(),
                    }
                }
            };
            Ok(EvalCheck { model_server, side })
        })
        .await
    }

    async fn check_code(
        &self,
        code: &UserCode,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<CheckedSide, RunError> {
        let start = self.code_start(code);
        let mut ready = start.prepare(around).await?;
        self.check_trackers(ready.interpreter()).await?;
        let workers = start.start(&mut ready, around).await?;
        let manifest = workers.manifest();
        self.plan.dataset.check_for(manifest)?;
        code.tell(manifest, &self.amount(), &**around.notices);
        Ok(CheckedSide::Here {
            manifest: Box::new(manifest.clone()),
            program: ready.program().to_owned(),
            withheld: code.withheld.clone(),
        })
    }

    async fn check_trackers(&self, interpreter: Option<&Utf8Path>) -> Result<(), RunError> {
        tracking::Ready::check(&self.trackers, interpreter)
            .await
            .map(drop)
    }
}
