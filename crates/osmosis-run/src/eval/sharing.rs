//! An evaluation that other machines work on too.

use std::sync::Arc;

use osmosis_store::{RunKey, RunKind};

use crate::RunError;
use crate::eval::evaluation::Evaluation;
use crate::eval::plan::UserSide;
use crate::life::OpenRun;
use crate::node;
use crate::node::control::invite;
use crate::notices::Notices;

impl Evaluation {
    /// Lets other machines work on it, where its store does.
    pub(super) async fn invite_nodes(
        &self,
        run: &OpenRun,
        notices: &Arc<dyn Notices>,
    ) -> Result<(), RunError> {
        let UserSide::Here(code) = &self.plan.side else {
            return Ok(());
        };
        let plan = &self.plan;
        let judge = plan.config.judge_model.as_ref();
        let models = [Some(&plan.config.experiment.model_path), judge];
        let served = models
            .into_iter()
            .flatten()
            .all(node::policy::can_be_asked_by_nodes);
        if run.store.shared().is_none() || !served {
            return Ok(());
        }
        let package = node::packing::pack(code, &plan.workspace, judge, plan.request.seed)?;
        let key = RunKey {
            kind: RunKind::Evaluation,
            name: self.name.clone(),
        };
        invite(&*run.store, &self.folder, &key, package, notices).await?;
        Ok(())
    }
}
