//! An evaluation that other machines work on too.

use osmosis_engine::RunEvent;
use osmosis_store::{RunKey, RunKind};

use crate::RunError;
use crate::eval::evaluation::Evaluation;
use crate::eval::plan::UserSide;
use crate::life::{OpenRun, Surroundings};
use crate::node;
use crate::node::control::invite;
use crate::node::offered_models::OfferedModels;

impl Evaluation {
    /// Lets other machines work on it, where its store does.
    pub(super) async fn invite_nodes(
        &self,
        run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<(), RunError> {
        let UserSide::Here(code) = &self.plan.side else {
            return Ok(());
        };
        if run.store.shared().is_none() {
            return Ok(());
        }
        let plan = &self.plan;
        let judge = plan.config.judge_model.as_ref();
        let mut package = node::packing::pack(code, &plan.workspace, judge, plan.request.seed)?;
        let models = OfferedModels::of(plan.ready.embedded(), plan.judge.as_ref());
        models.attach(&mut package)?;
        let key = RunKey {
            kind: RunKind::Evaluation,
            name: self.name.clone(),
        };
        let notices = around.notices;
        let token = invite(&*run.store, &self.folder, &key, package, notices).await?;
        let opening = models.open_to_nodes(&*run.store, token.as_ref(), &self.nodes, around.parts);
        opening.await?;
        self.nodes
            .start_nodes(&key, &self.folder, token.as_ref(), &self.throughput)
            .await
    }
}
